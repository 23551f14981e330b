#include <gtest/gtest.h>

#include "parallel_tensor/collectives/algorithm.hpp"

namespace parallel_tensor {
namespace {

TEST(Names, LeadToTheirValuesAndBack) {
  for (const char* name : {"sum", "avg", "min", "max", "prod"}) {
    EXPECT_EQ(name_of(reduction_from_name(name)), name);
  }
  for (const char* name :
       {"auto", "ll", "one_shot", "two_shot", "multimem_one_shot", "multimem_two_shot"}) {
    EXPECT_EQ(name_of(algorithm_from_name(name)), name);
  }
  EXPECT_EQ(algorithm_from_name("two_shot"), Algorithm::two_shot);
}

TEST(Names, ThatAreUnknownRaiseWithTheList) {
  try {
    reduction_from_name("median");
    FAIL() << "an unknown name was accepted";
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("sum, avg"), std::string::npos) << error.what();
  }
  EXPECT_THROW(algorithm_from_name(""), ArgumentError);
  EXPECT_THROW(algorithm_from_name("SUM"), ArgumentError);
}

}  // namespace
}  // namespace parallel_tensor
