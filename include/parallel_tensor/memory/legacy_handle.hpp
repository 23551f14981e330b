/// @file
/// Legacy IPC: memory of cuMemAlloc (cudaMalloc, torch's allocator) opened in another process.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

/// A random number that names this process among all processes of all PID namespaces.
inline std::uint64_t process_identity() {
  static const std::uint64_t identity = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32) | random();
  }();
  return identity;
}

/// One allocation of another process, as its owner names it. Two allocations may have equal handle
/// bytes, so the bytes are no identity.
struct LegacyHandle {
  CUipcMemHandle handle{};
  std::uint64_t exporter = 0;   ///< process_identity() of the owner
  std::uint64_t base = 0;       ///< its address there
  std::uint64_t buffer_id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID there

  /// The handle of the allocation that starts at `base`, made in the process that owns it.
  static LegacyHandle of(const driver::Device& owner, CUdeviceptr base, std::uint64_t buffer_id) {
    driver::ContextGuard guard(owner);
    LegacyHandle result;
    driver::api.cuIpcGetMemHandle(&result.handle, base);
    result.exporter = process_identity();
    result.base = base;
    result.buffer_id = buffer_id;
    return result;
  }
};

/// Owns an opened handle of another process's allocation.
class OpenedHandle {
 public:
  OpenedHandle(const LegacyHandle& handle, const driver::Device& device) : device_(device) {
    driver::ContextGuard guard(device);
    driver::check(driver::api.cuIpcOpenMemHandle.result(&pointer_, handle.handle,
                                                        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                  "cuIpcOpenMemHandle",
                  "for device " + std::to_string(device.ordinal()) + ", " + device.uuid().text());
  }
  ~OpenedHandle() {
    if (pointer_) driver::api.cuIpcCloseMemHandle.result(pointer_);
  }
  OpenedHandle(OpenedHandle&& other) noexcept
      : device_(other.device_), pointer_(std::exchange(other.pointer_, 0)) {}
  OpenedHandle& operator=(OpenedHandle&&) = delete;
  OpenedHandle(const OpenedHandle&) = delete;

  void* pointer() const noexcept { return reinterpret_cast<void*>(pointer_); }

 private:
  driver::Device device_;
  CUdeviceptr pointer_ = 0;
};

/// Opens another process's allocation for a device, once: while it is open, further calls share it
/// (some drivers refuse to open one handle twice).
inline std::shared_ptr<const OpenedHandle> open_legacy_handle(const LegacyHandle& handle,
                                                              const driver::Device& device) {
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, CUcontext>;
  // Left to the process's end, as the reclaimer is.
  static std::mutex& mutex = *new std::mutex;
  static auto& opened = *new std::map<Key, std::weak_ptr<const OpenedHandle>>;
  std::lock_guard lock(mutex);
  std::erase_if(opened, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = opened[{handle.exporter, handle.base, handle.buffer_id, device.context()}];
  if (auto existing = entry.lock()) return existing;
  std::shared_ptr<const OpenedHandle> fresh = reclaimed(OpenedHandle(handle, device), device);
  entry = fresh;
  return fresh;
}

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
