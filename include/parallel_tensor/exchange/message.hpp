/// @file
/// What a rank gives to an exchange (Request) and what it gets back from every rank (Answer).
#pragma once

#include <string>
#include <vector>

#include "parallel_tensor/exchange/status.hpp"
#include "parallel_tensor/posix/descriptor.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// One rank's contribution to `Group::all_gather`.
struct Request {
  std::string operation{};         ///< what all ranks must be doing: "create", "barrier"
  std::string signature{};         ///< opaque; must be equal on all ranks whose status is ok
  std::string payload{};           ///< any bytes, at most 16 MiB; sizes may differ between ranks
  std::vector<int> descriptors{};  ///< borrowed: they stay the caller's, open meanwhile
  Status status{};                 ///< a failure of this rank that the others shall learn
};

/// What one rank contributed, as every rank sees it.
struct Answer {
  std::string payload;
  std::vector<posix::Descriptor> descriptors;  ///< new and owned, close-on-exec, own rank's too
  Status status;
};

}  // namespace v1
}  // namespace parallel_tensor
