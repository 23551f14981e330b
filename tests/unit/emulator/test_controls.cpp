#include <map>

#include "emulated_driver.hpp"

using namespace emulator_test;

namespace {

class EmulatedControls : public Driver {};

std::map<std::string, unsigned long> calls() {
  std::map<std::string, unsigned long> counts;
  CONTROL(pt_emulator_calls)
  (
      [](const char* name, unsigned long count, void* context) {
        (*static_cast<std::map<std::string, unsigned long>*>(context))[name] = count;
      },
      &counts);
  return counts;
}

int fail(const char* call, int code, long nth, int this_thread_only = 0) {
  return CONTROL(pt_emulator_fail)(call, code, nth, this_thread_only);
}

CUresult try_reserve() {
  CUdeviceptr address = 0;
  const CUresult result = EMULATED(cuMemAddressReserve)(&address, granularity, 0, 0, 0);
  if (result == CUDA_SUCCESS) EMULATED(cuMemAddressFree)(address, granularity);
  return result;
}

}  // namespace

TEST_F(EmulatedControls, ThisIsTheEmulatedDriver) { EXPECT_EQ(CONTROL(pt_emulator_abi)(), 1); }

TEST_F(EmulatedControls, AFaultHitsTheNthCallOnceAndHasNoEffect) {
  ASSERT_EQ(fail("cuMemAddressReserve", 2, 2), 0);
  const auto before = live_numbers();
  EXPECT_EQ(try_reserve(), CUDA_SUCCESS);
  EXPECT_EQ(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_reserve(), CUDA_SUCCESS);
  EXPECT_EQ(live_numbers(), before);
}

