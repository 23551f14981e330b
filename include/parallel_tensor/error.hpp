/// @file
/// The exceptions of parallel-tensor. Python raises classes of the same names
/// (`parallel_tensor.errors`).
///
/// A message says what was tried, with which numbers, on which rank and device, what came back, and
/// what to do about it. Code that reacts to an error reads the fields, never the text.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace parallel_tensor {
inline namespace v1 {

/// Base of every exception that this library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument that can never work: an unknown type, a negative size, a rank outside the group.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// This machine, driver or memory cannot do what was asked; the message says what, why and what to
/// do.
class NotSupportedError : public Error {
 public:
  using Error::Error;
};

/// A call of the CUDA driver failed.
class DriverError : public Error {
 public:
  DriverError(const std::string& message, std::string call, int code, std::string name)
      : Error(message), call_(std::move(call)), code_(code), name_(std::move(name)) {}

  /// The driver function, without a version suffix: "cuMemCreate".
  const std::string& call() const noexcept { return call_; }
  /// The CUresult that came back.
  int code() const noexcept { return code_; }
  /// The name of that result: "CUDA_ERROR_INVALID_VALUE".
  const std::string& name() const noexcept { return name_; }

 private:
  std::string call_;
  int code_;
  std::string name_;
};

/// The device is out of memory (CUDA_ERROR_OUT_OF_MEMORY).
class OutOfMemoryError : public DriverError {
 public:
  using DriverError::DriverError;
};

/// The ranks of a group could not complete an operation together.
class ExchangeError : public Error {
 public:
  explicit ExchangeError(const std::string& message, std::string phase = {})
      : Error(message), phase_(std::move(phase)) {}

  /// The step in which it happened: "join", "create", "barrier".
  const std::string& phase() const noexcept { return phase_; }

 private:
  std::string phase_;
};

/// Another rank failed or died; the message holds that rank's own error.
class PeerError : public ExchangeError {
 public:
  PeerError(const std::string& message, int rank, int pid, std::string phase)
      : ExchangeError(message, std::move(phase)), rank_(rank), pid_(pid) {}

  /// The rank that failed.
  int rank() const noexcept { return rank_; }
  /// The process of that rank, 0 when it never joined.
  int pid() const noexcept { return pid_; }

 private:
  int rank_;
  int pid_;
};

/// A deadline ran out; the message names the ranks that were missing.
class TimeoutError : public ExchangeError {
 public:
  TimeoutError(const std::string& message, std::string phase, std::vector<int> missing)
      : ExchangeError(message, std::move(phase)), missing_(std::move(missing)) {}

  /// The ranks that had not answered, in ascending order.
  const std::vector<int>& missing() const noexcept { return missing_; }

 private:
  std::vector<int> missing_;
};

/// The ranks called different operations, or the same one with different arguments.
class MismatchError : public ExchangeError {
 public:
  using ExchangeError::ExchangeError;
};

}  // namespace v1
}  // namespace parallel_tensor
