#include "context.hpp"

#include <algorithm>

#include "thread_state.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
HandleTable<CUcontext, Context>& contexts() {
  static auto* table = new HandleTable<CUcontext, Context>;
  return *table;
}

HandleTable<CUstream, Stream>& streams() {
  static auto* table = new HandleTable<CUstream, Stream>;
  return *table;
}

void Context::forget_ended_streams() {
  std::erase_if(streams_, [](const auto& stream) { return stream->closed() && stream->idle(); });
}

std::shared_ptr<Stream> Context::add_stream(unsigned int flags) {
  forget_ended_streams();
  streams_.push_back(std::make_shared<Stream>(shared_from_this(), flags));
  return streams_.back();
}

std::shared_ptr<Stream> Context::create_stream(unsigned int flags) {
  std::lock_guard lock(mutex_);
  return add_stream(flags);
}

std::shared_ptr<Stream> Context::legacy_stream() {
  std::lock_guard lock(mutex_);
  if (!legacy_) legacy_ = add_stream(CU_STREAM_DEFAULT);
  return legacy_;
}

std::shared_ptr<Stream> Context::thread_stream() {
  auto& stream = thread_state().streams[handle_];
  if (!stream || stream->closed()) stream = create_stream(CU_STREAM_DEFAULT);
  return stream;
}

Point Context::submit(const std::shared_ptr<Stream>& stream, Work work) {
  std::lock_guard lock(mutex_);
  if (stream == legacy_) {
    for (const auto& other : streams_) {
      if (other != stream && other->blocking() && !other->idle())
        work.after.push_back(other->last());
    }
  } else if (stream->blocking() && legacy_ && !legacy_->idle()) {
    work.after.push_back(legacy_->last());
  }
  return stream->push(std::move(work));
}

Point Context::submit_after_all(Work work) {
  std::lock_guard lock(mutex_);
  if (!marker_) marker_ = add_stream(CU_STREAM_NON_BLOCKING);
  for (const auto& other : streams_) {
    if (other != marker_ && !other->idle()) work.after.push_back(other->last());
  }
  return marker_->push(std::move(work));
}

std::vector<Point> Context::pending(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(mutex_);
  std::vector<Point> points{stream->last()};
  if (stream == legacy_) {
    for (const auto& other : streams_) {
      if (other != stream && other->blocking()) points.push_back(other->last());
    }
  }
  return points;
}

CUresult Context::synchronize() {
  std::vector<Point> points;
  {
    std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) points.push_back(stream->last());
  }
  for (const auto& point : points) point.wait();
  return failure();
}

void Context::close_streams() {
  std::vector<std::shared_ptr<Stream>> closing;
  {
    std::lock_guard lock(mutex_);
    closing.swap(streams_);
    legacy_.reset();
    marker_.reset();
    peers_.clear();
  }
  for (const auto& stream : closing) stream->close();
}

bool Context::enable_peer(CUcontext peer) {
  std::lock_guard lock(mutex_);
  return peers_.insert(peer).second;
}

bool Context::disable_peer(CUcontext peer) {
  std::lock_guard lock(mutex_);
  return peers_.erase(peer) == 1;
}

CUresult find_stream(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    std::shared_ptr<Context> context;
    if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
    *stream = handle == CU_STREAM_PER_THREAD ? context->thread_stream() : context->legacy_stream();
    return CUDA_SUCCESS;
  }
  *stream = streams().find(handle);
  if (!*stream) return CUDA_ERROR_INVALID_HANDLE;
  return (*stream)->context()->failure();
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
