// cuGetProcAddress: base names to functions.
#include <cstring>

#include "devices.hpp"
#include "gate.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

struct Procedure {
  const char* name;
  void* function;
  int introduced;  // the CUDA version of this form
};

// The names that have had several signatures, oldest first.
const Procedure forms[] = {
    {"cuGetProcAddress", reinterpret_cast<void*>(&get_proc_address_without_status), 11030},
    {"cuGetProcAddress", reinterpret_cast<void*>(&cuGetProcAddress), 12000},
    {"cuCtxCreate", reinterpret_cast<void*>(&cuCtxCreate_v2), 3020},
#if CUDA_VERSION >= 12050
    {"cuCtxCreate", reinterpret_cast<void*>(&cuCtxCreate_v4), 12050},
#endif
    {"cuStreamGetCaptureInfo", reinterpret_cast<void*>(&cuStreamGetCaptureInfo_v2), 11030},
    {"cuStreamGetCaptureInfo", reinterpret_cast<void*>(&cuStreamGetCaptureInfo_v3), 12030},
};

const Procedure procedures[] = {
#define PARALLEL_TENSOR_PROCEDURE(name, version) {#name, reinterpret_cast<void*>(&name), version},
    PARALLEL_TENSOR_EMULATED_CALLS(PARALLEL_TENSOR_PROCEDURE)
#undef PARALLEL_TENSOR_PROCEDURE
};

// The newest function of the name that the version knows; false when the name is not in the list.
template <size_t count>
bool search(const Procedure (&list)[count], const char* name, int version, void** function) {
  bool known = false;
  for (const auto& procedure : list) {
    if (std::strcmp(procedure.name, name) != 0) continue;
    known = true;
    if (procedure.introduced <= version) *function = procedure.function;
  }
  return known;
}

CUresult find(const char* symbol, void** function, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t known_flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  if (!symbol || !function || version > driver_version) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  if ((flags & ~known_flags) != 0) {
    complain("cuGetProcAddress", "forms with a per-thread default stream are not emulated");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const bool known =
      search(forms, symbol, version, function) || search(procedures, symbol, version, function);
  if (status) {
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
              : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function, int version,
                                  cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return gate(PARALLEL_TENSOR_CALL(cuGetProcAddress),
              [&] { return find(symbol, function, version, flags, status); });
}

CUresult CUDAAPI get_proc_address_without_status(const char* symbol, void** function, int version,
                                                 cuuint64_t flags) {
  return gate(PARALLEL_TENSOR_CALL(cuGetProcAddress),
              [&] { return find(symbol, function, version, flags, nullptr); });
}
