#include "emulated_driver.hpp"

using namespace emulator_test;

namespace {

class EmulatedMemory : public Driver {
 protected:
  static CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr pointer = 0;
    EXPECT_EQ(EMULATED(cuMemAlloc)(&pointer, bytes), CUDA_SUCCESS);
    return pointer;
  }
  static void free_memory(CUdeviceptr pointer) {
    EXPECT_EQ(EMULATED(cuMemFree)(pointer), CUDA_SUCCESS);
  }
  template <typename Value>
  static Value attribute(CUpointer_attribute attribute, CUdeviceptr pointer) {
    Value value{};
    EXPECT_EQ(EMULATED(cuPointerGetAttribute)(&value, attribute, pointer), CUDA_SUCCESS);
    return value;
  }
};

}  // namespace

TEST_F(EmulatedMemory, AllocRefusesSizeZeroAndMoreThanThereIs) {
  CUdeviceptr pointer = 0;
  EXPECT_EQ(EMULATED(cuMemAlloc)(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAlloc)(nullptr, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAlloc)(&pointer, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(EMULATED(cuMemAlloc)(&pointer, size_t{1} << 45), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(EmulatedMemory, FreeTakesOnlyWhatAllocGave) {
  const CUdeviceptr pointer = allocate(8192);
  EXPECT_EQ(EMULATED(cuMemFree)(0), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemFree)(pointer + 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemFree)(4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemFreeHost)(reinterpret_cast<void*>(pointer)), CUDA_ERROR_INVALID_VALUE);
  free_memory(pointer);
  EXPECT_EQ(EMULATED(cuMemFree)(pointer), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedMemory, CallsNeedACurrentContext) {
  std::thread([] {
    CUdeviceptr pointer = 0;
    size_t free = 0;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    EXPECT_EQ(EMULATED(cuMemAlloc)(&pointer, 16), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(EMULATED(cuMemGetInfo)(&free, &free), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(EMULATED(cuStreamCreate)(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(EMULATED(cuEventCreate)(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext context = reinterpret_cast<CUcontext>(1);
    EXPECT_EQ(EMULATED(cuCtxGetCurrent)(&context), CUDA_SUCCESS);
    EXPECT_EQ(context, nullptr);
  }).join();
}

TEST_F(EmulatedMemory, AddressRangeOfAnInteriorPointerIsItsAllocation) {
  const CUdeviceptr plain = allocate(8192);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(EMULATED(cuMemGetAddressRange)(&base, &size, plain + 5000), CUDA_SUCCESS);
  EXPECT_EQ(base, plain);
  EXPECT_EQ(size, 8192U);
  const auto handle = create();
  const CUdeviceptr mapped = map_handle(handle);
  EXPECT_EQ(EMULATED(cuMemGetAddressRange)(&base, &size, mapped + granularity - 1), CUDA_SUCCESS);
  EXPECT_EQ(base, mapped);
  EXPECT_EQ(size, granularity);
  EXPECT_EQ(EMULATED(cuMemGetAddressRange)(&base, &size, 4096), CUDA_ERROR_NOT_FOUND);
  unmap_and_free(mapped);
  EXPECT_EQ(EMULATED(cuMemRelease)(handle), CUDA_SUCCESS);
  free_memory(plain);
}

TEST_F(EmulatedMemory, AttributesOfPlainMemory) {
  const CUdeviceptr pointer = allocate(8192);
  const CUdeviceptr inside = pointer + 100;
  EXPECT_EQ(attribute<unsigned int>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside),
            static_cast<unsigned int>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), 0);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), pointer);
  EXPECT_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), 8192U);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside), 1);
  EXPECT_EQ(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside), 0U);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside), 0);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, inside), context_);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
  EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside), nullptr);
  void* host = nullptr;
  EXPECT_EQ(EMULATED(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, inside),
            CUDA_ERROR_INVALID_VALUE);
  const auto first_id = attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside);
  free_memory(pointer);
  const CUdeviceptr next = allocate(8192);
  EXPECT_NE(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, next), first_id);
  free_memory(next);
}

