// The compiled kernels, one fatbin per source of src/kernels, as they lie in this library's
// read-only data.
#include <string_view>

#include "parallel_tensor/collectives/kernels.hpp"

#define PARALLEL_TENSOR_EMBED(stem)                        \
  __asm__(                                                 \
      ".pushsection .rodata,\"a\",@progbits\n"             \
      ".balign 64\n"                                       \
      ".hidden parallel_tensor_fatbin_" #stem              \
      "\n"                                                 \
      ".globl parallel_tensor_fatbin_" #stem               \
      "\n"                                                 \
      "parallel_tensor_fatbin_" #stem                      \
      ":\n"                                                \
      ".incbin \"" PARALLEL_TENSOR_FATBIN_FOLDER "/" #stem \
      ".fatbin\"\n"                                        \
      ".popsection\n");                                    \
  extern "C" __attribute__((visibility("hidden")))         \
  const unsigned char parallel_tensor_fatbin_##stem[]

PARALLEL_TENSOR_EMBED(all_reduce);
PARALLEL_TENSOR_EMBED(barrier);

namespace parallel_tensor {
inline namespace v1 {
namespace collectives {

const void* kernel_image(std::string_view stem) noexcept {
  if (stem == "all_reduce") return parallel_tensor_fatbin_all_reduce;
  if (stem == "barrier") return parallel_tensor_fatbin_barrier;
  return nullptr;
}

}  // namespace collectives
}  // namespace v1
}  // namespace parallel_tensor
