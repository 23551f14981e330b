#include <gtest/gtest.h>

#include "ranks.hpp"

namespace parallel_tensor::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void expect_all_ok(const std::vector<RankResult>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].finished) << "rank " << rank;
    EXPECT_EQ(results[rank].kind, "") << "rank " << rank << ": " << results[rank].message;
  }
}

/// Gives a file and a payload to all ranks and checks what comes from each.
void exchange_and_check(Group& group, std::size_t bytes, int descriptors) {
  const int rank = group.rank();
  std::vector<posix::Descriptor> files;
  Request request = request_of("exchange", pattern(rank, bytes));
  for (int i = 0; i < descriptors; ++i) {
    files.push_back(file_with(std::to_string(rank) + "." + std::to_string(i)));
    request.descriptors.push_back(files.back().get());
  }
  const std::vector<Answer> answers = group.all_gather(request);
  if (answers.size() != static_cast<std::size_t>(group.size())) throw Error("wrong size");
  for (int from = 0; from < group.size(); ++from) {
    const Answer& answer = answers[static_cast<std::size_t>(from)];
    if (!answer.status.ok()) throw Error("a status failed");
    if (answer.payload != pattern(from, bytes)) throw Error("wrong payload");
    if (answer.descriptors.size() != static_cast<std::size_t>(descriptors)) {
      throw Error("wrong number of descriptors");
    }
    for (int i = 0; i < descriptors; ++i) {
      const posix::Descriptor& file = answer.descriptors[static_cast<std::size_t>(i)];
      if (text_of(file) != std::to_string(from) + "." + std::to_string(i)) {
        throw Error("wrong descriptor");
      }
      if ((::fcntl(file.get(), F_GETFD) & FD_CLOEXEC) == 0) throw Error("not close-on-exec");
    }
  }
}

TEST(GroupThreads, ExchangesPayloadsAndDescriptorsOfManySizes) {
  const std::string name = unique_name();
  expect_all_ok(run_threads(4, [&](int rank) {
    const auto group = Group::join(rank, 4, name);
    for (const std::size_t bytes : {0, 1, 4096, 65504, 65505, 200000, 1 << 20}) {
      exchange_and_check(*group, bytes, 2);
    }
    for (const int descriptors : {0, 1, 127, 128, 129, 300}) {
      exchange_and_check(*group, 10, descriptors);
    }
    return "";
  }));
}

TEST(GroupThreads, PayloadSizesMayDiffer) {
  const std::string name = unique_name();
  expect_all_ok(run_threads(3, [&](int rank) {
    const auto group = Group::join(rank, 3, name);
    const auto answers = group->all_gather(
        request_of("sizes", pattern(rank, static_cast<std::size_t>(rank) * 100000)));
    for (int from = 0; from < 3; ++from) {
      const std::string expected = pattern(from, static_cast<std::size_t>(from) * 100000);
      if (answers[static_cast<std::size_t>(from)].payload != expected) throw Error("wrong");
    }
    return "";
  }));
}

TEST(GroupThreads, TheLargestPayloadPassesAndALargerOneFailsCleanly) {
  const std::string name = unique_name();
  const auto results = run_threads(2, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 2, name);
    exchange_and_check(*group, 16 << 20, 1);
    std::string kind;
    try {
      const std::size_t bytes = rank == 1 ? (16 << 20) + 1 : 1;
      const auto answers = group->all_gather(request_of("large", std::string(bytes, 'x')));
      kind = answers[1].status.kind;
    } catch (const ArgumentError&) {
      kind = "raised";
    }
    group->barrier();
    return kind;
  });
  expect_all_ok(results);
  EXPECT_EQ(results[0].message, "ArgumentError");
  EXPECT_EQ(results[1].message, "raised");
}

TEST(GroupThreads, ADescriptorThatIsNotOpenFailsCleanly) {
  const std::string name = unique_name();
  const auto results = run_threads(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    Request request = request_of("bad descriptor");
    if (rank == 2) request.descriptors = {1, 987654};
    std::string kind;
    try {
      kind = group->all_gather(request)[2].status.kind;
    } catch (const ArgumentError&) {
      kind = "raised";
    }
    group->barrier();
    return kind;
  });
  expect_all_ok(results);
  EXPECT_EQ(results[0].message, "ArgumentError");
  EXPECT_EQ(results[1].message, "ArgumentError");
  EXPECT_EQ(results[2].message, "raised");
}

