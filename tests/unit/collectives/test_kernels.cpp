#include <gtest/gtest.h>

#include <cstring>

#include "../support.hpp"
#include "parallel_tensor/collectives/kernels.hpp"

namespace parallel_tensor::testing {
namespace {

TEST(KernelImages, AreFatbins) {
  for (const char* stem : {"barrier", "all_reduce"}) {
    const void* image = collectives::kernel_image(stem);
    ASSERT_NE(image, nullptr);
    std::uint32_t magic = 0;
    std::memcpy(&magic, image, sizeof(magic));
    EXPECT_EQ(magic, 0xba55ed50U) << stem;
  }
  EXPECT_EQ(collectives::kernel_image("nothing"), nullptr);
}

TEST(HostFunctions, StandForEveryKernel) {
  ASSERT_TRUE(collectives::register_host_functions(driver::library().handle));
  for (const char* size : {"_2", "_4", "_8", ""}) {
    const std::string suffix(size);
    for (const auto& [stem, name] :
         {std::pair{"barrier", "pt_barrier"}, std::pair{"all_reduce", "pt_all_reduce_two_shot_f32"},
          std::pair{"all_reduce", "pt_all_reduce_two_shot_bf16"}}) {
      EXPECT_NE(collectives::detail::kernel_library(stem).kernel(name + suffix), nullptr);
    }
  }
}

TEST(HostFunctions, AreRefusedByAnotherLibrary) {
  EXPECT_FALSE(collectives::register_host_functions(dlopen(nullptr, RTLD_NOW)));
}

TEST(Kernel, ThatDoesNotExistRaises) {
  const collectives::Kernel missing{"barrier", "pt_missing"};
  EXPECT_THROW(missing.get(), DriverError);
}

}  // namespace
}  // namespace parallel_tensor::testing
