#include "context.hpp"
#include "gate.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

CUresult create_stream(CUstream* stream, unsigned int flags) {
  if (!stream || (flags & ~static_cast<unsigned int>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  *stream = streams().add(context->create_stream(flags));
  return CUDA_SUCCESS;
}

CUresult synchronize(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(handle, &stream); result != CUDA_SUCCESS) return result;
  for (const auto& point : stream->context()->pending(stream)) point.wait();
  return stream->context()->failure();
}

CUresult query(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(handle, &stream); result != CUDA_SUCCESS) return result;
  for (const auto& point : stream->context()->pending(stream)) {
    if (!point.reached()) return CUDA_ERROR_NOT_READY;
  }
  return stream->context()->failure();
}

CUresult launch_host_function(CUstream handle, CUhostFn function, void* data) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(handle, &stream); result != CUDA_SUCCESS) return result;
  Work work;
  work.action = [function, data] { function(data); };
  stream->context()->submit(stream, std::move(work));
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult result = find_stream(handle, &stream); result != CUDA_SUCCESS) return result;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (id) *id = 0;
  return CUDA_SUCCESS;
}

CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, current);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamCreate), [&] { return create_stream(stream, flags); });
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamCreateWithPriority),
              [&] { return create_stream(stream, flags); });
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamDestroy), [&] {
    const auto stream = streams().take(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    stream->close();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamSynchronize), [&] { return synchronize(stream); });
}

CUresult CUDAAPI cuStreamQuery(CUstream stream) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamQuery), [&] { return query(stream); });
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamIsCapturing),
              [&] { return capture_info(stream, status, nullptr); });
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                           cuuint64_t* id, CUgraph*, const CUgraphNode**, size_t*) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamGetCaptureInfo),
              [&] { return capture_info(stream, status, id); });
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                           cuuint64_t* id, CUgraph*, const CUgraphNode**,
                                           const CUgraphEdgeData**, size_t*) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamGetCaptureInfo),
              [&] { return capture_info(stream, status, id); });
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return gate(PARALLEL_TENSOR_CALL(cuStreamGetCtx), [&] {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Stream> stream;
    if (CUresult result = find_stream(handle, &stream); result != CUDA_SUCCESS) return result;
    *context = stream->context()->handle();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return gate(PARALLEL_TENSOR_CALL(cuLaunchHostFunc),
              [&] { return launch_host_function(stream, function, data); });
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return gate(PARALLEL_TENSOR_CALL(cuThreadExchangeStreamCaptureMode),
              [&] { return exchange_capture_mode(mode); });
}
