#include "emulated_driver.hpp"

using namespace emulator_test;

namespace {

class EmulatedVmm : public Driver {};

CUresult create_result(size_t bytes, const CUmemAllocationProp& properties) {
  CUmemGenericAllocationHandle handle = 0;
  return EMULATED(cuMemCreate)(&handle, bytes, &properties, 0);
}

CUresult map_result(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle) {
  return EMULATED(cuMemMap)(address, bytes, offset, handle, 0);
}

void release(CUmemGenericAllocationHandle handle) {
  EXPECT_EQ(EMULATED(cuMemRelease)(handle), CUDA_SUCCESS);
}

}  // namespace

TEST_F(EmulatedVmm, CreateRefusesSizesThatAreNoMultipleOfTheGranularity) {
  EXPECT_EQ(create_result(0, device_properties()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create_result(4096, device_properties()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create_result(granularity + 1, device_properties()), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedVmm, CreateRefusesMoreThanTheDeviceHas) {
  EXPECT_EQ(create_result(size_t{1} << 50, device_properties()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(create_result(size_t{17} << 30, device_properties()), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(EmulatedVmm, CreateRefusesADeviceThatDoesNotExist) {
  EXPECT_EQ(create_result(granularity, device_properties(99)), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(create_result(granularity, device_properties(-1)), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(EmulatedVmm, CreateRefusesFabricHandlesThoughTheAttributeSaysYes) {
  int attribute = 0;
  ASSERT_EQ(EMULATED(cuDeviceGetAttribute)(&attribute,
                                           CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(attribute, 1);
  auto properties = device_properties();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(create_result(granularity, properties), CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(EmulatedVmm, CreateRefusesNullAndUnknownProperties) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(EMULATED(cuMemCreate)(&handle, granularity, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  const auto properties = device_properties();
  EXPECT_EQ(EMULATED(cuMemCreate)(nullptr, granularity, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemCreate)(&handle, granularity, &properties, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create_result(granularity, CUmemAllocationProp{}), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedVmm, GranularityIsTwoMebibytesWithAndWithoutShareableHandles) {
  for (bool shareable : {false, true}) {
    const auto properties = device_properties(0, shareable);
    for (auto option : {CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED}) {
      size_t bytes = 0;
      EXPECT_EQ(EMULATED(cuMemGetAllocationGranularity)(&bytes, &properties, option), CUDA_SUCCESS);
      EXPECT_EQ(bytes, granularity);
    }
  }
}

TEST_F(EmulatedVmm, ReserveRefusesSizeZeroAndUnalignedSizes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(EMULATED(cuMemAddressReserve)(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAddressReserve)(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAddressReserve)(&address, granularity, 3, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAddressReserve)(nullptr, granularity, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_F(EmulatedVmm, ReserveGivesSixtyFourTebibytesAndRefusesTheWholeAddressSpace) {
  CUdeviceptr address = 0;
  const size_t huge = size_t{64} << 40;
  ASSERT_EQ(EMULATED(cuMemAddressReserve)(&address, huge, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, huge), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemAddressReserve)(&address, size_t{128} << 40, 0, 0, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
}
#endif

TEST_F(EmulatedVmm, ReserveHonoursTheAlignment) {
  const size_t alignment = size_t{64} << 20;
  CUdeviceptr address = 0;
  ASSERT_EQ(EMULATED(cuMemAddressReserve)(&address, granularity, alignment, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(address % alignment, 0U);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, granularity), CUDA_SUCCESS);
}

TEST_F(EmulatedVmm, MapTakesOnlyTheWholeHandle) {
  const auto handle = create(2 * granularity);
  const CUdeviceptr address = reserve(4 * granularity);
  EXPECT_EQ(map_result(address, granularity, 0, handle), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(map_result(address, granularity, granularity, handle), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(map_result(address, granularity, 4096, handle), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(map_result(address, 3 * granularity, 0, handle), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(map_result(address, 2 * granularity, 0, handle), CUDA_SUCCESS);
  unmap_and_free(address, 4 * granularity);
  release(handle);
}

TEST_F(EmulatedVmm, MapRefusesAddressesThatAreNotReservedOrTakenAlready) {
  const auto handle = create(2 * granularity);
  const CUdeviceptr address = reserve(2 * granularity);
  EXPECT_EQ(map_result(0, 2 * granularity, 0, handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map_result(address + 4096, 2 * granularity, 0, handle), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(map_result(address, 2 * granularity, 0, handle), CUDA_SUCCESS);
  EXPECT_EQ(map_result(address, 2 * granularity, 0, handle), CUDA_ERROR_INVALID_VALUE);
  unmap_and_free(address, 2 * granularity);
  release(handle);
}

TEST_F(EmulatedVmm, MapRunsIntoAnAdjacentReservationOfTheSameProcess) {
  const CUdeviceptr first = reserve(4 * granularity);
  ASSERT_EQ(EMULATED(cuMemAddressFree)(first, 4 * granularity), CUDA_SUCCESS);
  CUdeviceptr low = 0;
  CUdeviceptr high = 0;
  ASSERT_EQ(EMULATED(cuMemAddressReserve)(&low, 2 * granularity, 0, first, 0), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuMemAddressReserve)(&high, 2 * granularity, 0, low + 2 * granularity, 0),
            CUDA_SUCCESS);
  if (high == low + 2 * granularity) {
    const auto handle = create(2 * granularity);
    EXPECT_EQ(map_result(low + granularity, 2 * granularity, 0, handle), CUDA_SUCCESS);
    EXPECT_EQ(EMULATED(cuMemAddressFree)(low, 2 * granularity), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(EMULATED(cuMemAddressFree)(high, 2 * granularity), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(EMULATED(cuMemUnmap)(low + granularity, 2 * granularity), CUDA_SUCCESS);
    release(handle);
  }
  EXPECT_EQ(EMULATED(cuMemAddressFree)(low, 2 * granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(high, 2 * granularity), CUDA_SUCCESS);
}

TEST_F(EmulatedVmm, TwoMappingsOfOneHandleShareTheirBytes) {
  const auto handle = create();
  const CUdeviceptr first = map_handle(handle);
  const CUdeviceptr second = map_handle(handle);
  bytes_at(first)[12345] = 42;
  EXPECT_EQ(bytes_at(second)[12345], 42);
  unmap_and_free(first);
  EXPECT_EQ(bytes_at(second)[12345], 42);
  unmap_and_free(second);
  release(handle);
}

TEST_F(EmulatedVmm, FreshMemoryIsZero) {
  for (int i = 0; i < 2; ++i) {
    const auto handle = create();
    const CUdeviceptr address = map_handle(handle);
    EXPECT_EQ(bytes_at(address)[0], 0);
    EXPECT_EQ(bytes_at(address)[granularity - 1], 0);
    std::memset(bytes_at(address), 0xab, granularity);
    unmap_and_free(address);
    release(handle);
  }
}

TEST_F(EmulatedVmm, AccessIsNoneUntilItIsSetAndEachDeviceHasItsOwn) {
  const auto handle = create();
  const CUdeviceptr address = reserve();
  ASSERT_EQ(map_result(address, granularity, 0, handle), CUDA_SUCCESS);
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemLocation other{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  unsigned long long flags = 99;
  EXPECT_EQ(EMULATED(cuMemGetAccess)(&flags, &here, address), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0U);
  EXPECT_EQ(EMULATED(cuMemsetD8)(address, 1, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address, granularity, 1), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemsetD8)(address, 1, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address, granularity, 0, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemGetAccess)(&flags, &here, address + 77), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(EMULATED(cuMemGetAccess)(&flags, &other, address), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  unmap_and_free(address);
  EXPECT_EQ(EMULATED(cuMemGetAccess)(&flags, &here, address), CUDA_ERROR_INVALID_VALUE);
  release(handle);
}

TEST_F(EmulatedVmm, ReadAccessAllowsACopyOutAndNothingElse) {
  const auto handle = create();
  const CUdeviceptr address = reserve();
  ASSERT_EQ(map_result(address, granularity, 0, handle), CUDA_SUCCESS);
  ASSERT_EQ(set_access(address, granularity, 0, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  char host[16] = {};
  EXPECT_EQ(EMULATED(cuMemcpyDtoH)(host, address, sizeof host), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemcpyHtoD)(address, host, sizeof host), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemsetD8)(address, 0, sizeof host), CUDA_ERROR_INVALID_VALUE);
  unmap_and_free(address);
  release(handle);
}

TEST_F(EmulatedVmm, SetAccessTakesWholeMappingsAndDevicesThatExist) {
  const auto first = create(2 * granularity);
  const auto second = create(granularity);
  const CUdeviceptr address = reserve(4 * granularity);
  ASSERT_EQ(map_result(address, 2 * granularity, 0, first), CUDA_SUCCESS);
  ASSERT_EQ(map_result(address + 2 * granularity, granularity, 0, second), CUDA_SUCCESS);
  EXPECT_EQ(set_access(address, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address + granularity, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address, 4 * granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address, 3 * granularity, 99), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set_access(address, 3 * granularity), CUDA_SUCCESS);
  bytes_at(address)[3 * granularity - 1] = 7;
  const auto access = access_of(0);
  EXPECT_EQ(EMULATED(cuMemSetAccess)(address, 3 * granularity, &access, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemSetAccess)(address, 3 * granularity, nullptr, 1),
            CUDA_ERROR_INVALID_VALUE);
  unmap_and_free(address, 4 * granularity);
  release(first);
  release(second);
}

TEST_F(EmulatedVmm, SetAccessRefusesADeviceThatDoesNotReachTheMemory) {
  ASSERT_EQ(CONTROL(pt_emulator_set_peer_access)(0, 1, 0), 0);
  const auto handle = create(granularity, 0);
  const CUdeviceptr address = reserve();
  ASSERT_EQ(map_result(address, granularity, 0, handle), CUDA_SUCCESS);
  const CUmemAccessDesc both[] = {access_of(0), access_of(1)};
  EXPECT_EQ(EMULATED(cuMemSetAccess)(address, granularity, both, 2), CUDA_ERROR_INVALID_DEVICE);
  unsigned long long flags = 99;
  EXPECT_EQ(EMULATED(cuMemGetAccess)(&flags, &both[0].location, address), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0U) << "a refused call has no effect";
  int possible = 1;
  EXPECT_EQ(EMULATED(cuDeviceCanAccessPeer)(&possible, 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(possible, 0);
  ASSERT_EQ(CONTROL(pt_emulator_set_peer_access)(0, 1, 1), 0);
  EXPECT_EQ(EMULATED(cuMemSetAccess)(address, granularity, both, 2), CUDA_SUCCESS);
  unmap_and_free(address);
  release(handle);
}

TEST_F(EmulatedVmm, RetainGivesAnotherHandleForAnInteriorPointer) {
  const auto handle = create();
  const CUdeviceptr address = map_handle(handle);
  CUmemGenericAllocationHandle retained = 0;
  EXPECT_EQ(
      EMULATED(cuMemRetainAllocationHandle)(&retained, reinterpret_cast<void*>(address + 4711)),
      CUDA_SUCCESS);
  EXPECT_NE(retained, handle);
  EXPECT_EQ(live().handles, 2);
  close(export_descriptor(retained));
  CUdeviceptr plain = 0;
  ASSERT_EQ(EMULATED(cuMemAlloc)(&plain, 4096), CUDA_SUCCESS);
  CUmemGenericAllocationHandle none = 0;
  EXPECT_EQ(EMULATED(cuMemRetainAllocationHandle)(&none, reinterpret_cast<void*>(plain)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemFree)(plain), CUDA_SUCCESS);
  release(handle);
  unmap_and_free(address);
  release(retained);
}

TEST_F(EmulatedVmm, ExportGivesANewDescriptorEachTime) {
  const auto handle = create();
  const int first = export_descriptor(handle);
  const int second = export_descriptor(handle);
  EXPECT_NE(first, second);
  close(first);
  close(second);
  release(handle);
}

TEST_F(EmulatedVmm, ExportRefusesAHandleThatWasNotMadeForIt) {
  const auto properties = device_properties(0, false);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(EMULATED(cuMemCreate)(&handle, granularity, &properties, 0), CUDA_SUCCESS);
  int descriptor = -1;
  EXPECT_EQ(EMULATED(cuMemExportToShareableHandle)(&descriptor, handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  release(handle);
}

TEST_F(EmulatedVmm, ImportInTheExportingProcessGivesANewHandleThatCannotBeExported) {
  const auto handle = create();
  const int descriptor = export_descriptor(handle);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(import_descriptor(descriptor, &imported), CUDA_SUCCESS);
  close(descriptor);
  EXPECT_NE(imported, handle);
  EXPECT_EQ(live().allocations, 1) << "one memory, two handles";
  EXPECT_EQ(live().fds, 1);
  int again = -1;
  EXPECT_EQ(EMULATED(cuMemExportToShareableHandle)(&again, imported,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp properties{};
  ASSERT_EQ(EMULATED(cuMemGetAllocationPropertiesFromHandle)(&properties, imported), CUDA_SUCCESS);
  EXPECT_EQ(properties.requestedHandleTypes, 0);
  EXPECT_EQ(properties.location.id, 0);
  const CUdeviceptr address = map_handle(imported);
  unsigned long long types = 99;
  EXPECT_EQ(
      EMULATED(cuPointerGetAttribute)(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address),
      CUDA_SUCCESS);
  EXPECT_EQ(types, 0U);
  unmap_and_free(address);
  release(imported);
  release(handle);
}

TEST_F(EmulatedVmm, ImportRefusesWhatIsNotItsOwn) {
  CUmemGenericAllocationHandle imported = 0;
  EXPECT_EQ(import_descriptor(-1, &imported), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(import_descriptor(987654, &imported), CUDA_ERROR_UNKNOWN);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_EQ(import_descriptor(pipe_ends[0], &imported), CUDA_ERROR_UNKNOWN);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(ftruncate(fileno(file), 1 << 22), 0);
  EXPECT_EQ(import_descriptor(fileno(file), &imported), CUDA_ERROR_UNKNOWN);
  std::fclose(file);
}

TEST_F(EmulatedVmm, AnExportedDescriptorCannotBeShrunkUnderAMapping) {
  const auto handle = create();
  const int descriptor = export_descriptor(handle);
  EXPECT_NE(ftruncate(descriptor, 0), 0);
  close(descriptor);
  release(handle);
}

TEST_F(EmulatedVmm, UnmapTakesWholeMappingsAndARangeOfSeveral) {
  const auto first = create(2 * granularity);
  const auto second = create(granularity);
  const CUdeviceptr address = reserve(4 * granularity);
  ASSERT_EQ(map_result(address, 2 * granularity, 0, first), CUDA_SUCCESS);
  ASSERT_EQ(map_result(address + 3 * granularity, granularity, 0, second), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemUnmap)(address, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemUnmap)(address + granularity, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemUnmap)(address, 4 * granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemUnmap)(address, 4 * granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemUnmap)(address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, 4 * granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemUnmap)(address, 4 * granularity), CUDA_ERROR_INVALID_VALUE);
  release(first);
  release(second);
}

TEST_F(EmulatedVmm, AddressFreeTakesTheWholeUnmappedReservationOnce) {
  const auto handle = create();
  const CUdeviceptr address = reserve(2 * granularity);
  ASSERT_EQ(map_result(address + granularity, granularity, 0, handle), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, 2 * granularity), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(EMULATED(cuMemUnmap)(address + granularity, granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, 2 * granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, 2 * granularity), CUDA_ERROR_INVALID_VALUE);
  release(handle);
}

TEST_F(EmulatedVmm, ReleaseWhileMappedLeavesTheMappingUsable) {
  const auto handle = create();
  const CUdeviceptr address = map_handle(handle);
  release(handle);
  bytes_at(address)[1] = 9;
  EXPECT_EQ(bytes_at(address)[1], 9);
  EXPECT_EQ(live().allocations, 1);
  unmap_and_free(address);
  EXPECT_EQ(live().allocations, 0);
}

TEST_F(EmulatedVmm, AStaleOrUnknownHandleIsAnErrorEverywhere) {
  const auto handle = create();
  release(handle);
  const CUdeviceptr address = reserve();
  int descriptor = -1;
  CUmemAllocationProp properties{};
  for (auto bad :
       {handle, CUmemGenericAllocationHandle{0}, CUmemGenericAllocationHandle{1234567}}) {
    EXPECT_EQ(EMULATED(cuMemRelease)(bad), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(map_result(address, granularity, 0, bad), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(EMULATED(cuMemExportToShareableHandle)(&descriptor, bad,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(EMULATED(cuMemGetAllocationPropertiesFromHandle)(&properties, bad),
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(EMULATED(cuMemAddressFree)(address, granularity), CUDA_SUCCESS);
}

TEST_F(EmulatedVmm, HandleValuesAreNeverReused) {
  const auto first = create();
  release(first);
  const auto second = create();
  EXPECT_NE(first, second);
  release(second);
}

TEST_F(EmulatedVmm, HostMemoryCanBeCreatedExportedAndGivenToTheHost) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(EMULATED(cuMemCreate)(&handle, granularity, &properties, 0), CUDA_SUCCESS);
  close(export_descriptor(handle));
  const CUdeviceptr address = reserve();
  ASSERT_EQ(map_result(address, granularity, 0, handle), CUDA_SUCCESS);
  const CUmemAccessDesc host{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(EMULATED(cuMemSetAccess)(address, granularity, &host, 1), CUDA_SUCCESS);
  bytes_at(address)[0] = 1;
  unsigned long long flags = 0;
  EXPECT_EQ(EMULATED(cuMemGetAccess)(&flags, &host.location, address), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(EMULATED(cuMemsetD8)(address, 0, 1), CUDA_ERROR_INVALID_VALUE) << "the device's access";
  EXPECT_EQ(set_access(address, granularity), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemsetD8)(address, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  unmap_and_free(address);
  release(handle);
  const auto on_device = create();
  const CUdeviceptr other = map_handle(on_device);
  EXPECT_EQ(EMULATED(cuMemSetAccess)(other, granularity, &host, 1), CUDA_ERROR_INVALID_VALUE);
  unmap_and_free(other);
  release(on_device);
}

TEST_F(EmulatedVmm, MemoryIsChargedWhileItLivesAndPagesAppearWhenTouched) {
  size_t free_before = 0;
  size_t free_after = 0;
  size_t total = 0;
  ASSERT_EQ(EMULATED(cuMemGetInfo)(&free_before, &total), CUDA_SUCCESS);
  const size_t bytes = size_t{12} << 30;
  const auto handle = create(bytes);
  const CUdeviceptr address = map_handle(handle, bytes);
  bytes_at(address)[bytes - 1] = 1;
  ASSERT_EQ(EMULATED(cuMemGetInfo)(&free_after, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_before - free_after, bytes);
  EXPECT_EQ(create_result(bytes, device_properties()), CUDA_ERROR_OUT_OF_MEMORY);
  release(handle);
  EXPECT_EQ(create_result(bytes, device_properties()), CUDA_ERROR_OUT_OF_MEMORY);
  unmap_and_free(address, bytes);
  ASSERT_EQ(EMULATED(cuMemGetInfo)(&free_after, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_before, free_after);
}

TEST_F(EmulatedVmm, AThousandCyclesLeaveNoDescriptorAndNoObject) {
  const long before = open_descriptors();
  const auto live_before = live_numbers();
  for (int i = 0; i < 1000; ++i) {
    const auto handle = create();
    const int descriptor = export_descriptor(handle);
    CUmemGenericAllocationHandle imported = 0;
    ASSERT_EQ(import_descriptor(descriptor, &imported), CUDA_SUCCESS);
    close(descriptor);
    const CUdeviceptr own = map_handle(handle);
    const CUdeviceptr peer = map_handle(imported);
    bytes_at(own)[0] = static_cast<unsigned char>(i);
    ASSERT_EQ(bytes_at(peer)[0], static_cast<unsigned char>(i));
    unmap_and_free(own);
    unmap_and_free(peer);
    release(handle);
    release(imported);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(live_numbers(), live_before);
}

TEST_F(EmulatedVmm, ManyThreadsShareMemoryWhileCallsFail) {
  ASSERT_EQ(CONTROL(pt_emulator_fail)("cuMemMap", CUDA_ERROR_OUT_OF_MEMORY, 100, 0), 0);
  ASSERT_EQ(CONTROL(pt_emulator_fail)("cuMemImportFromShareableHandle", CUDA_ERROR_UNKNOWN, 50, 0),
            0);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto handle = create(granularity, t);
        const int descriptor = export_descriptor(handle);
        const CUdeviceptr address = reserve();
        CUmemGenericAllocationHandle imported = 0;
        if (import_descriptor(descriptor, &imported) == CUDA_SUCCESS) {
          if (map_result(address, granularity, 0, imported) == CUDA_SUCCESS) {
            EXPECT_EQ(set_access(address, granularity, t), CUDA_SUCCESS);
            bytes_at(address)[i] = 1;
            EXPECT_EQ(EMULATED(cuMemUnmap)(address, granularity), CUDA_SUCCESS);
          } else {
            ++failed;
          }
          release(imported);
        } else {
          ++failed;
        }
        EXPECT_EQ(EMULATED(cuMemAddressFree)(address, granularity), CUDA_SUCCESS);
        close(descriptor);
        release(handle);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failed, 2);
}

TEST_F(EmulatedVmm, NullArgumentsAreErrors) {
  const auto properties = device_properties();
  const auto posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(EMULATED(cuMemGetAllocationGranularity)(nullptr, &properties,
                                                    CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemRetainAllocationHandle)(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemExportToShareableHandle)(nullptr, 1, posix, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemImportFromShareableHandle)(nullptr, nullptr, posix),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemGetAllocationPropertiesFromHandle)(nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemGetAccess)(nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemSetAccess)(0, granularity, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemUnmap)(0, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemUnmap)(~CUdeviceptr{0}, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(0, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuMemAddressFree)(~CUdeviceptr{0}, granularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuPointerGetAttribute)(nullptr, CU_POINTER_ATTRIBUTE_CONTEXT, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuPointerGetAttributes)(1, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuIpcGetMemHandle)(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuIpcOpenMemHandle)(nullptr, {}, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuDeviceGetAttribute)(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(&context_, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(EMULATED(cuCtxGetCurrent)(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuCtxGetDevice)(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuGetErrorName)(CUDA_SUCCESS, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuStreamIsCapturing)(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuThreadExchangeStreamCaptureMode)(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuLaunchKernelEx)(nullptr, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CONTROL(pt_emulator_live)(nullptr), 1);
  EXPECT_EQ(CONTROL(pt_emulator_calls)(nullptr, nullptr), 1);
}
