/// @file
/// Memory operations with their order and scope in the name: 32-bit words that ranks signal with,
/// and the 16-byte packs that data moves in. PTX with nvcc; std::atomic_ref and plain memory with a
/// host compiler, where every scope is the whole machine.
///
/// Synchronisation is made of `store_release` and `load_acquire` on words only; packs are plain
/// accesses and need it around them.
#pragma once

#include <cstdint>

#include "parallel_tensor/device/qualifiers.cuh"

#if !defined(__CUDACC__)
#include <atomic>
#include <cstring>
#endif

namespace parallel_tensor {
inline namespace v1 {
namespace device {

/// Sixteen bytes that move in one instruction.
struct alignas(16) Pack {
  std::uint32_t words[4];
};

#if defined(__CUDACC__)

/// Loads a word; orders nothing. Visible between the threads of this device.
PARALLEL_TENSOR_DEVICE std::uint32_t load_relaxed_device(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

/// Loads a word; orders nothing. Visible between all devices and the host.
PARALLEL_TENSOR_DEVICE std::uint32_t load_relaxed_system(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

/// Loads a word; what its writer did before a `store_release_system` of that value is visible
/// afterwards.
PARALLEL_TENSOR_DEVICE std::uint32_t load_acquire_system(const std::uint32_t* word) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

/// Stores a word; orders nothing. Visible between the threads of this device.
PARALLEL_TENSOR_DEVICE void store_relaxed_device(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/// Stores a word after everything that this thread did, or saw before a block barrier, is visible
/// to all devices and the host. The lanes of one warp that store side by side pay for one fence.
PARALLEL_TENSOR_DEVICE void store_release_system(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/// Replaces `expected` by `desired`; returns what was there. Orders nothing.
PARALLEL_TENSOR_DEVICE std::uint32_t compare_exchange_device(std::uint32_t* word,
                                                             std::uint32_t expected,
                                                             std::uint32_t desired) {
  std::uint32_t seen;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(seen)
               : "l"(word), "r"(expected), "r"(desired)
               : "memory");
  return seen;
}

/// Loads 16 bytes from a 16-byte aligned address.
PARALLEL_TENSOR_DEVICE Pack load_pack(const void* address) {
  Pack pack;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pack.words[0]), "=r"(pack.words[1]), "=r"(pack.words[2]), "=r"(pack.words[3])
               : "l"(address)
               : "memory");
  return pack;
}

/// Stores 16 bytes to a 16-byte aligned address.
PARALLEL_TENSOR_DEVICE void store_pack(void* address, const Pack& pack) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(pack.words[0]),
               "r"(pack.words[1]), "r"(pack.words[2]), "r"(pack.words[3])
               : "memory");
}

#else

namespace detail {
inline std::atomic_ref<std::uint32_t> atomic_word(const std::uint32_t* word) {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word));
}
}  // namespace detail

inline std::uint32_t load_relaxed_device(const std::uint32_t* word) {
  return detail::atomic_word(word).load(std::memory_order_relaxed);
}

inline std::uint32_t load_relaxed_system(const std::uint32_t* word) {
  return detail::atomic_word(word).load(std::memory_order_relaxed);
}

inline std::uint32_t load_acquire_system(const std::uint32_t* word) {
  return detail::atomic_word(word).load(std::memory_order_acquire);
}

inline void store_relaxed_device(std::uint32_t* word, std::uint32_t value) {
  detail::atomic_word(word).store(value, std::memory_order_relaxed);
}

inline void store_release_system(std::uint32_t* word, std::uint32_t value) {
  detail::atomic_word(word).store(value, std::memory_order_release);
}

inline std::uint32_t compare_exchange_device(std::uint32_t* word, std::uint32_t expected,
                                             std::uint32_t desired) {
  detail::atomic_word(word).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
}

inline Pack load_pack(const void* address) {
  Pack pack;
  std::memcpy(&pack, address, sizeof(pack));
  return pack;
}

inline void store_pack(void* address, const Pack& pack) {
  std::memcpy(address, &pack, sizeof(pack));
}

#endif

}  // namespace device
}  // namespace v1
}  // namespace parallel_tensor
