// Which devices a process sees. Each case is a process of its own; the parent never initialises the
// driver.
#include "emulated_driver.hpp"

using namespace emulator_test;

namespace {

std::string uuid_of(CUdevice device) {
  CUuuid uuid{};
  REQUIRE(EMULATED(cuDeviceGetUuid)(&uuid, device) == CUDA_SUCCESS);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

struct Visible {
  int init;
  int count;
  char uuids[8][44];
};

// What a process with this environment sees.
Visible visible(const std::vector<std::pair<const char*, std::string>>& environment) {
  Channel channel;
  Child child([&] {
    unsetenv("CUDA_VISIBLE_DEVICES");
    for (const auto& [name, value] : environment) setenv(name, value.c_str(), 1);
    Visible seen{};
    seen.init = EMULATED(cuInit)(0);
    if (seen.init == CUDA_SUCCESS) {
      REQUIRE(EMULATED(cuDeviceGetCount)(&seen.count) == CUDA_SUCCESS);
      for (int i = 0; i < seen.count && i < 8; ++i) {
        std::snprintf(seen.uuids[i], sizeof seen.uuids[i], "%s", uuid_of(i).c_str());
      }
    }
    channel.send(0, &seen, sizeof seen);
    return 0;
  });
  Visible seen{};
  EXPECT_EQ(child.wait(), 0);
  channel.receive(1, &seen, sizeof seen);
  return seen;
}

Visible masked(const std::string& list) { return visible({{"CUDA_VISIBLE_DEVICES", list}}); }

}  // namespace

TEST(EmulatedVisibleDevices, WithoutAMaskAllAreVisibleAndEachHasItsOwnUuid) {
  const Visible all = visible({});
  ASSERT_EQ(all.count, 8);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < i; ++j) EXPECT_STRNE(all.uuids[i], all.uuids[j]);
  }
}

TEST(EmulatedVisibleDevices, IndicesSelectAndReorderAndKeepTheUuid) {
  const Visible all = visible({});
  const Visible some = masked("5, 2");
  ASSERT_EQ(some.count, 2);
  EXPECT_STREQ(some.uuids[0], all.uuids[5]);
  EXPECT_STREQ(some.uuids[1], all.uuids[2]);
}

TEST(EmulatedVisibleDevices, UuidsAndTheirPrefixesSelect) {
  const Visible all = visible({});
  const Visible by_uuid = masked(std::string(all.uuids[3]) + "," + all.uuids[0]);
  ASSERT_EQ(by_uuid.count, 2);
  EXPECT_STREQ(by_uuid.uuids[0], all.uuids[3]);
  EXPECT_STREQ(by_uuid.uuids[1], all.uuids[0]);
  const Visible by_prefix = masked(std::string(all.uuids[6]).substr(0, 10));
  ASSERT_EQ(by_prefix.count, 1);
  EXPECT_STREQ(by_prefix.uuids[0], all.uuids[6]);
}

TEST(EmulatedVisibleDevices, AnInvalidEntryCutsTheList) {
  EXPECT_EQ(masked("1,9,2").count, 1);
  EXPECT_EQ(masked("1,-1,2").count, 1);
  EXPECT_EQ(masked("1,x").count, 1);
  EXPECT_EQ(masked("1,1").count, 1);
  EXPECT_EQ(masked("GPU-").init, CUDA_ERROR_NO_DEVICE) << "a prefix of several devices";
}

TEST(EmulatedVisibleDevices, NoneIsAnErrorOfInit) {
  EXPECT_EQ(masked("").init, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(masked("-1").init, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(visible({{"PARALLEL_TENSOR_EMULATED_DEVICES", "0"}}).init, CUDA_ERROR_NO_DEVICE);
}

TEST(EmulatedVisibleDevices, TheEnvironmentSetsTheirNumberAndRefusesNonsense) {
  EXPECT_EQ(visible({{"PARALLEL_TENSOR_EMULATED_DEVICES", "72"}}).count, 72);
  EXPECT_EQ(visible({{"PARALLEL_TENSOR_EMULATED_DEVICES", "many"}}).init, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(visible({{"PARALLEL_TENSOR_EMULATED_MEMORY", "-5"}}).init, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(visible({{"PARALLEL_TENSOR_EMULATED_FAIL", "cuNothing:1=2"}}).init,
            CUDA_ERROR_INVALID_VALUE);
}

TEST(EmulatedDevices, AttributesAreThoseOfAnH200) {
  Child child([] {
    REQUIRE(EMULATED(cuInit)(0) == CUDA_SUCCESS);
    const struct {
      CUdevice_attribute attribute;
      int value;
    } expected[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
        {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0},
        {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    };
    for (const auto& one : expected) {
      int value = -1;
      REQUIRE(EMULATED(cuDeviceGetAttribute)(&value, one.attribute, 0) == CUDA_SUCCESS);
      REQUIRE(value == one.value);
    }
    int value = 0;
    REQUIRE(EMULATED(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(200), 0) ==
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(EMULATED(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99) ==
            CUDA_ERROR_INVALID_DEVICE);
    CUdevice device = -1;
    REQUIRE(EMULATED(cuDeviceGet)(&device, 7) == CUDA_SUCCESS && device == 7);
    REQUIRE(EMULATED(cuDeviceGet)(&device, 8) == CUDA_ERROR_INVALID_DEVICE);
    char name[32];
    REQUIRE(EMULATED(cuDeviceGetName)(name, sizeof name, 0) == CUDA_SUCCESS);
    REQUIRE(std::string(name) == "Emulated GPU");
    size_t bytes = 0;
    REQUIRE(EMULATED(cuDeviceTotalMem)(&bytes, 0) == CUDA_SUCCESS && bytes == size_t{16} << 30);
    int possible = -1;
    REQUIRE(EMULATED(cuDeviceCanAccessPeer)(&possible, 0, 1) == CUDA_SUCCESS && possible == 1);
    REQUIRE(EMULATED(cuDeviceCanAccessPeer)(&possible, 0, 0) == CUDA_SUCCESS && possible == 0);
    REQUIRE(EMULATED(cuDeviceCanAccessPeer)(&possible, 0, 99) == CUDA_ERROR_INVALID_DEVICE);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(EmulatedDevices, MulticastCanBeSwitchedOffByTheEnvironment) {
  Child child([] {
    setenv("PARALLEL_TENSOR_EMULATED_MULTICAST", "0", 1);
    setenv("PARALLEL_TENSOR_EMULATED_MEMORY", "1073741824", 1);
    REQUIRE(EMULATED(cuInit)(0) == CUDA_SUCCESS);
    int value = -1;
    REQUIRE(EMULATED(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0) ==
            CUDA_SUCCESS);
    REQUIRE(value == 0);
    size_t bytes = 0;
    REQUIRE(EMULATED(cuDeviceTotalMem)(&bytes, 0) == CUDA_SUCCESS && bytes == size_t{1} << 30);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
}
