// Legacy IPC: sharing of cuMemAlloc memory by handles of 64 bytes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "devices.hpp"
#include "gate.hpp"
#include "memory.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

constexpr uint64_t handle_magic = 0x3143504955455450;

// What a CUipcMemHandle holds. The opener finds the memory among the descriptors of the exporter.
struct IpcHandle {
  uint64_t magic;
  uint64_t start_time;  // of the exporter: a pid alone may belong to another process by now
  int32_t pid;
  int32_t descriptor;
  Token token;  // the descriptor's number alone may mean another file by now
  uint64_t size;
  uint64_t reserved[2];
};
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));

// In clock ticks since boot, as /proc tells; 0 when there is no such process.
uint64_t process_start_time(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[1024];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = '\0';
  // The name in parentheses may hold spaces; the start time is the 20th field after it.
  const char* field = std::strrchr(text, ')');
  for (int i = 0; field && i < 20; ++i) field = std::strchr(field + 1, ' ');
  return field ? std::strtoull(field, nullptr, 10) : 0;
}

CUresult get_handle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  IpcHandle content{};
  content.magic = handle_magic;
  content.pid = getpid();
  content.start_time = process_start_time(content.pid);
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  const Region* region = memory.region_at(pointer);
  if (!region || region->kind != RegionKind::plain) return CUDA_ERROR_INVALID_VALUE;
  const Physical& physical = *region->allocation->physical;
  content.descriptor = physical.descriptor();
  content.token = physical.metadata().token;
  content.size = physical.size();
  std::memcpy(handle, &content, sizeof content);
  return CUDA_SUCCESS;
}

// The exporter's memory as a descriptor of this process; negative when it is gone.
int open_exported(const IpcHandle& handle, Metadata* metadata) {
  if (process_start_time(handle.pid) != handle.start_time) return -1;
  const std::string path =
      "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return -1;
  if (read_metadata(descriptor, metadata) && metadata->kind == PhysicalKind::plain &&
      metadata->token == handle.token) {
    return descriptor;
  }
  close(descriptor);
  return -1;
}

CUresult open_handle(CUdeviceptr* pointer, const CUipcMemHandle& bytes, unsigned int flags) {
  if (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  IpcHandle handle{};
  std::memcpy(&handle, &bytes, sizeof handle);
  if (handle.magic != handle_magic) return CUDA_ERROR_INVALID_VALUE;
  if (handle.pid == getpid() && handle.start_time == process_start_time(handle.pid)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  for (auto& [base, region] : memory.regions) {
    if (region.kind == RegionKind::opened && region.token == handle.token &&
        region.context == context) {
      ++region.opens;
      *pointer = base;
      return CUDA_SUCCESS;
    }
  }
  Metadata metadata{};
  const int descriptor = open_exported(handle, &metadata);
  if (descriptor < 0) return CUDA_ERROR_INVALID_HANDLE;
  const int owner = Devices::instance().ordinal_of(metadata.device);
  if (!Devices::instance().reaches(context->device(), owner)) {
    close(descriptor);
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  // The mapping keeps the memory; the descriptor is not needed any more.
  void* address = map_anywhere(descriptor, metadata.size);
  close(descriptor);
  if (!address) return CUDA_ERROR_MAP_FAILED;
  Region region;
  region.kind = RegionKind::opened;
  region.base = reinterpret_cast<CUdeviceptr>(address);
  region.size = metadata.size;
  region.buffer_id = next_handle();
  region.device = owner == CU_DEVICE_INVALID ? context->device() : owner;
  region.context = std::move(context);
  region.token = handle.token;
  region.opens = 1;
  *pointer = region.base;
  memory.regions.emplace(*pointer, std::move(region));
  return CUDA_SUCCESS;
}

CUresult close_handle(CUdeviceptr pointer) {
  auto& memory = Memory::instance();
  std::shared_ptr<Context> context;
  {
    std::lock_guard lock(memory.mutex);
    const auto found = memory.regions.find(pointer);
    if (found == memory.regions.end() || found->second.kind != RegionKind::opened) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    context = found->second.context;
  }
  context->synchronize();
  std::lock_guard lock(memory.mutex);
  const auto found = memory.regions.find(pointer);
  if (found == memory.regions.end() || found->second.kind != RegionKind::opened) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--found->second.opens > 0) return CUDA_SUCCESS;
  unmap_region(found->second);
  memory.regions.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  return gate(PARALLEL_TENSOR_CALL(cuIpcGetMemHandle), [&] { return get_handle(handle, pointer); });
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle,
                                    unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuIpcOpenMemHandle),
              [&] { return open_handle(pointer, handle, flags); });
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr pointer) {
  return gate(PARALLEL_TENSOR_CALL(cuIpcCloseMemHandle), [&] { return close_handle(pointer); });
}
