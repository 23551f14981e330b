#include "event.hpp"
#include "gate.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

HandleTable<CUevent, Event>& events() {
  static auto* table = new HandleTable<CUevent, Event>;
  return *table;
}

namespace {

CUresult create_event(CUevent* event, unsigned int flags) {
  constexpr unsigned int known =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (!event || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  *event = events().add(std::make_shared<Event>(std::move(context), flags));
  return CUDA_SUCCESS;
}

// Work that notes the time when it runs, and the recording that reads it.
std::pair<Work, Recording> timed_work() {
  Recording recording;
  recording.time = std::make_shared<std::atomic<std::chrono::steady_clock::time_point>>();
  Work work;
  work.action = [time = recording.time] { time->store(std::chrono::steady_clock::now()); };
  return {std::move(work), std::move(recording)};
}

CUresult record(CUevent handle, CUstream stream_handle) {
  const auto event = events().find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(stream_handle, &stream); result != CUDA_SUCCESS) return result;
  if (event->context() != stream->context()) return CUDA_ERROR_INVALID_HANDLE;
  auto [work, recording] = timed_work();
  recording.point = stream->context()->submit(stream, std::move(work));
  event->set_recording(std::move(recording));
  return CUDA_SUCCESS;
}

CUresult record_context(CUcontext context_handle, CUevent handle) {
  std::shared_ptr<Context> context = contexts().find(context_handle);
  if (!context_handle) {
    if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  }
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const auto event = events().find(handle);
  if (!event || event->context() != context) return CUDA_ERROR_INVALID_HANDLE;
  auto [work, recording] = timed_work();
  recording.point = context->submit_after_all(std::move(work));
  event->set_recording(std::move(recording));
  return CUDA_SUCCESS;
}

CUresult query(CUevent handle) {
  const auto event = events().find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (!event->recording().point.reached()) return CUDA_ERROR_NOT_READY;
  return event->context()->failure();
}

CUresult synchronize(CUevent handle) {
  const auto event = events().find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  event->recording().point.wait();
  return event->context()->failure();
}

CUresult elapsed_time(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  const auto start = events().find(start_handle);
  const auto end = events().find(end_handle);
  if (!start || !end || !start->timed() || !end->timed() || start->context() != end->context()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const Recording first = start->recording();
  const Recording second = end->recording();
  if (!first.time || !second.time) return CUDA_ERROR_INVALID_HANDLE;
  if (!first.point.reached() || !second.point.reached()) return CUDA_ERROR_NOT_READY;
  *milliseconds =
      std::chrono::duration<float, std::milli>(second.time->load() - first.time->load()).count();
  return CUDA_SUCCESS;
}

CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned int flags) {
  if ((flags & ~static_cast<unsigned int>(CU_EVENT_WAIT_EXTERNAL)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(stream_handle, &stream); result != CUDA_SUCCESS) return result;
  const auto event = events().find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  Work work;
  work.after.push_back(event->recording().point);
  stream->context()->submit(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuEventCreate), [&] { return create_event(event, flags); });
}

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  return gate(PARALLEL_TENSOR_CALL(cuEventDestroy),
              [&] { return events().take(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuEventRecord), [&] { return record(event, stream); });
}

CUresult CUDAAPI cuCtxRecordEvent(CUcontext context, CUevent event) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxRecordEvent),
              [&] { return record_context(context, event); });
}

CUresult CUDAAPI cuEventQuery(CUevent event) {
  return gate(PARALLEL_TENSOR_CALL(cuEventQuery), [&] { return query(event); });
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  return gate(PARALLEL_TENSOR_CALL(cuEventSynchronize), [&] { return synchronize(event); });
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return gate(PARALLEL_TENSOR_CALL(cuEventElapsedTime),
              [&] { return elapsed_time(milliseconds, start, end); });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamWaitEvent),
              [&] { return wait_event(stream, event, flags); });
}
