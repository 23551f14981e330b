/// @file
/// What the tests of the emulated driver share: its functions through the C ABI, and processes with
/// a deadline.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../../../src/emulator/emulator.h"

namespace emulator_test {

/// The library under test, loaded but not initialised.
inline void* library() {
  static void* handle = [] {
    const char* path = std::getenv("PARALLEL_TENSOR_DRIVER");
    void* loaded =
        dlopen(path ? path : "libparallel_tensor_emulated_driver.so", RTLD_NOW | RTLD_LOCAL);
    if (!loaded) {
      std::fprintf(stderr, "PARALLEL_TENSOR_DRIVER does not name the emulated driver: %s\n",
                   dlerror());
      std::abort();
    }
    return loaded;
  }();
  return handle;
}

template <typename Function>
Function* symbol(const char* name) {
  return reinterpret_cast<Function*>(dlsym(library(), name));
}

/// Looks a driver function up by its base name, as the product does.
template <typename Function>
Function* procedure(const char* name) {
  static auto* find = symbol<decltype(::cuGetProcAddress)>("cuGetProcAddress_v2");
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (find(name, &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS) {
    std::fprintf(stderr, "%s is not emulated\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// `#name` is the base name even where cuda.h renames the function, `decltype(::name)` its current
// form.
#define EMULATED(name) (::emulator_test::procedure<decltype(::name)>(#name))
#define CONTROL(name) (::emulator_test::symbol<decltype(::name)>(#name))

inline constexpr size_t granularity = size_t{2} << 20;

inline CUmemAllocationProp device_properties(int device = 0, bool shareable = true) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  if (shareable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

inline CUmemAccessDesc access_of(int device,
                                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

inline CUmemGenericAllocationHandle create(size_t bytes = granularity, int device = 0) {
  const auto properties = device_properties(device);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(EMULATED(cuMemCreate)(&handle, bytes, &properties, 0), CUDA_SUCCESS);
  return handle;
}

inline int export_descriptor(CUmemGenericAllocationHandle handle) {
  int descriptor = -1;
  EXPECT_EQ(EMULATED(cuMemExportToShareableHandle)(&descriptor, handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  return descriptor;
}

inline CUresult import_descriptor(int descriptor, CUmemGenericAllocationHandle* handle) {
  return EMULATED(cuMemImportFromShareableHandle)(
      handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

inline CUdeviceptr reserve(size_t bytes = granularity) {
  CUdeviceptr address = 0;
  EXPECT_EQ(EMULATED(cuMemAddressReserve)(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
  return address;
}

inline CUresult set_access(CUdeviceptr address, size_t bytes, int device = 0,
                           CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  const auto access = access_of(device, flags);
  return EMULATED(cuMemSetAccess)(address, bytes, &access, 1);
}

/// Reserves addresses, maps the whole handle there and gives a device access.
inline CUdeviceptr map_handle(CUmemGenericAllocationHandle handle, size_t bytes = granularity,
                              int device = 0) {
  const CUdeviceptr address = reserve(bytes);
  EXPECT_EQ(EMULATED(cuMemMap)(address, bytes, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(set_access(address, bytes, device), CUDA_SUCCESS);
  return address;
}

inline void unmap_and_free(CUdeviceptr address, size_t bytes = granularity) {
  EXPECT_EQ(EMULATED(cuMemUnmap)(address, bytes), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, bytes), CUDA_SUCCESS);
}

inline unsigned char* bytes_at(CUdeviceptr address) {
  return reinterpret_cast<unsigned char*>(address);
}

inline pt_emulator_counts live() {
  pt_emulator_counts counts{};
  EXPECT_EQ(CONTROL(pt_emulator_live)(&counts), 0);
  return counts;
}

inline std::vector<long> live_numbers() {
  const auto c = live();
  return {c.allocations, c.mappings, c.reservations, c.handles,
          c.multicasts,  c.streams,  c.events,       c.fds};
}

inline long open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator{});
}

/// Initialises the driver, makes device 0's primary context current, and checks that a test leaves
/// nothing.
class Driver : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(EMULATED(cuInit)(0), CUDA_SUCCESS);
    ASSERT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(EMULATED(cuCtxPushCurrent)(context_), CUDA_SUCCESS);
    before_ = live_numbers();
    descriptors_before_ = open_descriptors();
  }

  void TearDown() override {
    CONTROL(pt_emulator_clear)();
    EXPECT_EQ(live_numbers(), before_);
    EXPECT_EQ(open_descriptors(), descriptors_before_);
    CUcontext popped = nullptr;
    EXPECT_EQ(EMULATED(cuCtxPopCurrent)(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context_);
    EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRelease)(0), CUDA_SUCCESS);
  }

  CUcontext context_ = nullptr;

 private:
  std::vector<long> before_;
  long descriptors_before_ = 0;
};

/// Holds work on a stream until it is opened, so that a test decides when the work before and after
/// it runs.
class StreamLock {
 public:
  ~StreamLock() { open(); }
  void hold(CUstream stream) {
    ASSERT_EQ(EMULATED(cuLaunchHostFunc)(
                  stream,
                  [](void* self) {
                    auto& lock = *static_cast<StreamLock*>(self);
                    lock.entered_.store(true);
                    lock.entered_.notify_all();
                    lock.open_.wait(false);
                  },
                  this),
              CUDA_SUCCESS);
  }
  void wait_until_entered() { entered_.wait(false); }
  void open() {
    open_.store(true);
    open_.notify_all();
  }

 private:
  std::atomic<bool> entered_{false};
  std::atomic<bool> open_{false};
};

// ---- Processes. The parent never initialises the driver, so that its children can.

/// Inside a child: says what failed and ends it.
inline void require(bool condition, const char* what, int line) {
  if (condition) return;
  std::fprintf(stderr, "child %d, line %d: %s\n", static_cast<int>(getpid()), line, what);
  std::fflush(nullptr);
  _exit(1);
}
#define REQUIRE(condition) ::emulator_test::require((condition), #condition, __LINE__)

/// A forked child that runs a function and exits with what it returns; the kernel ends it after a
/// deadline.
class Child {
 public:
  static constexpr unsigned int deadline_seconds = 60;
  explicit Child(const std::function<int()>& body) : pid_(flushed_fork()) {
    if (pid_ != 0) return;
    alarm(deadline_seconds);
    const int status = body();
    std::fflush(nullptr);
    std::exit(status != 0 || !::testing::Test::HasFailure() ? status : 1);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
  }

  pid_t pid() const { return pid_; }
  /// The exit status, or minus the signal that ended it.
  int wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static pid_t flushed_fork() {
    std::fflush(nullptr);  // else the child prints it again
    return fork();
  }

  pid_t pid_;
};

/// A connected pair of sockets that carries bytes and descriptors between two processes.
class Channel {
 public:
  Channel() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
    for (int i = 0; i < 2; ++i) ends_[i] = pair[i];
  }
  ~Channel() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void send(int end, const void* bytes, size_t size, int descriptor = -1) const {
    iovec part{const_cast<void*>(bytes), size};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    if (sendmsg(ends_[end], &message, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) std::abort();
  }

  /// Gives the descriptor that came along, or -1.
  int receive(int end, void* bytes, size_t size) const {
    iovec part{bytes, size};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(ends_[end], &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(size)) std::abort();
    int descriptor = -1;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    }
    return descriptor;
  }

  void signal(int end) const { send(end, "x", 1); }
  void await(int end) const {
    char byte = 0;
    receive(end, &byte, 1);
  }

 private:
  int ends_[2];
};

/// Inside a child: initialises the driver and makes a device's primary context current.
inline void start_driver(int device = 0) {
  REQUIRE(EMULATED(cuInit)(0) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(EMULATED(cuDevicePrimaryCtxRetain)(&context, device) == CUDA_SUCCESS);
  REQUIRE(EMULATED(cuCtxSetCurrent)(context) == CUDA_SUCCESS);
}

}  // namespace emulator_test
