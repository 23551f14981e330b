/// @file
/// Memory that nobody owns any more waits here until the device has finished with it.
///
/// The last owner may let go anywhere: in a destructor, in a garbage collector, on a thread without
/// a context, in the middle of a graph capture. So letting go does nothing but push a node on a
/// list. The driver's calls are made later, by `collect()`, in creation, `reclaim()` and `close()`.
/// What the device has finished with is known from an event that is recorded over the whole context
/// after the drop: it also covers kernels that use the memory through an escaped raw pointer.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "parallel_tensor/driver/device.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace memory {

namespace detail {

struct Dropped {
  explicit Dropped(const driver::Device& owner) : device(owner) {}
  virtual ~Dropped() = default;
  driver::Device device;
  Dropped* next = nullptr;
};

template <typename Resource>
struct DroppedResource final : Dropped {
  DroppedResource(Resource&& value, const driver::Device& owner)
      : Dropped(owner), resource(std::move(value)) {}
  Resource resource;
};

// Queries of events and streams would end a capture that another thread is making, unless the
// calling thread is in relaxed mode (measured: 900 and an invalidated capture without it).
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() { driver::api.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCaptureMode() { driver::api.cuThreadExchangeStreamCaptureMode.result(&mode_); }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace detail

/// The process's list of dropped memory. All members may be called from any thread.
class Reclaimer {
 public:
  static Reclaimer& instance() {
    // Left to the process's end: drops at exit must find it, and what waits here is no leak.
    static Reclaimer* reclaimer = new Reclaimer;
    return *reclaimer;
  }

  /// Releases what the device has finished with.
  /// @param patience how long to wait for work that is still running; no longer, whatever runs.
  /// @return how many drops still wait.
  /// Not while a thread of the process captures a graph: recording an event over the context would
  /// invalidate the capture (cuCtxRecordEvent in cuda.h).
  std::size_t collect(std::chrono::microseconds patience = {}) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (waiting() > 0) {
      release(harvest());
      if (waiting() == 0 || std::chrono::steady_clock::now() >= until) break;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return waiting();
  }

  /// What the device has finished with, for the caller to use again or to release(). Waits for
  /// nothing. When to call it: as collect().
  std::vector<std::unique_ptr<detail::Dropped>> harvest() {
    std::vector<std::unique_ptr<detail::Dropped>> finished;
    if (waiting() == 0) return finished;
    std::lock_guard lock(mutex_);
    record_dropped();
    detail::RelaxedCaptureMode relaxed;
    std::erase_if(batches_, [&](std::unique_ptr<Batch>& batch) {
      if (!batch->event || driver::api.cuEventQuery.result(batch->event) != CUDA_SUCCESS) {
        return false;
      }
      waiting_.fetch_sub(batch->nodes.size(), std::memory_order_relaxed);
      std::move(batch->nodes.begin(), batch->nodes.end(), std::back_inserter(finished));
      batch->nodes.clear();
      return true;
    });
    return finished;
  }

  /// Releases drops, each with its device's context. Releasing may run owners' code, which may drop
  /// again or even collect.
  static void release(std::vector<std::unique_ptr<detail::Dropped>> dropped) noexcept {
    for (std::unique_ptr<detail::Dropped>& node : dropped) {
      try {
        const driver::ContextGuard guard(node->device);
        node.reset();
      } catch (...) {
        // The context is lost, and the memory with it.
      }
    }
  }

  /// Drops a node. Makes no driver call, takes no lock, never throws.
  void drop(detail::Dropped* node) noexcept {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    node->next = dropped_.load(std::memory_order_relaxed);
    while (!dropped_.compare_exchange_weak(node->next, node, std::memory_order_release,
                                           std::memory_order_relaxed)) {
    }
  }

  /// How many drops wait to be released.
  std::size_t waiting() const noexcept { return waiting_.load(std::memory_order_relaxed); }

 private:
  // The drops on one device that one event covers.
  struct Batch {
    explicit Batch(const driver::Device& owner) : device(owner) {}
    ~Batch() {
      if (!event) return;
      try {
        const driver::ContextGuard guard(device);
        driver::api.cuEventDestroy.result(event);
      } catch (...) {
        // The context is lost, and the event with it.
      }
    }
    driver::Device device;
    CUevent event = nullptr;
    std::vector<std::unique_ptr<detail::Dropped>> nodes;
  };

  void record_dropped() {
    detail::Dropped* node = dropped_.exchange(nullptr, std::memory_order_acquire);
    std::vector<std::unique_ptr<Batch>> batches;
    while (node) {
      std::unique_ptr<detail::Dropped> owned(std::exchange(node, node->next));
      auto batch = batches.begin();
      while (batch != batches.end() && !((*batch)->device == owned->device)) ++batch;
      if (batch == batches.end()) {
        batch = batches.insert(batches.end(), std::make_unique<Batch>(owned->device));
      }
      (*batch)->nodes.push_back(std::move(owned));
    }
    for (auto& batch : batches) batches_.push_back(std::move(batch));
    detail::RelaxedCaptureMode relaxed;
    for (auto& batch : batches_) {
      if (!batch->event) record(*batch);
    }
  }

  static void record(Batch& batch) {
    driver::ContextGuard guard(batch.device);
    CUevent event = nullptr;
    driver::api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    const CUresult code = record_over_context(batch.device, event);
    if (code == CUDA_SUCCESS) {
      batch.event = event;
    } else {
      driver::api.cuEventDestroy.result(event);  // tried again at the next collection
    }
  }

  static CUresult record_over_context(const driver::Device& device, CUevent event) {
    if (driver::api.cuCtxRecordEvent.available()) {
      return driver::api.cuCtxRecordEvent.result(device.context(), event);
    }
    // Drivers of CUDA 12.4 have no event over a context: there the host waits for the device.
    const CUresult code = driver::api.cuCtxSynchronize.result();
    return code == CUDA_SUCCESS ? driver::api.cuEventRecord.result(event, nullptr) : code;
  }

  std::atomic<detail::Dropped*> dropped_{nullptr};
  std::atomic<std::size_t> waiting_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Batch>> batches_;
};

/// Hands a resource to a shared owner whose last copy drops it into the reclaimer.
/// @param device the device whose work may still use the resource when it is dropped.
template <typename Resource>
std::shared_ptr<Resource> reclaimed(Resource&& resource, const driver::Device& device) {
  auto node = std::make_unique<detail::DroppedResource<Resource>>(std::move(resource), device);
  Resource* inside = &node->resource;
  std::shared_ptr<detail::Dropped> owner(
      node.release(), [](detail::Dropped* dropped) { Reclaimer::instance().drop(dropped); });
  return std::shared_ptr<Resource>(std::move(owner), inside);
}

}  // namespace memory
}  // namespace v1
}  // namespace parallel_tensor