TEST_F(EmulatedMemory, AttributesOfMappedMemory) {
  const auto handle = create(granularity, 1);
  const CUdeviceptr pointer = map_handle(handle, granularity, 0);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer), 0);
  EXPECT_EQ(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer),
            static_cast<unsigned long long>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer), 1);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, pointer), nullptr);
  ASSERT_EQ(EMULATED(cuMemUnmap)(pointer, granularity), CUDA_SUCCESS);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_MAPPED, pointer), 0);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(pointer, granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemRelease)(handle), CUDA_SUCCESS);
}

TEST_F(EmulatedMemory, AttributesOfAPointerThatIsNotTheDrivers) {
  int local = 0;
  const auto pointer = reinterpret_cast<CUdeviceptr>(&local);
  unsigned int type = 99;
  EXPECT_EQ(EMULATED(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer),
            CUDA_ERROR_INVALID_VALUE);
  unsigned long long id = 99;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* answers[] = {&type, &id};
  EXPECT_EQ(EMULATED(cuPointerGetAttributes)(2, wanted, answers, pointer), CUDA_SUCCESS);
  EXPECT_EQ(type, 0U);
  EXPECT_EQ(id, 0U);
}

TEST_F(EmulatedMemory, HostMemoryHasOneAddressForHostAndDevice) {
  void* host = nullptr;
  ASSERT_EQ(EMULATED(cuMemHostAlloc)(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  CUdeviceptr device = 0;
  EXPECT_EQ(EMULATED(cuMemHostGetDevicePointer)(&device, host, 0), CUDA_SUCCESS);
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host));
  EXPECT_EQ(attribute<unsigned int>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device),
            static_cast<unsigned int>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(attribute<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, device), host);
  EXPECT_EQ(EMULATED(cuMemsetD32)(device, 0x01020304, 1024), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<unsigned int*>(host)[1023], 0x01020304U);
  EXPECT_EQ(live().allocations, 1);
  EXPECT_EQ(EMULATED(cuMemFreeHost)(host), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemFreeHost)(host), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedMemory, CopiesMoveBytesInEveryDirection) {
  const CUdeviceptr first = allocate(8192);
  const CUdeviceptr second = allocate(8192);
  std::vector<unsigned char> in(8192);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<unsigned char>(i * 7);
  std::vector<unsigned char> out(8192);
  EXPECT_EQ(EMULATED(cuMemcpyHtoD)(first, in.data(), in.size()), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemcpyDtoD)(second, first, in.size()), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemcpyDtoH)(out.data(), second, out.size()), CUDA_SUCCESS);
  EXPECT_EQ(in, out);
  out.assign(8192, 0);
  EXPECT_EQ(EMULATED(cuMemcpy)(reinterpret_cast<CUdeviceptr>(out.data()), first, out.size()),
            CUDA_SUCCESS);
  EXPECT_EQ(in, out);
  EXPECT_EQ(EMULATED(cuMemsetD8)(first, 0x5a, 100), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemcpyDtoH)(out.data(), first, 101), CUDA_SUCCESS);
  EXPECT_EQ(out[99], 0x5a);
  EXPECT_EQ(out[100], in[100]);
  free_memory(first);
  free_memory(second);
}

TEST_F(EmulatedMemory, CopiesRefuseRangesThatAreNotAllMemory) {
  const CUdeviceptr pointer = allocate(8192);
  std::vector<char> host(16384);
  EXPECT_EQ(EMULATED(cuMemcpyHtoD)(pointer + 8000, host.data(), 1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemcpyDtoH)(host.data(), pointer + 1, 8192), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemsetD8)(pointer, 0, 8193), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemsetD32)(pointer + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemsetD32)(pointer, 0, SIZE_MAX), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemcpyHtoD)(4096, host.data(), 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemcpyDtoH)(host.data(), 0, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemcpyDtoH)(host.data(), pointer, 0), CUDA_SUCCESS);
  const auto handle = create();
  const CUdeviceptr address = reserve(2 * granularity);
  ASSERT_EQ(EMULATED(cuMemMap)(address, granularity, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(set_access(address, granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemcpyHtoD)(address + granularity - 8, host.data(), 16),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemcpyHtoD)(address + granularity - 16, host.data(), 16), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuMemcpy)(address + granularity, address, 16), CUDA_ERROR_INVALID_VALUE);
  unmap_and_free(address, 2 * granularity);
  EXPECT_EQ(EMULATED(cuMemRelease)(handle), CUDA_SUCCESS);
  free_memory(pointer);
}