TEST(GroupThreads, OneRankAloneBehavesTheSame) {
  const int before = open_descriptors();
  {
    const auto group = Group::join(0, 1, unique_name());
    exchange_and_check(*group, 1000, 3);
    group->barrier();
    EXPECT_EQ(group->pid(0), ::getpid());
    group->check();
    group->check_peers();
    group->fail(PeerError("gone", 0, 1, "test"));
    EXPECT_TRUE(group->broken());
    EXPECT_THROW(group->barrier(), Error);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(GroupThreads, SeventyTwoRanksMeet) {
  const std::string name = unique_name();
  expect_all_ok(run_threads(72, [&](int rank) {
    const auto group = Group::join(rank, 72, name);
    for (int round = 0; round < 5; ++round) exchange_and_check(*group, 100, 1);
    group->barrier();
    return "";
  }));
}

TEST(GroupThreads, AMismatchRaisesOnAllRanksAndTheNextCallWorks) {
  const std::string name = unique_name();
  const auto results = run_threads(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    int mismatches = 0;
    std::string text;
    for (int kind = 0; kind < 2; ++kind) {
      Request request = request_of(kind == 0 && rank == 1 ? "other" : "same");
      request.signature = kind == 1 && rank == 2 ? "float64" : "float32";
      request.descriptors = {1};
      try {
        group->all_gather(request);
      } catch (const MismatchError& error) {
        ++mismatches;
        text += error.what();
      }
      group->barrier();
    }
    if (mismatches != 2) throw Error("no mismatch was raised");
    return text;
  });
  expect_all_ok(results);
  for (const RankResult& result : results) {
    EXPECT_NE(result.message.find("rank 1: other(float32)"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("rank 2: same(float64)"), std::string::npos) << result.message;
  }
}

TEST(GroupThreads, AFailedStatusIsAPeerErrorOnTheOthersAndTheNextCallWorks) {
  const std::string name = unique_name();
  const auto results = run_threads(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    Request request = request_of("create");
    request.signature = rank == 1 ? "" : "shape";
    if (rank == 1) {
      request.status = Status::of(OutOfMemoryError("no 64 MiB left", "cuMemCreate", 2, "OOM"));
    }
    std::string text;
    try {
      group->require_ok(group->all_gather(request), "create");
    } catch (const PeerError& error) {
      if (error.rank() != 1 || error.phase() != "create" || error.pid() != ::getpid()) throw;
      text = error.what();
    }
    group->barrier();
    if (group->broken()) throw Error("broken");
    return text;
  });
  expect_all_ok(results);
  EXPECT_NE(results[0].message.find("OutOfMemoryError: no 64 MiB left"), std::string::npos);
  EXPECT_EQ(results[1].message, "");
  EXPECT_EQ(results[2].message, results[0].message);
}

TEST(GroupThreads, ADeadlineNamesTheMissingAndBreaksTheGroupOnAllRanks) {
  const std::string name = unique_name();
  std::atomic<int> gave_up{0};
  const auto results = run_threads(4, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 4, name);
    if (rank == 2) {
      while (gave_up.load() < 3) ::poll(nullptr, 0, 1);
      group->barrier();
      return "";
    }
    try {
      group->barrier(milliseconds(300));
    } catch (const TimeoutError&) {
      gave_up.fetch_add(1);
      try {
        group->barrier();
      } catch (const TimeoutError& again) {
        if (!group->broken()) throw Error("not broken");
        throw;
      }
    }
    return "";
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.kind, "TimeoutError") << result.message;
    EXPECT_EQ(result.missing, std::vector<int>{2}) << result.message;
    EXPECT_EQ(result.phase, "barrier");
    EXPECT_NE(result.message.find("rank 2 (pid "), std::string::npos) << result.message;
    EXPECT_LT(result.seconds, 5);
  }
}

TEST(GroupThreads, FailBreaksTheGroupOnAllRanks) {
  for (const int failing : {0, 1}) {
    const std::string name = unique_name();
    const auto results = run_threads(3, [&](int rank) -> std::string {
      const auto group = Group::join(rank, 3, name);
      group->barrier();
      if (rank == failing) {
        try {
          throw DriverError("cuMemMap failed", "cuMemMap", 801, "CUDA_ERROR_NOT_SUPPORTED");
        } catch (const DriverError& error) {
          group->fail(error);
        }
      }
      group->barrier();
      return "";
    });
    for (int rank = 0; rank < 3; ++rank) {
      const RankResult& result = results[static_cast<std::size_t>(rank)];
      EXPECT_NE(result.message.find("cuMemMap failed"), std::string::npos) << result.message;
      if (rank == failing) {
        EXPECT_EQ(result.kind, "DriverError");
      } else {
        EXPECT_EQ(result.kind, "PeerError");
        EXPECT_EQ(result.rank, failing);
        EXPECT_EQ(result.pid, ::getpid());
      }
    }
  }
}

