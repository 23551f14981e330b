// Sharing by descriptors between real processes, forks and the process's end. Nothing here may
// initialise the driver in the parent.
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "emulated_driver.hpp"

using namespace emulator_test;

TEST(EmulatedProcesses, APeerSeesTheBytesAndReadsOnAfterTheOwnerReleased) {
  Channel channel;
  Child owner([&] {
    start_driver(0);
    const auto handle = create();
    const CUdeviceptr address = map_handle(handle);
    bytes_at(address)[777] = 77;
    const int descriptor = export_descriptor(handle);
    channel.send(0, "d", 1, descriptor);
    close(descriptor);
    channel.await(0);
    REQUIRE(bytes_at(address)[778] == 78);
    unmap_and_free(address);
    REQUIRE(EMULATED(cuMemRelease)(handle) == CUDA_SUCCESS);
    REQUIRE(live().allocations == 0 && live().fds == 0);
    channel.signal(0);
    return 0;
  });
  Child peer([&] {
    start_driver(1);
    char byte = 0;
    const int descriptor = channel.receive(1, &byte, 1);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(import_descriptor(descriptor, &handle) == CUDA_SUCCESS);
    close(descriptor);
    CUmemAllocationProp properties{};
    REQUIRE(EMULATED(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) == CUDA_SUCCESS);
    REQUIRE(properties.location.id == 0);
    const CUdeviceptr address = map_handle(handle, granularity, 1);
    REQUIRE(bytes_at(address)[777] == 77);
    bytes_at(address)[778] = 78;
    REQUIRE(live().allocations == 0 && live().handles == 1 && live().mappings == 1);
    channel.signal(1);
    channel.await(1);
    REQUIRE(bytes_at(address)[777] == 77);
    int again = -1;
    REQUIRE(EMULATED(cuMemExportToShareableHandle)(&again, handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                   0) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(EMULATED(cuMemRelease)(handle) == CUDA_SUCCESS);
    unmap_and_free(address);
    return 0;
  });
  EXPECT_EQ(owner.wait(), 0);
  EXPECT_EQ(peer.wait(), 0);
}

TEST(EmulatedProcesses, APeerReadsOnAfterTheOwnerWasKilled) {
  Channel channel;
  Child owner([&] {
    start_driver(0);
    const auto handle = create();
    bytes_at(map_handle(handle))[9] = 9;
    channel.send(0, "d", 1, export_descriptor(handle));
    channel.await(0);  // never comes
    return 1;
  });
  Channel to_parent;
  Child peer([&] {
    start_driver(0);
    char byte = 0;
    const int descriptor = channel.receive(1, &byte, 1);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(import_descriptor(descriptor, &handle) == CUDA_SUCCESS);
    close(descriptor);
    const CUdeviceptr address = map_handle(handle);
    to_parent.signal(0);
    to_parent.await(0);
    REQUIRE(bytes_at(address)[9] == 9);
    return 0;
  });
  to_parent.await(1);
  kill(owner.pid(), SIGKILL);
  EXPECT_EQ(owner.wait(), -SIGKILL);
  to_parent.signal(1);
  EXPECT_EQ(peer.wait(), 0);
}

TEST(EmulatedProcesses, APeerThatDoesNotSeeTheOwnersDeviceCanMapItsMemory) {
  Channel channel;
  Child owner([&] {
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    start_driver(0);
    const auto handle = create();
    bytes_at(map_handle(handle))[3] = 33;
    channel.send(0, "d", 1, export_descriptor(handle));
    channel.await(0);
    return 0;
  });
  Child peer([&] {
    setenv("CUDA_VISIBLE_DEVICES", "5", 1);
    start_driver(0);
    char byte = 0;
    const int descriptor = channel.receive(1, &byte, 1);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(import_descriptor(descriptor, &handle) == CUDA_SUCCESS);
    const CUdeviceptr address = map_handle(handle);
    REQUIRE(bytes_at(address)[3] == 33);
    channel.signal(1);
    return 0;
  });
  EXPECT_EQ(owner.wait(), 0);
  EXPECT_EQ(peer.wait(), 0);
}

TEST(EmulatedProcesses, CallsBeforeInitAreRefusedButNamesAreKnown) {
  Child child([] {
    int count = 0;
    REQUIRE(EMULATED(cuDeviceGetCount)(&count) == CUDA_ERROR_NOT_INITIALIZED);
    const char* name = nullptr;
    REQUIRE(EMULATED(cuGetErrorName)(CUDA_ERROR_NOT_INITIALIZED, &name) == CUDA_SUCCESS);
    REQUIRE(std::string(name) == "CUDA_ERROR_NOT_INITIALIZED");
    int version = 0;
    REQUIRE(EMULATED(cuDriverGetVersion)(&version) == CUDA_SUCCESS && version == 13000);
    REQUIRE(CONTROL(pt_emulator_set_memory)(0, 1) == CUDA_ERROR_NOT_INITIALIZED);
    REQUIRE(EMULATED(cuInit)(1) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(EMULATED(cuInit)(0) == CUDA_SUCCESS);
    REQUIRE(EMULATED(cuInit)(0) == CUDA_SUCCESS);
    REQUIRE(EMULATED(cuDeviceGetCount)(&count) == CUDA_SUCCESS && count == 8);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(EmulatedProcesses, EveryCallInAForkedChildIsRefusedAndTheParentGoesOn) {
  Child child([] {
    start_driver();
    const auto handle = create();
    const CUdeviceptr address = map_handle(handle);
    CUstream stream = nullptr;
    REQUIRE(EMULATED(cuStreamCreate)(&stream, 0) == CUDA_SUCCESS);
    StreamLock lock;
    lock.hold(stream);
    StreamLock thread_lock;
    thread_lock.hold(CU_STREAM_PER_THREAD);
    Child forked([&] {
      CUcontext context = nullptr;
      char host[8] = {};
      pt_emulator_counts counts{};
      REQUIRE(EMULATED(cuInit)(0) == CUDA_ERROR_NOT_INITIALIZED);
      REQUIRE(EMULATED(cuCtxGetCurrent)(&context) == CUDA_ERROR_NOT_INITIALIZED);
      REQUIRE(EMULATED(cuMemcpyDtoH)(host, address, 8) == CUDA_ERROR_NOT_INITIALIZED);
      REQUIRE(EMULATED(cuMemUnmap)(address, granularity) == CUDA_ERROR_NOT_INITIALIZED);
      REQUIRE(EMULATED(cuMemRelease)(handle) == CUDA_ERROR_NOT_INITIALIZED);
      REQUIRE(EMULATED(cuStreamSynchronize)(stream) == CUDA_ERROR_NOT_INITIALIZED);
      REQUIRE(EMULATED(cuCtxSynchronize)() == CUDA_ERROR_NOT_INITIALIZED);
      REQUIRE(CONTROL(pt_emulator_live)(&counts) == CUDA_ERROR_NOT_INITIALIZED);
      const char* name = nullptr;
      REQUIRE(EMULATED(cuGetErrorName)(CUDA_ERROR_NOT_INITIALIZED, &name) == CUDA_SUCCESS);
      return 0;  // through exit(), with the parent's exit handlers
    });
    REQUIRE(forked.wait() == 0);
    lock.open();
    thread_lock.open();
    REQUIRE(EMULATED(cuStreamSynchronize)(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    REQUIRE(EMULATED(cuStreamSynchronize)(stream) == CUDA_SUCCESS);
    bytes_at(address)[0] = 1;
    unmap_and_free(address);
    REQUIRE(EMULATED(cuMemRelease)(handle) == CUDA_SUCCESS);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(EmulatedProcesses, ExitWithPendingWorkAndLiveObjectsNeitherHangsNorCrashes) {
  Child child([] {
    start_driver();
    static StreamLock lock;
    CUstream stream = nullptr;
    REQUIRE(EMULATED(cuStreamCreate)(&stream, 0) == CUDA_SUCCESS);
    lock.hold(stream);
    lock.hold(nullptr);
    lock.hold(CU_STREAM_PER_THREAD);
    map_handle(create());
    return 5;
  });
  EXPECT_EQ(child.wait(), 5);
}

TEST(EmulatedProcesses, ExitHandlersMayStillCallTheDriver) {
  Child child([] {
    std::atexit([] {
      CUdeviceptr pointer = 0;
      REQUIRE(EMULATED(cuMemAlloc)(&pointer, 4096) == CUDA_SUCCESS);
      REQUIRE(EMULATED(cuMemsetD8Async)(pointer, 0, 4096, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
      REQUIRE(EMULATED(cuCtxSynchronize)() == CUDA_SUCCESS);
      REQUIRE(EMULATED(cuMemFree)(pointer) == CUDA_SUCCESS);
      std::fflush(nullptr);
      _exit(7);
    });
    start_driver();
    return 0;
  });
  EXPECT_EQ(child.wait(), 7);
}

TEST(EmulatedProcesses, ALeakReportNamesWhatIsAliveAndFatalEndsTheProcess) {
  const struct {
    const char* mode;
    bool leak;
    int status;
  } cases[] = {{"report", true, 0}, {"fatal", true, 23}, {"fatal", false, 0}, {"", true, 0}};
  for (const auto& one : cases) {
    int output[2];
    ASSERT_EQ(pipe(output), 0);
    Child child([&] {
      setenv("PARALLEL_TENSOR_EMULATED_LEAKS", one.mode, 1);
      dup2(output[1], STDERR_FILENO);
      close(output[0]);
      start_driver();
      const auto handle = create();
      if (!one.leak) REQUIRE(EMULATED(cuMemRelease)(handle) == CUDA_SUCCESS);
      return 0;
    });
    close(output[1]);
    std::string text;
    char buffer[512];
    for (ssize_t n; (n = read(output[0], buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    close(output[0]);
    EXPECT_EQ(child.wait(), one.status) << one.mode;
    const bool reports = one.leak && *one.mode;
    EXPECT_EQ(text.find("1 handles") != std::string::npos, reports) << one.mode << ": " << text;
    EXPECT_EQ(text.find("1 allocations") != std::string::npos, reports) << text;
  }
}

TEST(EmulatedProcesses, ADescriptorThatIsStillOpenKeepsTheMemory) {
  Channel channel;
  Child owner([&] {
    start_driver(0);
    const auto handle = create();
    const CUdeviceptr address = map_handle(handle);
    bytes_at(address)[4] = 44;
    const int descriptor = export_descriptor(handle);
    unmap_and_free(address);
    REQUIRE(EMULATED(cuMemRelease)(handle) == CUDA_SUCCESS);
    channel.send(0, "d", 1, descriptor);
    return 0;
  });
  EXPECT_EQ(owner.wait(), 0);
  Child peer([&] {
    start_driver(0);
    char byte = 0;
    const int descriptor = channel.receive(1, &byte, 1);
    CUmemGenericAllocationHandle handle = 0;
    REQUIRE(import_descriptor(descriptor, &handle) == CUDA_SUCCESS);
    REQUIRE(bytes_at(map_handle(handle))[4] == 44);
    return 0;
  });
  EXPECT_EQ(peer.wait(), 0);
}

TEST(EmulatedProcesses, DescriptorsAreClosedOnExec) {
  Child child([] {
    start_driver();
    const auto handle = create();
    CUdeviceptr plain = 0;
    REQUIRE(EMULATED(cuMemAlloc)(&plain, 4096) == CUDA_SUCCESS);
    export_descriptor(handle);
    execl("/bin/sh", "sh", "-c",
          "ls -l /proc/self/fd | grep -q parallel-tensor-emulated && exit 1; exit 0",
          static_cast<char*>(nullptr));
    return 1;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(EmulatedProcesses, ThousandsOfAllocationsAndDescriptorsLiveAtOnce) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 8000) GTEST_SKIP() << "the limit of descriptors is " << limit.rlim_max;
  Child child([&] {
    limit.rlim_cur = 8000;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    start_driver();
    std::vector<CUmemGenericAllocationHandle> handles;
    std::vector<int> descriptors;
    for (int i = 0; i < 6000; ++i) {
      handles.push_back(create());
      const CUdeviceptr address = map_handle(handles.back());
      if (i % 1000 == 0) bytes_at(address)[0] = 1;
    }
    for (int i = 0; i < 1100; ++i) descriptors.push_back(export_descriptor(handles[0]));
    REQUIRE(live().allocations == 6000 && live().mappings == 6000);
    for (int descriptor : descriptors) close(descriptor);
    for (auto handle : handles) REQUIRE(EMULATED(cuMemRelease)(handle) == CUDA_SUCCESS);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(EmulatedProcesses, ARunOutOfDescriptorsIsAnErrorAndLeavesNothing) {
  Child child([] {
    start_driver();
    const auto handle = create();
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 256;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    std::vector<int> taken;
    for (int descriptor; (descriptor = dup(0)) >= 0;) taken.push_back(descriptor);
    const auto properties = device_properties();
    CUmemGenericAllocationHandle none = 0;
    REQUIRE(EMULATED(cuMemCreate)(&none, granularity, &properties, 0) ==
            CUDA_ERROR_OPERATING_SYSTEM);
    CUdeviceptr pointer = 0;
    REQUIRE(EMULATED(cuMemAlloc)(&pointer, 4096) == CUDA_ERROR_OPERATING_SYSTEM);
    int exported = -1;
    REQUIRE(EMULATED(cuMemExportToShareableHandle)(&exported, handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                   0) == CUDA_ERROR_OPERATING_SYSTEM);
    for (int descriptor : taken) close(descriptor);
    REQUIRE(live().allocations == 1);
    size_t free = 0;
    size_t total = 0;
    REQUIRE(EMULATED(cuMemGetInfo)(&free, &total) == CUDA_SUCCESS);
    REQUIRE(free == total - granularity);
    close(export_descriptor(handle));
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(EmulatedProcesses, FaultsAndTheTraceComeFromTheEnvironment) {
  const std::string trace = ::testing::TempDir() + "trace-" + std::to_string(getpid());
  Child child([&] {
    setenv("PARALLEL_TENSOR_EMULATED_FAIL", "cuMemAddressReserve:2=2;cuMemCreate:*=801", 1);
    setenv("PARALLEL_TENSOR_EMULATED_TRACE", trace.c_str(), 1);
    start_driver();
    REQUIRE(live().fds == 1);
    CUdeviceptr address = 0;
    for (int call = 1; call <= 3; ++call) {
      REQUIRE(EMULATED(cuMemAddressReserve)(&address, granularity, 0, 0, 0) ==
              (call == 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS));
    }
    const auto properties = device_properties();
    CUmemGenericAllocationHandle handle = 0;
    for (int call = 1; call <= 3; ++call) {
      REQUIRE(EMULATED(cuMemCreate)(&handle, granularity, &properties, 0) ==
              CUDA_ERROR_NOT_SUPPORTED);
    }
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  std::ifstream file(trace);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  unlink(trace.c_str());
  EXPECT_NE(text.find(" cuInit 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" cuMemAddressReserve 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" cuMemCreate 801\n"), std::string::npos) << text;
}