TEST_F(EmulatedControls, AFaultCanLastUntilItIsCleared) {
  ASSERT_EQ(fail("cuMemAddressReserve", 801, -1), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(try_reserve(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CONTROL(pt_emulator_clear)(), 0);
  EXPECT_EQ(try_reserve(), CUDA_SUCCESS);
}

TEST_F(EmulatedControls, AFaultCanBeOneThreadsAlone) {
  ASSERT_EQ(fail("cuMemAddressReserve", 2, -1, 1), 0);
  std::thread([] { EXPECT_EQ(try_reserve(), CUDA_SUCCESS); }).join();
  EXPECT_EQ(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(EmulatedControls, FaultsOfFunctionsThatCudaRenamesGoByTheBaseName) {
  ASSERT_EQ(fail("cuMemAlloc", 2, 1), 0);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(EMULATED(cuMemAlloc)(&pointer, 4096), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(fail("cuMemAlloc_v2", 2, 1), 1);
  EXPECT_EQ(fail("cuNothing", 2, 1), 1);
  EXPECT_EQ(fail(nullptr, 2, 1), 1);
  EXPECT_EQ(fail("cuMemAlloc", 0, 1), 1);
  EXPECT_EQ(fail("cuMemAlloc", 2, 0), 1);
  EXPECT_EQ(fail("cuMemAlloc", 2, -2), 1);
}

TEST_F(EmulatedControls, CallsAreCounted) {
  CONTROL(pt_emulator_reset_calls)();
  EXPECT_TRUE(calls().empty());
  try_reserve();
  try_reserve();
  ASSERT_EQ(fail("cuMemAddressReserve", 2, 1), 0);
  try_reserve();
  const auto counts = calls();
  EXPECT_EQ(counts.at("cuMemAddressReserve"), 3U);
  EXPECT_EQ(counts.at("cuMemAddressFree"), 2U);
}

TEST_F(EmulatedControls, LiveCountsFollowTheObjects) {
  const auto before = live();
  const auto handle = create();
  const CUdeviceptr address = map_handle(handle);
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr plain = 0;
  ASSERT_EQ(EMULATED(cuStreamCreate)(&stream, 0), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuEventCreate)(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuMemAlloc)(&plain, 4096), CUDA_SUCCESS);
  const auto now = live();
  EXPECT_EQ(now.allocations - before.allocations, 2);
  EXPECT_EQ(now.handles - before.handles, 1);
  EXPECT_EQ(now.mappings - before.mappings, 1);
  EXPECT_EQ(now.reservations - before.reservations, 1);
  EXPECT_EQ(now.streams - before.streams, 1);
  EXPECT_EQ(now.events - before.events, 1);
  EXPECT_EQ(now.fds - before.fds, 2);
  EXPECT_EQ(EMULATED(cuMemFree)(plain), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuEventDestroy)(event), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuStreamDestroy)(stream), CUDA_SUCCESS);
  unmap_and_free(address);
  EXPECT_EQ(EMULATED(cuMemRelease)(handle), CUDA_SUCCESS);
}

TEST_F(EmulatedControls, AttributesCanBeSetByName) {
  int value = -1;
  ASSERT_EQ(CONTROL(pt_emulator_set_attribute)(2, "MULTICAST_SUPPORTED", 0), 0);
  EXPECT_EQ(EMULATED(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 2),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(EMULATED(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 3),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 1);
  ASSERT_EQ(CONTROL(pt_emulator_set_attribute)(2, "MULTICAST_SUPPORTED", 1), 0);
  EXPECT_EQ(CONTROL(pt_emulator_set_attribute)(2, "NO_SUCH_THING", 1), 1);
  EXPECT_EQ(CONTROL(pt_emulator_set_attribute)(2, nullptr, 1), 1);
  EXPECT_EQ(CONTROL(pt_emulator_set_attribute)(99, "MULTICAST_SUPPORTED", 1), 1);
}

TEST_F(EmulatedControls, ADeviceWithoutAFeatureRefusesIt) {
  ASSERT_EQ(CONTROL(pt_emulator_set_attribute)(0, "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", 0),
            0);
  const auto shareable = device_properties(0, true);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(EMULATED(cuMemCreate)(&handle, granularity, &shareable, 0), CUDA_ERROR_NOT_SUPPORTED);
  ASSERT_EQ(CONTROL(pt_emulator_set_attribute)(0, "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", 1),
            0);
}

TEST_F(EmulatedControls, GranularityCanBeSet) {
  ASSERT_EQ(CONTROL(pt_emulator_set_granularity)(65536, granularity, granularity), 0);
  const auto properties = device_properties();
  size_t minimum = 0;
  size_t recommended = 0;
  EXPECT_EQ(EMULATED(cuMemGetAllocationGranularity)(&minimum, &properties,
                                                    CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemGetAllocationGranularity)(&recommended, &properties,
                                                    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
            CUDA_SUCCESS);
  EXPECT_EQ(minimum, 65536U);
  EXPECT_EQ(recommended, granularity);
  const auto handle = create(65536);
  const CUdeviceptr address = map_handle(handle, 65536);
  unmap_and_free(address, 65536);
  EXPECT_EQ(EMULATED(cuMemRelease)(handle), CUDA_SUCCESS);
  ASSERT_EQ(CONTROL(pt_emulator_set_granularity)(granularity, granularity, granularity), 0);
  EXPECT_EQ(CONTROL(pt_emulator_set_granularity)(0, granularity, granularity), 1);
  EXPECT_EQ(CONTROL(pt_emulator_set_granularity)(3000, granularity, granularity), 1);
  EXPECT_EQ(CONTROL(pt_emulator_set_granularity)(granularity, 65536, granularity), 1);
}

TEST_F(EmulatedControls, MemoryCanBeLimited) {
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(CONTROL(pt_emulator_set_memory)(0, 2 * granularity), 0);
  EXPECT_EQ(EMULATED(cuMemGetInfo)(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 2 * granularity);
  const auto handle = create(2 * granularity);
  const auto properties = device_properties();
  CUmemGenericAllocationHandle none = 0;
  EXPECT_EQ(EMULATED(cuMemCreate)(&none, granularity, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(CONTROL(pt_emulator_set_memory)(0, granularity), 0);
  EXPECT_EQ(EMULATED(cuMemGetInfo)(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, 0U);
  EXPECT_EQ(EMULATED(cuMemRelease)(handle), CUDA_SUCCESS);
  ASSERT_EQ(CONTROL(pt_emulator_set_memory)(0, size_t{16} << 30), 0);
  EXPECT_EQ(CONTROL(pt_emulator_set_memory)(99, 1), 1);
}

TEST_F(EmulatedControls, BadDevicePairsAndSlotsAreRefused) {
  EXPECT_EQ(CONTROL(pt_emulator_set_peer_access)(0, 99, 1), 1);
  EXPECT_EQ(CONTROL(pt_emulator_set_peer_access)(1, 1, 1), 1);
  EXPECT_EQ(CONTROL(pt_emulator_set_multicast_slots)(-1), 1);
  EXPECT_EQ(CONTROL(pt_emulator_set_multicast_slots)(4), 0);
}

TEST_F(EmulatedControls, ProceduresAreFoundByBaseNameAndVersion) {
  auto* find = symbol<decltype(::cuGetProcAddress)>("cuGetProcAddress_v2");
  void* function = &find;
  CUdriverProcAddressQueryResult status{};
  EXPECT_EQ(find("cuNothing", &function, 13000, 0, &status), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(find("cuMemCreate", &function, 10000, 0, &status), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(find("cuMemFree", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, dlsym(library(), "cuMemFree_v2"));
  EXPECT_EQ(find("cuMemFree", &function, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(find("cuStreamGetCaptureInfo", &function, 12000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, dlsym(library(), "cuStreamGetCaptureInfo_v2"));
  EXPECT_EQ(find("cuStreamGetCaptureInfo", &function, 12030, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, dlsym(library(), "cuStreamGetCaptureInfo_v3"));
  EXPECT_EQ(find("cuGetProcAddress", &function, 11030, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, dlsym(library(), "cuGetProcAddress"));
  EXPECT_EQ(find("cuMemFree", &function, 99000, 0, &status), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(find(nullptr, &function, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(find("cuMemFree", nullptr, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedControls, ErrorsHaveNamesAndMeanings) {
  const char* text = nullptr;
  EXPECT_EQ(EMULATED(cuGetErrorName)(CUDA_ERROR_INVALID_VALUE, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(EMULATED(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(EMULATED(cuGetErrorName)(static_cast<CUresult>(998), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}