TEST(GroupThreads, FailIsSeenByAWaitingRankWhileTheHubIsElsewhere) {
  const std::string name = unique_name();
  std::atomic<bool> seen{false};
  const auto results = run_threads(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    if (rank == 0) {
      while (!seen.load()) ::poll(nullptr, 0, 1);
      group->check();
    }
    if (rank == 1) group->fail(Error("rank 1 gives up"));
    if (rank == 2) {
      try {
        group->barrier();
      } catch (...) {
        seen.store(true);
        throw;
      }
    }
    group->barrier();
    return "";
  });
  EXPECT_EQ(results[0].kind, "PeerError");
  EXPECT_EQ(results[0].rank, 1);
  EXPECT_EQ(results[1].kind, "ExchangeError");
  EXPECT_EQ(results[2].kind, "PeerError");
  EXPECT_EQ(results[2].rank, 1);
  EXPECT_LT(results[2].seconds, 5);
}

TEST(GroupThreads, CheckPeersSeesABrokenGroupAndABrokenHub) {
  for (const int failing : {0, 2}) {
    const std::string name = unique_name();
    const auto results = run_threads(3, [&](int rank) -> std::string {
      const auto group = Group::join(rank, 3, name);
      group->check();
      group->check_peers();
      group->barrier();
      if (rank == failing) {
        group->fail(Error("stop"));
        return "";
      }
      const auto end = Clock::now() + seconds(20);
      while (Clock::now() < end) group->check_peers();
      return "not seen";
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == failing) continue;
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].kind, "PeerError");
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].rank, failing);
    }
  }
}

TEST(GroupThreads, ClosingOneRankIsAPeerErrorOnTheOthers) {
  for (const int closing : {0, 1}) {
    const std::string name = unique_name();
    const auto results = run_threads(2, [&](int rank) -> std::string {
      const auto group = Group::join(rank, 2, name);
      group->barrier();
      if (rank == closing) {
        group->close();
        group->close();
        if (!group->closed() || group->broken()) throw Error("wrong state");
      }
      group->barrier();
      return "";
    });
    EXPECT_EQ(results[static_cast<std::size_t>(closing)].kind, "Error");
    EXPECT_EQ(results[static_cast<std::size_t>(1 - closing)].kind, "PeerError");
    EXPECT_EQ(results[static_cast<std::size_t>(1 - closing)].rank, closing);
  }
}

TEST(GroupThreads, CloseFromAnotherThreadEndsAWait) {
  const std::string name = unique_name();
  const auto results = run_threads(2, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 2, name);
    if (rank == 0) {
      while (!group->broken()) {
        try {
          group->check_peers();
        } catch (const PeerError&) {
        }
      }
      return "";
    }
    std::thread closer([&] { group->close(); });
    std::string kind;
    try {
      group->barrier();
    } catch (const std::exception& error) {
      kind = Status::of(error).kind;
    }
    closer.join();
    return kind;
  });
  EXPECT_EQ(results[1].message, "Error");
}

TEST(GroupThreads, TheSameNameAndRankTwiceInAProcessRaises) {
  const auto group = Group::join(0, 1, "twice");
  EXPECT_THROW(Group::join(0, 1, "twice"), Error);
  EXPECT_THROW(Group::join(0, 2, "twice", milliseconds(100)), Error);
  group->close();
  EXPECT_NO_THROW(Group::join(0, 1, "twice"));
}

TEST(GroupThreads, ARankThatIsTakenIsRefusedByNameAndTheJobGoesOn) {
  const std::string name = unique_name();
  std::atomic<int> refused{0};
  const auto results = run_threads(4, [&](int thread) -> std::string {
    // Thread 3 is a second rank 1 with another size, which no list of this process can know.
    if (thread == 3) {
      try {
        Group::join(2, 5, name, seconds(20));
      } catch (...) {
        refused.store(1);
        throw;
      }
    }
    if (thread == 2) {
      while (refused.load() == 0) ::poll(nullptr, 0, 1);
    }
    const auto group = Group::join(thread, 3, name);
    group->barrier();
    return "";
  });
  EXPECT_EQ(results[3].kind, "MismatchError") << results[3].message;
  EXPECT_EQ(results[0].kind, "");
  EXPECT_EQ(results[1].kind, "");
  EXPECT_EQ(results[2].kind, "");
}

