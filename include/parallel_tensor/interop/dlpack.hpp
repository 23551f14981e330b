/// @file
/// Memory handed out as DLPack tensors.
///
/// The structs and numbers are the ABI of dlpack.h 1.1 (github.com/dmlc/dlpack), declared here so
/// that no other package is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"
#include "parallel_tensor/dtype.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace dlpack {

/// DLDeviceType: what kind of memory the pointer is to.
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2 };

/// DLDevice.
struct Device {
  DeviceType type;
  std::int32_t ordinal;
};

/// DLTensor.
struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

/// DLManagedTensor: what a capsule named "dltensor" holds.
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

/// DLManagedTensorVersioned: what a capsule named "dltensor_versioned" holds.
struct ManagedTensorVersioned {
  struct {
    std::uint32_t major;
    std::uint32_t minor;
  } version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

/// The DLPack device of memory on a device: memory of the emulated driver is the host's.
inline Device device_of(const driver::Device& device) {
  if (driver::library().emulated) return {DeviceType::cpu, 0};
  return {DeviceType::cuda, device.ordinal()};
}

namespace detail {

template <typename Managed>
struct Export {
  Managed managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; dlpack.h 1.2 no longer allows a null pointer
  std::shared_ptr<const void> owner;
};

}  // namespace detail

/// A contiguous tensor over memory. The consumer calls the deleter once, on any thread; that drops
/// the owner and does nothing else.
/// @tparam Managed ManagedTensor or ManagedTensorVersioned.
/// @param owner keeps the memory addressable.
template <typename Managed>
Managed* make_tensor(void* data, const driver::Device& device, DType dtype,
                     std::vector<std::int64_t> shape, std::shared_ptr<const void> owner) {
  using Export = detail::Export<Managed>;
  auto exported = std::make_unique<Export>();
  exported->shape = std::move(shape);
  exported->owner = std::move(owner);
  exported->strides.resize(exported->shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = exported->shape.size(); i-- > 0;) {
    exported->strides[i] = stride;
    stride *= exported->shape[i];
  }
  Managed& managed = exported->managed;
  if constexpr (std::is_same_v<Managed, ManagedTensorVersioned>) managed.version = {1, 0};
  managed.tensor.data = data;
  managed.tensor.device = device_of(device);
  managed.tensor.dimensions = static_cast<std::int32_t>(exported->shape.size());
  managed.tensor.dtype = dtype;
  managed.tensor.shape = exported->shape.data();
  managed.tensor.strides = exported->strides.data();
  managed.context = exported.get();
  managed.deleter = [](Managed* self) { delete static_cast<Export*>(self->context); };
  return &exported.release()->managed;
}

}  // namespace dlpack
}  // namespace v1
}  // namespace parallel_tensor
