// Legacy IPC between real processes. Nothing here may initialise the driver in the parent.
#include <csignal>

#include "emulated_driver.hpp"

using namespace emulator_test;

namespace {

struct Message {
  CUipcMemHandle handle;
  size_t offset;
};

CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr pointer = 0;
  REQUIRE(EMULATED(cuMemAlloc)(&pointer, bytes) == CUDA_SUCCESS);
  return pointer;
}

CUresult open_handle(CUdeviceptr* pointer, const CUipcMemHandle& handle,
                     unsigned int flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
  return EMULATED(cuIpcOpenMemHandle)(pointer, handle, flags);
}

}  // namespace

TEST(EmulatedIpc, APeerReadsAndWritesTheMemoryAndReadsOnAfterTheOwnersFree) {
  Channel channel;
  Child owner([&] {
    start_driver(0);
    const CUdeviceptr pointer = allocate(8192);
    bytes_at(pointer)[5000] = 42;
    Message message{};
    message.offset = 5000;
    REQUIRE(EMULATED(cuIpcGetMemHandle)(&message.handle, pointer + 5000) == CUDA_SUCCESS);
    channel.send(0, &message, sizeof message);
    channel.await(0);
    REQUIRE(bytes_at(pointer)[0] == 43);
    REQUIRE(EMULATED(cuMemFree)(pointer) == CUDA_SUCCESS);
    channel.signal(0);
    channel.await(0);
    return 0;
  });
  Child peer([&] {
    start_driver(1);
    Message message{};
    channel.receive(1, &message, sizeof message);
    CUdeviceptr base = 0;
    REQUIRE(open_handle(&base, message.handle) == CUDA_SUCCESS);
    REQUIRE(bytes_at(base)[message.offset] == 42);
    bytes_at(base)[0] = 43;
    CUdeviceptr again = 0;
    REQUIRE(open_handle(&again, message.handle) == CUDA_SUCCESS);
    CUdeviceptr range = 0;
    size_t size = 0;
    REQUIRE(EMULATED(cuMemGetAddressRange)(&range, &size, base + 5000) == CUDA_SUCCESS);
    REQUIRE(range == base && size == 8192);
    int ordinal = -1;
    REQUIRE(EMULATED(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base) ==
            CUDA_SUCCESS);
    REQUIRE(ordinal == 0);
    REQUIRE(live().mappings == 1 && live().allocations == 0 && live().fds == 0);
    channel.signal(1);
    channel.await(1);
    REQUIRE(bytes_at(base)[5000] == 42);
    CUdeviceptr none = 0;
    REQUIRE(EMULATED(cuMemFree)(base) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(EMULATED(cuIpcCloseMemHandle)(base) == CUDA_SUCCESS);
    REQUIRE(EMULATED(cuIpcCloseMemHandle)(base) == CUDA_SUCCESS);
    REQUIRE(EMULATED(cuIpcCloseMemHandle)(base) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(open_handle(&none, message.handle) == CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(live().mappings == 0);
    channel.signal(1);
    return 0;
  });
  EXPECT_EQ(owner.wait(), 0);
  EXPECT_EQ(peer.wait(), 0);
}

TEST(EmulatedIpc, HandlesAreRefusedWhereTheyCannotWork) {
  Child child([] {
    start_driver();
    const CUdeviceptr pointer = allocate(4096);
    CUipcMemHandle handle{};
    CUdeviceptr opened = 0;
    REQUIRE(open_handle(&opened, handle) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(EMULATED(cuIpcGetMemHandle)(&handle, pointer) == CUDA_SUCCESS);
    REQUIRE(open_handle(&opened, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(open_handle(&opened, handle) == CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(EMULATED(cuIpcCloseMemHandle)(pointer) == CUDA_ERROR_INVALID_VALUE);
    const auto generic = create();
    const CUdeviceptr mapped = map_handle(generic);
    REQUIRE(EMULATED(cuIpcGetMemHandle)(&handle, mapped) == CUDA_ERROR_INVALID_VALUE);
    void* host = nullptr;
    REQUIRE(EMULATED(cuMemHostAlloc)(&host, 4096, 0) == CUDA_SUCCESS);
    REQUIRE(EMULATED(cuIpcGetMemHandle)(&handle, reinterpret_cast<CUdeviceptr>(host)) ==
            CUDA_ERROR_INVALID_VALUE);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(EmulatedIpc, ADeviceThatDoesNotReachTheOwnersIsRefused) {
  Channel channel;
  Child owner([&] {
    start_driver(0);
    Message message{};
    REQUIRE(EMULATED(cuIpcGetMemHandle)(&message.handle, allocate(4096)) == CUDA_SUCCESS);
    channel.send(0, &message, sizeof message);
    channel.await(0);
    return 0;
  });
  Child peer([&] {
    start_driver(1);
    REQUIRE(CONTROL(pt_emulator_set_peer_access)(0, 1, 0) == 0);
    Message message{};
    channel.receive(1, &message, sizeof message);
    CUdeviceptr opened = 0;
    REQUIRE(open_handle(&opened, message.handle) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    REQUIRE(live().mappings == 0);
    channel.signal(1);
    return 0;
  });
  EXPECT_EQ(peer.wait(), 0);
  EXPECT_EQ(owner.wait(), 0);
}

TEST(EmulatedIpc, AHandleOfADeadProcessIsRefusedAndAnOpenOneStaysReadable) {
  Channel channel;
  Child owner([&] {
    start_driver(0);
    const CUdeviceptr pointer = allocate(4096);
    bytes_at(pointer)[1] = 17;
    Message message{};
    REQUIRE(EMULATED(cuIpcGetMemHandle)(&message.handle, pointer) == CUDA_SUCCESS);
    channel.send(0, &message, sizeof message);
    channel.await(0);  // never comes
    return 1;
  });
  Channel to_parent;
  Child peer([&] {
    start_driver(0);
    Message message{};
    channel.receive(1, &message, sizeof message);
    CUdeviceptr opened = 0;
    REQUIRE(open_handle(&opened, message.handle) == CUDA_SUCCESS);
    to_parent.signal(0);
    to_parent.await(0);
    REQUIRE(bytes_at(opened)[1] == 17);
    REQUIRE(EMULATED(cuIpcCloseMemHandle)(opened) == CUDA_SUCCESS);
    REQUIRE(open_handle(&opened, message.handle) == CUDA_ERROR_INVALID_HANDLE);
    return 0;
  });
  to_parent.await(1);
  kill(owner.pid(), SIGKILL);
  EXPECT_EQ(owner.wait(), -SIGKILL);
  to_parent.signal(1);
  EXPECT_EQ(peer.wait(), 0);
}

TEST(EmulatedIpc, LegacyAndDescriptorSharingWorkBetweenTheSameTwoProcesses) {
  Channel channel;
  Child owner([&] {
    start_driver(0);
    const CUdeviceptr plain = allocate(4096);
    const auto generic = create();
    const CUdeviceptr mapped = map_handle(generic);
    bytes_at(plain)[0] = 1;
    bytes_at(mapped)[0] = 2;
    Message message{};
    REQUIRE(EMULATED(cuIpcGetMemHandle)(&message.handle, plain) == CUDA_SUCCESS);
    const int descriptor = export_descriptor(generic);
    channel.send(0, &message, sizeof message, descriptor);
    close(descriptor);
    channel.await(0);
    return 0;
  });
  Child peer([&] {
    start_driver(3);
    Message message{};
    const int descriptor = channel.receive(1, &message, sizeof message);
    CUdeviceptr plain = 0;
    REQUIRE(open_handle(&plain, message.handle) == CUDA_SUCCESS);
    CUmemGenericAllocationHandle generic = 0;
    REQUIRE(import_descriptor(descriptor, &generic) == CUDA_SUCCESS);
    close(descriptor);
    const CUdeviceptr mapped = map_handle(generic, granularity, 3);
    REQUIRE(bytes_at(plain)[0] == 1 && bytes_at(mapped)[0] == 2);
    channel.signal(1);
    return 0;
  });
  EXPECT_EQ(owner.wait(), 0);
  EXPECT_EQ(peer.wait(), 0);
}