TEST(GroupThreads, JoiningAloneTimesOutNamingWhoIsMissing) {
  const auto results = run_threads(2, [&](int rank) -> std::string {
    Group::join(rank, 3, rank == 0 ? "hub alone" : "client alone", milliseconds(300));
    return "";
  });
  EXPECT_EQ(results[0].kind, "TimeoutError");
  EXPECT_EQ(results[0].missing, (std::vector<int>{1, 2}));
  EXPECT_EQ(results[1].kind, "TimeoutError");
  EXPECT_EQ(results[1].missing, std::vector<int>{0});
  EXPECT_EQ(results[1].phase, "join");
}

TEST(GroupThreads, ATimeoutWhileJoiningNamesTheMissingOnTheClientsToo) {
  const std::string name = unique_name();
  const auto results = run_threads(3, [&](int rank) -> std::string {
    // Client 2 gives up first, and knows by itself that rank 3 is not there.
    Group::join(rank, 4, name, milliseconds(rank == 2 ? 500 : 5000));
    return "";
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.kind, "TimeoutError") << result.message;
    EXPECT_EQ(std::count(result.missing.begin(), result.missing.end(), 3), 1) << result.message;
  }
}

TEST(GroupThreads, BadArgumentsAreRefused) {
  EXPECT_THROW(Group::join(-1, 2, "x"), ArgumentError);
  EXPECT_THROW(Group::join(2, 2, "x"), ArgumentError);
  EXPECT_THROW(Group::join(0, 0, "x"), ArgumentError);
  EXPECT_THROW(Group::join(0, 1, ""), ArgumentError);
  EXPECT_THROW(Group::join(0, 1, std::string(2000, 'x')), ArgumentError);
  EXPECT_THROW(Group::join(0, 1, "x", milliseconds(0)), ArgumentError);
  const auto group = Group::join(0, 1, "x");
  EXPECT_THROW(group->pid(1), ArgumentError);
  EXPECT_THROW(group->barrier(milliseconds(-1)), ArgumentError);
}

TEST(GroupThreads, DescriptorsStayConstantOverManyExchangesAndGroups) {
  const std::string name = unique_name();
  run_threads(2, [&](int rank) {
    Group::join(rank, 2, name)->barrier();
    return "";
  });
  const int before = open_descriptors();
  std::atomic<int> during_min{1 << 30};
  std::atomic<int> during_max{0};
  expect_all_ok(run_threads(3, [&](int rank) {
    const auto group = Group::join(rank, 3, name);
    const posix::Descriptor file = file_with("x");
    for (int round = 0; round < 1000; ++round) {
      Request request = request_of("round", "payload");
      request.descriptors = {file.get(), file.get()};
      group->all_gather(request);
      if (round % 250 != 0) continue;
      group->barrier();
      if (rank == 0) {
        const int now = open_descriptors();
        during_min.store(std::min(during_min.load(), now));
        during_max.store(std::max(during_max.load(), now));
      }
      group->barrier();
    }
    return "";
  }));
  EXPECT_EQ(during_min.load(), during_max.load());
  EXPECT_EQ(open_descriptors(), before);
  expect_all_ok(run_threads(3, [&](int rank) {
    for (int round = 0; round < 100; ++round) {
      const auto group = Group::join(rank, 3, name + "." + std::to_string(round));
      group->barrier();
    }
    return "";
  }));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(GroupThreads, ABrokenGroupLeavesNothingOpenAndItsNameCanBeJoinedAgain) {
  const std::string name = unique_name();
  run_threads(2, [&](int rank) {
    Group::join(rank, 2, name)->barrier();
    return "";
  });
  const int before = open_descriptors();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Group>> groups(2);
    run_threads(2, [&](int rank) {
      const auto group = Group::join(rank, 2, name);
      groups[static_cast<std::size_t>(rank)] = group;
      group->fail(Error("broken on purpose"));
      return "";
    });
    EXPECT_EQ(open_descriptors(), before) << "a broken group holds no socket";
  }
  expect_all_ok(run_threads(2, [&](int rank) {
    Group::join(rank, 2, name)->barrier();
    return "";
  }));
}

TEST(GroupThreads, EightThreadsUseEightGroupsOfTheSameRanksAtOnce) {
  const std::string name = unique_name();
  expect_all_ok(run_threads(24, [&](int thread) {
    const auto group = Group::join(thread % 3, 3, name + "." + std::to_string(thread / 3));
    for (int round = 0; round < 50; ++round) exchange_and_check(*group, 300, 2);
    return "";
  }));
}

