/// @file
/// A header that does not compile alone: the check of the headers must find it.
#pragma once

namespace parallel_tensor {

inline std::string forgotten_include() { return "std::string needs <string>"; }

}  // namespace parallel_tensor