TEST_F(EmulatedMemory, ACopyMayCrossMappingsThatAdjoin) {
  const auto first = create();
  const auto second = create();
  const CUdeviceptr address = reserve(2 * granularity);
  ASSERT_EQ(EMULATED(cuMemMap)(address, granularity, 0, first, 0), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuMemMap)(address + granularity, granularity, 0, second, 0), CUDA_SUCCESS);
  ASSERT_EQ(set_access(address, 2 * granularity), CUDA_SUCCESS);
  char host[64] = {};
  EXPECT_EQ(EMULATED(cuMemcpyHtoD)(address + granularity - 32, host, 64), CUDA_SUCCESS);
  unmap_and_free(address, 2 * granularity);
  EXPECT_EQ(EMULATED(cuMemRelease)(first), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemRelease)(second), CUDA_SUCCESS);
}

TEST_F(EmulatedMemory, TheLastReleaseOfAPrimaryContextTakesItsMemory) {
  CUcontext context = nullptr;
  ASSERT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(&context, 2), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuCtxPushCurrent)(context), CUDA_SUCCESS);
  const CUdeviceptr pointer = allocate(4096);
  CUstream stream = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(EMULATED(cuStreamCreate)(&stream, 0), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuEventCreate)(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer), 2);
  unsigned int flags = 0;
  int active = 0;
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxGetState)(2, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  ASSERT_EQ(EMULATED(cuDevicePrimaryCtxRelease)(2), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxGetState)(2, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRelease)(2), CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr none = 0;
  EXPECT_EQ(EMULATED(cuMemAlloc)(&none, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(EMULATED(cuStreamDestroy)(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuEventDestroy)(event), CUDA_ERROR_INVALID_HANDLE);
  CUcontext popped = nullptr;
  EXPECT_EQ(EMULATED(cuCtxPopCurrent)(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, context);
}

TEST_F(EmulatedMemory, ACreatedContextIsCurrentUntilItIsDestroyed) {
  CUcontext context = nullptr;
  auto* create_context = symbol<CUresult(CUcontext*, unsigned int, CUdevice)>("cuCtxCreate_v2");
  ASSERT_EQ(create_context(&context, 0, 3), CUDA_SUCCESS);
  CUdevice device = -1;
  EXPECT_EQ(EMULATED(cuCtxGetDevice)(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 3);
  allocate(4096);
  EXPECT_EQ(EMULATED(cuCtxDestroy)(context), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuCtxDestroy)(context), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(EMULATED(cuCtxGetDevice)(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(EMULATED(cuCtxPushCurrent)(context), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(EmulatedMemory, PeerAccessIsEnabledOnceAndOnlyWherePossible) {
  CUcontext peer = nullptr;
  ASSERT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(&peer, 1), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuCtxEnablePeerAccess)(peer, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuCtxDisablePeerAccess)(peer), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(EMULATED(cuCtxEnablePeerAccess)(peer, 0), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuCtxEnablePeerAccess)(peer, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(EMULATED(cuCtxDisablePeerAccess)(peer), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuCtxEnablePeerAccess)(context_, 0), CUDA_ERROR_INVALID_DEVICE);
  ASSERT_EQ(CONTROL(pt_emulator_set_peer_access)(0, 1, 0), 0);
  EXPECT_EQ(EMULATED(cuCtxEnablePeerAccess)(peer, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  ASSERT_EQ(CONTROL(pt_emulator_set_peer_access)(0, 1, 1), 0);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRelease)(1), CUDA_SUCCESS);
}
