// Ranks as processes. They are forked before this process has used the driver or made a group.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>

#include "parallel_tensor/collectives/all_reduce.hpp"
#include "parallel_tensor/collectives/barrier.hpp"
#include "ranks_on_devices.hpp"

namespace parallel_tensor::testing {
namespace {

// Runs each rank in a process of its own, kills what is left at the deadline, and gives each one's
// wait status.
std::map<int, int> run_processes(int size, const std::function<void(const RankOnDevice&)>& body) {
  const std::string name = "test-processes-" + std::to_string(getpid());
  std::map<pid_t, int> running;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        const auto group = Group::join(rank, size, name, std::chrono::seconds(30));
        const auto device = driver::Device::at(rank % driver::Device::count());
        driver::ContextGuard guard(device);
        driver::Stream stream;
        body({group, device, stream.get()});
        code = ::testing::Test::HasFailure() ? 2 : 0;
        group->close();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      _exit(code);
    }
    running[child] = rank;
  }
  std::map<int, int> statuses;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!running.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      statuses[running.at(ended)] = status;
      running.erase(ended);
    } else if (std::chrono::steady_clock::now() > deadline) {
      for (const auto& [child, rank] : running) kill(child, SIGKILL);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return statuses;
}

TEST(Processes, ReduceAndPassBarriersTogether) {
  const auto statuses = run_processes(4, [](const RankOnDevice& own) {
    ParallelBuffer buffer = own.buffer(4 * 10000);
    auto* elements = static_cast<float*>(buffer.local());
    for (int round = 0; round < 20; ++round) {
      for (int index = 0; index < 10000; ++index) {
        elements[index] = static_cast<float>(own.rank() + round);
      }
      barrier(*own.group, own.stream);
      all_reduce_(buffer, {.dtype = float32, .count = 10000}, own.stream);
      for (int index = 0; index < 10000; ++index) {
        ASSERT_EQ(elements[index], static_cast<float>(6 + 4 * round));
      }
    }
    buffer.close();
  });
  for (const auto& [rank, status] : statuses) EXPECT_EQ(status, 0) << "rank " << rank;
}

TEST(Processes, AKilledRankIsRaisedByThoseThatWaitForItOnTheDevice) {
  const auto start = std::chrono::steady_clock::now();
  const auto statuses = run_processes(3, [](const RankOnDevice& own) {
    const auto launcher = collectives::Launcher::of(*own.group);
    if (own.rank() == 1) {
      launcher->agree(*own.group, "barrier on the device", [] { return std::string(); }, [] {});
      kill(getpid(), SIGKILL);
    }
    try {
      barrier(*own.group, own.stream);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 1) << error.what();
      EXPECT_EQ(error.pid(), own.group->pid(1));
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(statuses.at(0), 0);
  EXPECT_TRUE(WIFSIGNALED(statuses.at(1)));
  EXPECT_EQ(statuses.at(2), 0);
}

}  // namespace
}  // namespace parallel_tensor::testing
