// Primary contexts, created contexts and the stack of current ones.
#include <vector>

#include "context.hpp"
#include "devices.hpp"
#include "event.hpp"
#include "gate.hpp"
#include "memory.hpp"
#include "thread_state.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

struct PrimaryContext {
  std::shared_ptr<Context> context;  // kept from one retain to the next, as its handle is
  unsigned int retains = 0;
};

struct PrimaryContexts {
  std::mutex mutex;
  std::vector<PrimaryContext> by_device;
};

PrimaryContexts& primary_contexts() {
  static PrimaryContexts* contexts = [] {
    auto* created = new PrimaryContexts;
    created->by_device.resize(static_cast<size_t>(Devices::instance().count()));
    return created;
  }();
  return *contexts;
}

std::vector<std::shared_ptr<Context>>& context_stack() { return thread_state().contexts; }

std::shared_ptr<Context> create_context(int device) {
  auto context = std::make_shared<Context>(device);
  context->set_handle(contexts().add(context));
  return context;
}

// Everything that belongs to the context goes with it, after its work is done.
void destroy_contents(Context& context) {
  context.synchronize();
  events().take_if([&](const Event& event) { return event.context().get() == &context; });
  streams().take_if([&](const Stream& stream) { return stream.context().get() == &context; });
  context.close_streams();
  Memory::instance().release_context(context);
  context.fail(CUDA_SUCCESS);
}

CUresult retain_primary(CUcontext* context, CUdevice device) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  auto& primaries = primary_contexts();
  std::lock_guard lock(primaries.mutex);
  auto& primary = primaries.by_device[static_cast<size_t>(device)];
  if (!primary.context) primary.context = create_context(device);
  primary.context->set_alive(true);
  ++primary.retains;
  *context = primary.context->handle();
  return CUDA_SUCCESS;
}

CUresult release_primary(CUdevice device) {
  if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  auto& primaries = primary_contexts();
  std::unique_lock lock(primaries.mutex);
  auto& primary = primaries.by_device[static_cast<size_t>(device)];
  if (primary.retains == 1) {
    // Its kernels may wait for what another thread does next, and that thread may need this lock.
    const auto context = primary.context;
    lock.unlock();
    context->synchronize();
    lock.lock();
  }
  if (primary.retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.retains == 0) {
    primary.context->set_alive(false);
    destroy_contents(*primary.context);
  }
  return CUDA_SUCCESS;
}

CUresult primary_state(CUdevice device, unsigned int* flags, int* active) {
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  auto& primaries = primary_contexts();
  std::lock_guard lock(primaries.mutex);
  *flags = 0;
  *active = primaries.by_device[static_cast<size_t>(device)].retains > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult create(CUcontext* context, unsigned int flags, CUdevice device) {
  constexpr unsigned int known_flags = 0x1ff;
  if (!context || (flags & ~known_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!Devices::instance().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  context_stack().push_back(create_context(device));
  *context = context_stack().back()->handle();
  return CUDA_SUCCESS;
}

bool is_primary(const Context& context) {
  auto& primaries = primary_contexts();
  std::lock_guard lock(primaries.mutex);
  return primaries.by_device[static_cast<size_t>(context.device())].context.get() == &context;
}

CUresult destroy(CUcontext handle) {
  const auto context = contexts().find(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (is_primary(*context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!contexts().take(handle)) return CUDA_ERROR_INVALID_CONTEXT;  // another thread was first
  context->set_alive(false);
  destroy_contents(*context);
  auto& stack = context_stack();
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult set_current(CUcontext handle) {
  auto& stack = context_stack();
  if (!handle) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  auto context = contexts().find(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) {
    stack.push_back(std::move(context));
  } else {
    stack.back() = std::move(context);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult current_context(std::shared_ptr<Context>* context) {
  const auto& stack = context_stack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.back()->alive()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = stack.back();
  return (*context)->failure();
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor

using namespace parallel_tensor::emulator;

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuDevicePrimaryCtxRetain),
              [&] { return retain_primary(context, device); });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuDevicePrimaryCtxRelease),
              [&] { return release_primary(device); });
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  return gate(PARALLEL_TENSOR_CALL(cuDevicePrimaryCtxGetState),
              [&] { return primary_state(device, flags, active); });
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxCreate), [&] { return create(context, flags, device); });
}

#if CUDA_VERSION >= 12050
CUresult CUDAAPI cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned int flags,
                                CUdevice device) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxCreate), [&] { return create(context, flags, device); });
}
#endif

CUresult CUDAAPI cuCtxDestroy(CUcontext context) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxDestroy), [&] { return destroy(context); });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxGetCurrent), [&] {
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = context_stack().empty() ? nullptr : context_stack().back()->handle();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxSetCurrent), [&] { return set_current(context); });
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxPushCurrent), [&] {
    auto context = contexts().find(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack().push_back(std::move(context));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxPopCurrent), [&] {
    if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = context_stack().back()->handle();
    context_stack().pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxGetDevice), [&] {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = context_stack().back()->device();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return gate(PARALLEL_TENSOR_CALL(cuCtxSynchronize), [&] {
    std::shared_ptr<Context> context;
    if (CUresult result = current_context(&context); result != CUDA_SUCCESS) return result;
    return context->synchronize();
  });
}
