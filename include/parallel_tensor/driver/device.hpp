/// @file
/// A GPU as this process sees it, and the guard that makes its primary context current.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "parallel_tensor/driver/table.hpp"
#include "parallel_tensor/error.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace driver {

/// The identity of a GPU: the same in every process, whatever ordinals each of them sees.
struct DeviceUuid {
  std::array<unsigned char, 16> bytes{};

  friend bool operator==(const DeviceUuid&, const DeviceUuid&) = default;
  friend auto operator<=>(const DeviceUuid&, const DeviceUuid&) = default;

  /// "GPU-00112233-4455-6677-8899-aabbccddeeff", the form of nvidia-smi and CUDA_VISIBLE_DEVICES.
  std::string text() const {
    static constexpr char digits[] = "0123456789abcdef";
    std::string result = "GPU-";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) result += '-';
      result += digits[bytes[i] >> 4];
      result += digits[bytes[i] & 15];
    }
    return result;
  }
};

/// A device with its primary context. A small value: copies refer to the same device.
class Device {
 public:
  /// How many devices this process sees.
  static int count() {
    library();
    int count = 0;
    api.cuDeviceGetCount(&count);
    return count;
  }

  /// The device with this ordinal; its primary context is created at the first call and kept.
  /// @throws ArgumentError when there is no such device; DriverError from the context's creation.
  static Device at(int ordinal) {
    const int visible = count();
    if (ordinal < 0 || ordinal >= visible) {
      throw ArgumentError("Device " + std::to_string(ordinal) +
                          " does not exist: this process sees " + std::to_string(visible) +
                          " device(s), CUDA_VISIBLE_DEVICES is " + visible_devices() + ".");
    }
    // Left to the process's end, with the contexts: other libraries use the same primary contexts.
    static std::mutex& mutex = *new std::mutex;
    static auto& records = *new std::map<int, std::unique_ptr<Record>>;
    std::lock_guard lock(mutex);
    auto& record = records[ordinal];
    if (!record) record = make_record(ordinal);
    return Device(record.get());
  }

  /// The device of the calling thread's current context, else LOCAL_RANK modulo the devices.
  static Device current() {
    library();
    CUcontext context = nullptr;
    api.cuCtxGetCurrent(&context);
    if (context) {
      CUdevice handle = 0;
      api.cuCtxGetDevice(&handle);
      return at(handle);
    }
    const char* local_rank = std::getenv("LOCAL_RANK");
    const int visible = count();
    return at(local_rank && visible > 0 ? std::abs(std::atoi(local_rank)) % visible : 0);
  }

  int ordinal() const noexcept { return record_->ordinal; }
  CUdevice handle() const noexcept { return record_->handle; }
  CUcontext context() const noexcept { return record_->context; }
  const DeviceUuid& uuid() const noexcept { return record_->uuid; }
  const std::string& name() const noexcept { return record_->name; }

  /// The value of a device attribute. An attribute is a hint: only a trial tells what works.
  int attribute(CUdevice_attribute attribute) const {
    int value = 0;
    api.cuDeviceGetAttribute(&value, attribute, handle());
    return value;
  }

  /// Bytes of memory on the device.
  std::size_t total_memory() const {
    std::size_t bytes = 0;
    api.cuDeviceTotalMem(&bytes, handle());
    return bytes;
  }

  friend bool operator==(const Device& a, const Device& b) { return a.record_ == b.record_; }

 private:
  struct Record {
    int ordinal;
    CUdevice handle;
    CUcontext context;
    DeviceUuid uuid;
    std::string name;
  };

  explicit Device(const Record* record) : record_(record) {}

  static std::unique_ptr<Record> make_record(int ordinal) {
    auto record = std::make_unique<Record>();
    record->ordinal = ordinal;
    api.cuDeviceGet(&record->handle, ordinal);
    CUuuid uuid{};
    api.cuDeviceGetUuid(&uuid, record->handle);
    std::memcpy(record->uuid.bytes.data(), uuid.bytes, record->uuid.bytes.size());
    char name[256] = {};
    api.cuDeviceGetName(name, sizeof name, record->handle);
    record->name = name;
    check(api.cuDevicePrimaryCtxRetain.result(&record->context, record->handle),
          "cuDevicePrimaryCtxRetain", "device " + std::to_string(ordinal));
    return record;
  }

  static std::string visible_devices() {
    const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
    return value ? "\"" + std::string(value) + "\"" : "not set";
  }

  const Record* record_;
};

/// Makes a device's primary context current for a scope and restores the caller's afterwards.
class ContextGuard {
 public:
  explicit ContextGuard(const Device& device) {
    CUcontext current = nullptr;
    api.cuCtxGetCurrent(&current);
    if (current == device.context()) return;
    api.cuCtxPushCurrent(device.context());
    pushed_ = true;
  }
  ~ContextGuard() {
    CUcontext popped = nullptr;
    if (pushed_) api.cuCtxPopCurrent.result(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace driver
}  // namespace v1
}  // namespace parallel_tensor
