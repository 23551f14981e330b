/// @file
/// Status: an exception in a form that travels between ranks.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// How one rank's part of a step ended. Local, a plain value.
struct Status {
  std::string kind;  ///< the name of the exception class ("OutOfMemoryError"); empty means success
  std::string message;  ///< that exception's text

  /// True when this part succeeded.
  bool ok() const noexcept { return kind.empty(); }

  /// The status that stands for an exception.
  static Status of(const std::exception& error) { return {kind_of(error), error.what()}; }

  /// The status that stands for a held exception; success for a null pointer.
  static Status of(const std::exception_ptr& error) {
    if (!error) return {};
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& caught) {
      return of(caught);
    } catch (...) {
      return {"Exception", "an exception of an unknown type"};
    }
  }

  /// The status of the exception that is being handled; success outside a handler.
  static Status of_current() { return of(std::current_exception()); }

 private:
  static std::string kind_of(const std::exception& error) {
    if (dynamic_cast<const ArgumentError*>(&error)) return "ArgumentError";
    if (dynamic_cast<const NotSupportedError*>(&error)) return "NotSupportedError";
    if (dynamic_cast<const OutOfMemoryError*>(&error)) return "OutOfMemoryError";
    if (dynamic_cast<const DriverError*>(&error)) return "DriverError";
    if (dynamic_cast<const PeerError*>(&error)) return "PeerError";
    if (dynamic_cast<const TimeoutError*>(&error)) return "TimeoutError";
    if (dynamic_cast<const MismatchError*>(&error)) return "MismatchError";
    if (dynamic_cast<const ExchangeError*>(&error)) return "ExchangeError";
    if (dynamic_cast<const Error*>(&error)) return "Error";
    if (dynamic_cast<const std::bad_alloc*>(&error)) return "MemoryError";
    return "Exception";
  }
};

}  // namespace v1
}  // namespace parallel_tensor
