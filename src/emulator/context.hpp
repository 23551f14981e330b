/// @file
/// Contexts: the streams of a device and how their work orders, and what is current on a thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cuda_abi.hpp"
#include "handle_table.hpp"
#include "stream.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

/// A context. Thread-safe.
class Context : public std::enable_shared_from_this<Context> {
 public:
  explicit Context(int device) : device_(device) {}

  int device() const noexcept { return device_; }
  CUcontext handle() const noexcept { return handle_; }
  void set_handle(CUcontext handle) noexcept { handle_ = handle; }

  bool alive() const noexcept { return alive_.load(std::memory_order_acquire); }
  void set_alive(bool alive) noexcept { alive_.store(alive, std::memory_order_release); }

  /// What a kernel's failure left; every later use of the context gives it. CUDA_SUCCESS when there
  /// is none.
  CUresult failure() const noexcept { return failure_.load(std::memory_order_acquire); }
  void fail(CUresult code) noexcept { failure_.store(code, std::memory_order_release); }

  std::shared_ptr<Stream> create_stream(unsigned int flags);
  /// The legacy default stream.
  std::shared_ptr<Stream> legacy_stream();
  /// The calling thread's own default stream.
  std::shared_ptr<Stream> thread_stream();

  /// Appends work to a stream of this context after what CUDA orders before it: the legacy default
  /// stream waits for all blocking streams, and they for it.
  Point submit(const std::shared_ptr<Stream>& stream, Work work);
  /// Appends work that runs after everything submitted so far on any stream.
  Point submit_after_all(Work work);
  /// The places that synchronising with this stream has to wait for.
  std::vector<Point> pending(const std::shared_ptr<Stream>& stream);
  /// Waits for all work so far and gives failure().
  CUresult synchronize();

  /// Ends all streams after their work.
  void close_streams();

  /// Peer contexts whose memory was opened to this one by cuCtxEnablePeerAccess; true when it
  /// changed.
  bool enable_peer(CUcontext peer);
  bool disable_peer(CUcontext peer);

 private:
  std::shared_ptr<Stream> add_stream(unsigned int flags);
  void forget_ended_streams();

  const int device_;
  CUcontext handle_ = nullptr;
  std::atomic<bool> alive_{true};
  std::atomic<CUresult> failure_{CUDA_SUCCESS};

  std::mutex mutex_;  // one submission at a time, so that "so far" means the same for all streams
  std::vector<std::shared_ptr<Stream>> streams_;
  std::shared_ptr<Stream> legacy_;
  std::shared_ptr<Stream> marker_;  // runs what submit_after_all gets
  std::set<CUcontext> peers_;
};

HandleTable<CUcontext, Context>& contexts();
HandleTable<CUstream, Stream>& streams();

/// The context of the calling thread.
/// @return CUDA_SUCCESS, 201 when there is none, 709 when it was destroyed, or its failure().
CUresult current_context(std::shared_ptr<Context>* context);

/// The stream that a handle means: a created one, or one of the current context's default streams.
/// @return CUDA_SUCCESS, 400 for an unknown handle, or what current_context gives.
CUresult find_stream(CUstream handle, std::shared_ptr<Stream>* stream);

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
