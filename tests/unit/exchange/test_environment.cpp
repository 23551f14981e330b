#include <gtest/gtest.h>

#include <cstdlib>

#include "parallel_tensor/exchange/environment.hpp"

namespace parallel_tensor::exchange {
namespace {

using std::chrono::milliseconds;

/// Each test starts without any variable that a launcher sets.
class Environment : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "TORCHELASTIC_RUN_ID",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "GROUP_RANK",
                             "TORCHELASTIC_RESTART_COUNT",
                             "SLURM_LOCALID",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_TASKS_PER_NODE",
                             "SLURM_NODEID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_RESTART_COUNT",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "OMPI_MCA_ess_base_jobid",
                             "PARALLEL_TENSOR_JOB",
                             "PARALLEL_TENSOR_TIMEOUT",
                             "PARALLEL_TENSOR_BOOT_ID"}) {
      ::unsetenv(name);
    }
  }
  void TearDown() override { SetUp(); }

  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
};

TEST_F(Environment, WithoutALauncherTheErrorNamesTheVariables) {
  try {
    identity_from_env();
    FAIL();
  } catch (const NotSupportedError& error) {
    const std::string text = error.what();
    for (const char* name : {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
      EXPECT_NE(text.find(name), std::string::npos) << text;
    }
  }
  set("LOCAL_RANK", "0");
  set("LOCAL_WORLD_SIZE", "2");
  try {
    identity_from_env();
    FAIL();
  } catch (const NotSupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("PARALLEL_TENSOR_JOB"), std::string::npos);
  }
}

TEST_F(Environment, TorchrunNamesTheJobByAllThatTellsTwoJobsApart) {
  set("LOCAL_RANK", "3");
  set("LOCAL_WORLD_SIZE", "8");
  set("TORCHELASTIC_RUN_ID", "run");
  set("MASTER_ADDR", "host");
  set("MASTER_PORT", "29500");
  set("GROUP_RANK", "0");
  set("TORCHELASTIC_RESTART_COUNT", "0");
  const GroupIdentity first = identity_from_env();
  EXPECT_EQ(first.rank, 3);
  EXPECT_EQ(first.size, 8);
  for (const char* name : {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK",
                           "TORCHELASTIC_RESTART_COUNT"}) {
    const std::string before = variable(name);
    set(name, "1");
    EXPECT_NE(identity_from_env().name, first.name) << name;
    set(name, before.c_str());
  }
  EXPECT_EQ(identity_from_env().name, first.name);
  set("PARALLEL_TENSOR_JOB", "mine");
  EXPECT_EQ(identity_from_env().name, "mine");
}

TEST_F(Environment, Slurm) {
  set("SLURM_LOCALID", "1");
  set("SLURM_NODEID", "2");
  set("SLURM_JOB_ID", "77");
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_TASKS_PER_NODE", "4(x2),3");
  GroupIdentity identity = identity_from_env();
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.size, 3);
  const std::string name = identity.name;
  set("SLURM_NODEID", "1");
  identity = identity_from_env();
  EXPECT_EQ(identity.size, 4);
  set("SLURM_STEP_ID", "1");
  EXPECT_NE(identity_from_env().name, name);
  for (const char* list : {"x", "4(x", "4(xy)", "4", ""}) {
    set("SLURM_STEP_TASKS_PER_NODE", list);
    if (*list == '\0') {
      EXPECT_THROW(identity_from_env(), NotSupportedError);
    } else {
      EXPECT_THROW(identity_from_env(), ArgumentError) << list;
    }
  }
}

TEST_F(Environment, OpenMpi) {
  set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  set("OMPI_MCA_ess_base_jobid", "123");
  EXPECT_EQ(identity_from_env().name, "openmpi:123");
  set("PMIX_NAMESPACE", "job@1");
  const GroupIdentity identity = identity_from_env();
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.size, 2);
  EXPECT_EQ(identity.name, "openmpi:job@1");
}

TEST_F(Environment, TorchrunInsideASlurmStepCounts) {
  set("SLURM_LOCALID", "0");
  set("SLURM_STEP_TASKS_PER_NODE", "1");
  set("SLURM_JOB_ID", "5");
  set("LOCAL_RANK", "3");
  set("LOCAL_WORLD_SIZE", "4");
  set("MASTER_PORT", "1234");
  const GroupIdentity identity = identity_from_env();
  EXPECT_EQ(identity.rank, 3);
  EXPECT_EQ(identity.size, 4);
  EXPECT_EQ(identity.name.rfind("torchrun:", 0), 0U);
}

TEST_F(Environment, NumbersThatAreNoneNameTheVariable) {
  set("PARALLEL_TENSOR_JOB", "x");
  set("LOCAL_WORLD_SIZE", "2");
  for (const char* rank : {"one", "1x", " 1", "99999999999999999999"}) {
    set("LOCAL_RANK", rank);
    try {
      identity_from_env();
      FAIL() << rank;
    } catch (const ArgumentError& error) {
      EXPECT_NE(std::string(error.what()).find("LOCAL_RANK"), std::string::npos);
    }
  }
}

TEST_F(Environment, TheTimeoutIsSecondsWithAFraction) {
  EXPECT_EQ(default_timeout(), milliseconds(60000));
  set("PARALLEL_TENSOR_TIMEOUT", "2.5");
  EXPECT_EQ(default_timeout(), milliseconds(2500));
  set("PARALLEL_TENSOR_TIMEOUT", "0.0001");
  EXPECT_EQ(default_timeout(), milliseconds(1));
  set("PARALLEL_TENSOR_TIMEOUT", "1e30");
  EXPECT_GT(default_timeout(), milliseconds(1000000));
  for (const char* text : {"0", "-1", "nan", "soon", "5s"}) {
    set("PARALLEL_TENSOR_TIMEOUT", text);
    EXPECT_THROW(default_timeout(), ArgumentError) << text;
  }
}

TEST_F(Environment, TheBootIdCanBeReplaced) {
  EXPECT_GT(boot_id().size(), 30U);
  EXPECT_EQ(boot_id(), boot_id());
  set("PARALLEL_TENSOR_BOOT_ID", "other");
  EXPECT_EQ(boot_id(), "other");
}

}  // namespace
}  // namespace parallel_tensor::exchange
