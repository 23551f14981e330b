#include "devices.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "attributes.hpp"
#include "gate.hpp"
#include "live.hpp"
#include "visible_devices.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

constexpr long long device_limit = 256;

// False, after one line on stderr, when the variable is set to something that is no number in the
// range.
bool read_number(const char* variable, long long low, long long high, long long* value) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return true;
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(text, &end, 10);
  if (errno != 0 || *end || number < low || number > high) {
    std::fprintf(stderr, "emulated driver: %s is \"%s\", expected a number from %lld to %lld\n",
                 variable, text, low, high);
    return false;
  }
  *value = number;
  return true;
}

}  // namespace

Devices& Devices::instance() {
  static Devices* devices = new Devices;
  return *devices;
}

CUresult Devices::initialize() {
  std::lock_guard lock(mutex_);
  if (!devices_.empty()) return CUDA_SUCCESS;
  long long physical = 8;
  long long memory = 16ll << 30;
  long long multicast = 1;
  if (!read_number("PARALLEL_TENSOR_EMULATED_DEVICES", 0, device_limit, &physical) ||
      !read_number("PARALLEL_TENSOR_EMULATED_MEMORY", 1 << 20, 1ll << 46, &memory) ||
      !read_number("PARALLEL_TENSOR_EMULATED_MULTICAST", 0, 1, &multicast)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Device> devices;
  for (int index :
       visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), static_cast<int>(physical))) {
    Device device;
    device.uuid = device_uuid(index);
    device.memory = static_cast<size_t>(memory);
    for (const auto& [attribute, value] : attribute_values) {
      device.attributes[static_cast<size_t>(attribute)] = value;
    }
    device.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = index;
    device.attributes[CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED] = static_cast<int>(multicast);
    devices.push_back(device);
  }
  if (devices.empty()) return CUDA_ERROR_NO_DEVICE;
  devices_ = std::move(devices);
  return CUDA_SUCCESS;
}

int Devices::ordinal_of(const CUuuid& uuid) const {
  for (int i = 0; i < count(); ++i) {
    if (std::memcmp(devices_[static_cast<size_t>(i)].uuid.bytes, uuid.bytes, sizeof uuid.bytes) ==
        0) {
      return i;
    }
  }
  return CU_DEVICE_INVALID;
}

CUresult Devices::attribute(int ordinal, int attribute, int* value) const {
  if (attribute <= 0 || attribute >= attribute_end) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  *value = devices_[static_cast<size_t>(ordinal)].attributes[static_cast<size_t>(attribute)];
  return CUDA_SUCCESS;
}

CUresult Devices::set_attribute(int ordinal, const char* name, int value) {
  for (const auto& known : attribute_names) {
    if (std::strcmp(known.name, name) != 0) continue;
    std::lock_guard lock(mutex_);
    devices_[static_cast<size_t>(ordinal)].attributes[static_cast<size_t>(known.attribute)] = value;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

bool Devices::reaches(int ordinal, int owner) const {
  if (!valid(ordinal) || !valid(owner) || ordinal == owner) return true;
  std::lock_guard lock(mutex_);
  return unreachable_.count(std::minmax(ordinal, owner)) == 0;
}

void Devices::set_reaches(int ordinal, int owner, bool possible) {
  const std::pair<int, int> pair = std::minmax(ordinal, owner);
  std::lock_guard lock(mutex_);
  if (possible) {
    unreachable_.erase(pair);
  } else {
    unreachable_.insert(pair);
  }
}

bool Devices::charge(int ordinal, size_t bytes) {
  std::lock_guard lock(mutex_);
  auto& device = devices_[static_cast<size_t>(ordinal)];
  if (device.used > device.memory || bytes > device.memory - device.used) return false;
  device.used += bytes;
  return true;
}

void Devices::refund(int ordinal, size_t bytes) {
  std::lock_guard lock(mutex_);
  devices_[static_cast<size_t>(ordinal)].used -= bytes;
}

void Devices::memory(int ordinal, size_t* free, size_t* total) const {
  std::lock_guard lock(mutex_);
  const auto& device = devices_[static_cast<size_t>(ordinal)];
  *total = device.memory;
  *free = device.memory - std::min(device.used, device.memory);
}

void Devices::set_memory(int ordinal, size_t bytes) {
  std::lock_guard lock(mutex_);
  devices_[static_cast<size_t>(ordinal)].memory = bytes;
}

Granularity Devices::granularity() const {
  std::lock_guard lock(mutex_);
  return granularity_;
}

void Devices::set_granularity(const Granularity& granularity) {
  std::lock_guard lock(mutex_);
  granularity_ = granularity;
}

int Devices::multicast_slots() const {
  std::lock_guard lock(mutex_);
  return multicast_slots_;
}

void Devices::set_multicast_slots(int slots) {
  std::lock_guard lock(mutex_);
  multicast_slots_ = slots;
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuInit(unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuInit), [&] {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = Devices::instance().initialize();
    if (result == CUDA_SUCCESS && !initialized()) {
      arrange_exit_report();
      set_initialized();
    }
    return result;
  });
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  return gate(PARALLEL_TENSOR_CALL(cuDriverGetVersion), [&] {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return gate(PARALLEL_TENSOR_CALL(cuDeviceGet), [&] {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!Devices::instance().valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return gate(PARALLEL_TENSOR_CALL(cuDeviceGetCount), [&] {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = Devices::instance().count();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuDeviceGetName), [&] {
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, static_cast<size_t>(length), "Emulated GPU");
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuDeviceGetUuid), [&] {
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *uuid = Devices::instance().uuid(device);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuDeviceGetAttribute), [&] {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    return Devices::instance().attribute(device, static_cast<int>(attribute), value);
  });
}

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuDeviceTotalMem), [&] {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    size_t free = 0;
    Devices::instance().memory(device, &free, bytes);
    return CUDA_SUCCESS;
  });
}
