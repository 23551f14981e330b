/// @file
/// What the collectives of a group share on a rank: agreement on the arguments, order between
/// streams, launch.
#pragma once

#include <cuda.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "parallel_tensor/collectives/device_status.hpp"
#include "parallel_tensor/collectives/kernels.hpp"
#include "parallel_tensor/device/peer_view.cuh"
#include "parallel_tensor/device/wait.cuh"
#include "parallel_tensor/device/workspace_layout.cuh"
#include "parallel_tensor/driver/kernel_library.hpp"
#include "parallel_tensor/exchange/group.hpp"
#include "parallel_tensor/memory/reclaimer.hpp"
#include "parallel_tensor/posix/interrupt.hpp"
#include "parallel_tensor/workspace.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace collectives {

/// Owns an event without timing, of the context that is current when it is made.
class Event {
 public:
  Event() { driver::api.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING); }
  ~Event() {
    if (event_) driver::api.cuEventDestroy.result(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  Event(const Event&) = delete;

  CUevent get() const noexcept { return event_; }

 private:
  CUevent event_ = nullptr;
};

/// Launches the collectives of one rank of a group. One per group; lives as long as the group.
class Launcher {
 public:
  /// The launcher of a group; makes it, and the group's workspace, when there is none. Collective
  /// the first time that the group has no workspace.
  /// @throws NotSupportedError for a device below compute capability 8.0; what Workspace::require
  /// throws.
  static std::shared_ptr<Launcher> of(Group& group) {
    if (auto existing = std::static_pointer_cast<Launcher>(group.attachment(key))) return existing;
    std::shared_ptr<Workspace> workspace = Workspace::require(group);
    static std::mutex& mutex = *new std::mutex;
    std::lock_guard lock(mutex);
    if (auto existing = std::static_pointer_cast<Launcher>(group.attachment(key))) return existing;
    std::shared_ptr<Launcher> made(new Launcher(std::move(workspace)));
    group.attach(key, made);
    return made;
  }

  Workspace& workspace() const noexcept { return *workspace_; }

  /// The workspace of all ranks, for a kernel's argument.
  template <int N>
  PeerView<std::byte, N> workspace_view() const {
    PeerView<std::byte, N> view{};
    for (int rank = 0; rank < workspace_->size(); ++rank) {
      view.pointers[rank] = workspace_->pointer(rank);
    }
    view.rank = workspace_->rank();
    if constexpr (N == run_time_size) view.rank_count = workspace_->size();
    return view;
  }

  /// The limits of this rank's waits, for a kernel's argument.
  device::WaitLimits limits() const {
    return {workspace_->status(), static_cast<std::uint64_t>(device_timeout().count())};
  }

  /// The right to use a channel: the operations of a channel come one after the other, in the order
  /// in which their turns were taken.
  std::unique_lock<std::mutex> turn(device::Channel channel) {
    return std::unique_lock(state(channel).mutex);
  }

  /// Prepares an operation: raises earlier failures, calls `prepare`, and compares the text of
  /// `signature` between all ranks on the emulated driver and with PARALLEL_TENSOR_DEBUG=1; nothing
  /// waits on the host otherwise. A failed `prepare` and a mismatch leave the group alive.
  /// @throws what `prepare` throws, ArgumentError of device_timeout()
  /// @throws MismatchError, PeerError where ranks compare
  template <typename Signature, typename Prepare>
  void agree(Group& group, const char* operation, Signature signature, Prepare prepare) {
    check_device(group, *workspace_);
    const auto prepare_here = [&] {
      device_timeout();
      prepare();
    };
    if (!compares_) return prepare_here();
    Request request;
    request.operation = operation;
    std::exception_ptr failure;
    try {
      request.signature = signature();
      prepare_here();
    } catch (...) {
      failure = std::current_exception();
      request.status = Status::of(failure);
    }
    const auto answers = group.all_gather(request);
    if (failure) std::rethrow_exception(failure);
    group.require_ok(answers, operation);
  }

  /// Launches a kernel of a channel on a stream, after what the channel did on other streams.
  /// Returns at once on a GPU; on the emulated driver when the kernel is done. A failure breaks the
  /// group: peers wait already.
  /// @param turn of that channel.
  /// @throws DriverError
  /// @throws what check_device() and the interrupt hook throw, on the emulated driver
  template <typename Argument>
  void launch(Group& group, [[maybe_unused]] const std::unique_lock<std::mutex>& turn,
              device::Channel channel, const Kernel& kernel, driver::LaunchShape shape,
              CUstream stream, const Argument& argument) {
    ChannelState& used = state(channel);
    try {
      driver::ContextGuard guard(workspace_->device());
      CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
      driver::api.cuStreamIsCapturing(stream, &capture);
      // A captured launch is ordered by the graph: events would tie the graph to this run.
      const bool eager = capture == CU_STREAM_CAPTURE_STATUS_NONE;
      if (eager && used.recorded && used.stream != stream) {
        driver::api.cuStreamWaitEvent(stream, used.event->get(), CU_EVENT_WAIT_DEFAULT);
      }
      driver::launch(kernel.get(), shape, stream, argument);
      if (eager) {
        if (!used.event) used.event = memory::reclaimed(Event(), workspace_->device());
        driver::api.cuEventRecord(used.event->get(), stream);
        used.stream = stream;
        used.recorded = true;
      }
      if (emulated_ && eager) wait_until_done(group, used.event->get());
    } catch (...) {
      group.fail(std::current_exception());
      abort_waits(*workspace_);
      throw;
    }
    if (emulated_) check_device(group, *workspace_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* key = "collectives";

  struct ChannelState {
    std::mutex mutex;
    std::shared_ptr<Event> event;  // after the channel's last launch
    CUstream stream = nullptr;     // where that was
    bool recorded = false;
  };

  explicit Launcher(std::shared_ptr<Workspace> workspace)
      : workspace_(std::move(workspace)), emulated_(driver::library().emulated) {
    const driver::Device& device = workspace_->device();
    const int major = device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    if (major < 8) {
      throw NotSupportedError("Collectives need a GPU of compute capability 8.0 or newer; device " +
                              std::to_string(device.ordinal()) + " (" + device.name() + ") has " +
                              std::to_string(major) + ".x. Sharing tensors works on it.");
    }
    const char* debug = std::getenv("PARALLEL_TENSOR_DEBUG");
    compares_ = emulated_ || (debug && std::string(debug) == "1");
  }

  ChannelState& state(device::Channel channel) {
    return channels_[static_cast<std::size_t>(channel)];
  }

  // A peer that has left may have done its part before: its signals are in memory then, and what
  // runs here ends by itself within this time.
  static constexpr std::chrono::milliseconds grace{500};

  // Waits for a kernel of the emulated driver. What goes wrong meanwhile ends the kernel's waits
  // and is raised when it has returned.
  void wait_until_done(Group& group, CUevent event) {
    std::exception_ptr interrupt;
    std::exception_ptr lost;
    Clock::time_point lost_at{};
    Clock::time_point next_look = Clock::now();
    auto pause = std::chrono::microseconds(0);
    for (;;) {
      const CUresult result = driver::api.cuEventQuery.result(event);
      if (result != CUDA_ERROR_NOT_READY) {
        driver::check(result, "cuEventQuery", "the end of a collective");
        break;
      }
      const auto now = Clock::now();
      if (now >= next_look && !interrupt) {
        next_look = now + std::chrono::milliseconds(20);
        try {
          posix::check_interrupt();
        } catch (...) {
          interrupt = std::current_exception();
          abort_waits(*workspace_);
        }
        if (!lost && (lost = group.lost_peer())) lost_at = now;
        if (lost && now - lost_at > grace) abort_waits(*workspace_);
      }
      std::this_thread::sleep_for(pause);
      if (pause < std::chrono::microseconds(500)) pause += std::chrono::microseconds(5);
    }
    if (interrupt) std::rethrow_exception(interrupt);
    if (lost && wait_failed(*workspace_)) std::rethrow_exception(lost);
  }

  std::shared_ptr<Workspace> workspace_;
  const bool emulated_;
  bool compares_ = false;
  std::array<ChannelState, device::maximum_channels> channels_;
};

}  // namespace collectives
}  // namespace v1
}  // namespace parallel_tensor
