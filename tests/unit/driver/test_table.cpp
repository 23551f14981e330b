#include <gtest/gtest.h>

#include "../support.hpp"
#include "parallel_tensor/driver/kernel_library.hpp"

namespace parallel_tensor::testing {
namespace {

TEST(Function, ThatTheDriverLacksRaisesWithItsNameAndTheDriversVersion) {
  const driver::Function<CUresult(int)> missing{"cuDoesNotExist", 13020};
  EXPECT_FALSE(missing.available());
  try {
    missing(0);
    FAIL() << "a missing function was called";
  } catch (const NotSupportedError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("cuDoesNotExist"), std::string::npos) << message;
    EXPECT_NE(message.find("13.0"), std::string::npos) << message;
    EXPECT_NE(message.find("13.2"), std::string::npos) << message;
  }
}

TEST(Function, RaisesTheErrorThatTheResultMeans) {
  const auto device = driver::Device::at(0);
  driver::ContextGuard guard(device);
  fail("cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY);
  CUevent event = nullptr;
  EXPECT_THROW(driver::api.cuEventCreate(&event, 0), OutOfMemoryError);
  fail("cuEventCreate", CUDA_ERROR_INVALID_VALUE);
  try {
    driver::api.cuEventCreate(&event, 0);
    FAIL() << "a failure was not raised";
  } catch (const DriverError& error) {
    EXPECT_EQ(error.call(), "cuEventCreate");
    EXPECT_EQ(error.code(), 1);
    EXPECT_EQ(error.name(), "CUDA_ERROR_INVALID_VALUE");
  }
}

TEST(Table, FindsEveryFunctionInTheDriver) {
  // Every member is a Function, whose first field is its name.
  EXPECT_TRUE(driver::api.cuMemCreate.available());
  EXPECT_TRUE(driver::api.cuMemAlloc.available());
  EXPECT_TRUE(driver::api.cuIpcOpenMemHandle.available());
  EXPECT_TRUE(driver::api.cuCtxRecordEvent.available());
  EXPECT_TRUE(driver::api.cuLibraryLoadData.available());
  EXPECT_TRUE(driver::api.cuThreadExchangeStreamCaptureMode.available());
  EXPECT_STREQ(driver::api.cuMemAlloc.name(), "cuMemAlloc");
}

TEST(UseDriver, AfterFirstUseAcceptsTheSameDriverAndRefusesAnother) {
  driver::library();
  EXPECT_EQ(driver::driver_name(), "emulated");
  EXPECT_NO_THROW(driver::use_driver("emulated"));
  EXPECT_THROW(driver::use_driver("cuda"), Error);
  EXPECT_THROW(driver::use_driver(""), ArgumentError);
  EXPECT_THROW(driver::use_driver("emulated", -1), ArgumentError);
}

TEST(Device, OutsideTheVisibleOnesIsAnArgumentError) {
  EXPECT_THROW(driver::Device::at(-1), ArgumentError);
  EXPECT_THROW(driver::Device::at(driver::Device::count()), ArgumentError);
}

TEST(Device, HasAnIdentityOfItsOwn) {
  const auto first = driver::Device::at(0);
  const auto second = driver::Device::at(1);
  EXPECT_EQ(first, driver::Device::at(0));
  EXPECT_NE(first.uuid(), second.uuid());
  EXPECT_EQ(first.uuid().text().size(), 40U);
  EXPECT_EQ(first.uuid().text().rfind("GPU-", 0), 0U);
}

TEST(ContextGuard, RestoresTheCallersContext) {
  std::thread([] {
    CUcontext context = nullptr;
    const auto first = driver::Device::at(0);
    const auto second = driver::Device::at(1);
    {
      driver::ContextGuard guard(first);
      {
        driver::ContextGuard inner(second);
        driver::api.cuCtxGetCurrent(&context);
        EXPECT_EQ(context, second.context());
      }
      driver::api.cuCtxGetCurrent(&context);
      EXPECT_EQ(context, first.context());
    }
    driver::api.cuCtxGetCurrent(&context);
    EXPECT_EQ(context, nullptr);
  }).join();
}

TEST(Device, WithoutACurrentContextFollowsLocalRank) {
  std::thread([] {
    setenv("LOCAL_RANK", "3", 1);
    EXPECT_EQ(driver::Device::current().ordinal(), 3 % driver::Device::count());
    unsetenv("LOCAL_RANK");
    EXPECT_EQ(driver::Device::current().ordinal(), 0);
    driver::ContextGuard guard(driver::Device::at(1));
    EXPECT_EQ(driver::Device::current().ordinal(), 1);
  }).join();
}

}  // namespace
}  // namespace parallel_tensor::testing