TEST(GroupThreads, ThreadsOfOneRankTakeTurns) {
  const std::string name = unique_name();
  expect_all_ok(run_threads(2, [&](int rank) {
    const auto group = Group::join(rank, 2, name);
    const auto results = run_threads(4, [&](int) {
      for (int round = 0; round < 100; ++round) group->barrier();
      return "";
    });
    for (const RankResult& result : results) {
      if (!result.kind.empty()) throw Error(result.message);
    }
    return "";
  }));
}

TEST(GroupThreads, AttachmentsLiveAsLongAsTheGroup) {
  const auto group = Group::join(0, 1, unique_name());
  EXPECT_EQ(group->attachment("workspace"), nullptr);
  std::weak_ptr<int> watched;
  {
    const auto object = std::make_shared<int>(7);
    watched = object;
    group->attach("workspace", object);
  }
  EXPECT_EQ(*std::static_pointer_cast<int>(group->attachment("workspace")), 7);
  group->fail(Error("broken"));
  EXPECT_FALSE(watched.expired());
  group->close();
  EXPECT_TRUE(watched.expired());
  EXPECT_THROW(group->attach("workspace", std::make_shared<int>(8)), Error);
}

TEST(GroupThreads, AnAttachmentThatUsesTheGroupWhileItIsDroppedDoesNotDeadlock) {
  const auto group = Group::join(0, 1, unique_name());
  bool asked = false;
  group->attach("x", std::shared_ptr<void>(nullptr, [&](void*) {
                  asked = group->attachment("x") == nullptr && group->closed();
                }));
  group->close();
  EXPECT_TRUE(asked);
}

struct Interrupt : std::runtime_error {
  using std::runtime_error::runtime_error;
};
std::atomic<bool> interrupt_now{false};
std::thread::id interrupted_thread;

TEST(GroupThreads, AnInterruptEndsAWaitAndBreaksTheGroup) {
  interrupt_now.store(false);
  interrupted_thread = {};
  posix::set_interrupt_hook([] {
    if (interrupt_now.load() && interrupted_thread == std::this_thread::get_id()) {
      throw Interrupt("Ctrl-C");
    }
  });
  const std::string name = unique_name();
  const auto results = run_threads(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    group->barrier();
    if (rank == 2) {
      while (!group->broken()) {
        try {
          group->check_peers();
        } catch (const PeerError&) {
        }
      }
      group->barrier();
    }
    if (rank == 1) {
      interrupted_thread = std::this_thread::get_id();
      interrupt_now.store(true);
      try {
        group->barrier();
      } catch (const Interrupt&) {
        group->barrier();
      }
    }
    group->barrier();
    return "";
  });
  posix::set_interrupt_hook(nullptr);
  EXPECT_EQ(results[0].kind, "PeerError");
  EXPECT_EQ(results[0].rank, 1);
  EXPECT_EQ(results[1].kind, "ExchangeError");
  EXPECT_EQ(results[2].kind, "PeerError");
  for (const RankResult& result : results) {
    EXPECT_NE(result.message.find("Ctrl-C"), std::string::npos) << result.message;
    EXPECT_LT(result.seconds, 3);
  }
}

Group* hook_group = nullptr;

TEST(GroupThreads, AnInterruptHandlerThatCallsTheGroupGetsAnError) {
  const std::string name = unique_name();
  const auto results = run_threads(2, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 2, name);
    if (rank == 0) {
      while (!group->broken()) {
        try {
          group->check_peers();
        } catch (const PeerError&) {
        }
      }
      return "";
    }
    hook_group = group.get();
    posix::set_interrupt_hook([] {
      if (hook_group->rank() == 1) hook_group->barrier();
    });
    group->barrier();
    return "";
  });
  posix::set_interrupt_hook(nullptr);
  EXPECT_EQ(results[1].kind, "Error") << results[1].message;
  EXPECT_LT(results[1].seconds, 3);
}

TEST(GroupThreads, TheCachedGroupIsReturnedAndJoinedAnewAfterItBroke) {
  const std::string name = unique_name();
  const auto first = Group::cached(0, 1, name);
  EXPECT_EQ(Group::cached(0, 1, name), first);
  first->fail(Error("broken"));
  const auto second = Group::cached(0, 1, name);
  EXPECT_NE(second, first);
  second->close();
  EXPECT_NE(Group::cached(0, 1, name), second);
  Group::cached(0, 1, name)->close();
}

}  // namespace
}  // namespace parallel_tensor::test
