#include "context.hpp"
#include "devices.hpp"
#include "gate.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

CUresult can_access(int* possible, CUdevice device, CUdevice peer) {
  if (!possible) return CUDA_ERROR_INVALID_VALUE;
  auto& devices = Devices::instance();
  if (!devices.valid(device) || !devices.valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *possible = device != peer && devices.reaches(device, peer) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult enable(CUcontext peer_handle, unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  const auto peer = contexts().find(peer_handle);
  if (!peer || !peer->alive()) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->device() == context->device()) return CUDA_ERROR_INVALID_DEVICE;
  if (!Devices::instance().reaches(context->device(), peer->device())) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  return context->enable_peer(peer_handle) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult disable(CUcontext peer_handle) {
  std::shared_ptr<Context> context;
  if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
  if (!contexts().find(peer_handle)) return CUDA_ERROR_INVALID_CONTEXT;
  return context->disable_peer(peer_handle) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // namespace
}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuDeviceCanAccessPeer(int* possible, CUdevice device, CUdevice peer) {
  return gate(PARALLEL_TENSOR_CALL(cuDeviceCanAccessPeer),
              [&] { return can_access(possible, device, peer); });
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxEnablePeerAccess), [&] { return enable(peer, flags); });
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxDisablePeerAccess), [&] { return disable(peer); });
}
