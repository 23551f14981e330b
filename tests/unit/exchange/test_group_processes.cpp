#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <filesystem>
#include <random>

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

/// One all-gather of a payload and files; throws unless every rank's own are what arrives.
void exchange_and_check(Group& group, std::size_t bytes, int descriptors) {
  const int rank = group.rank();
  const posix::Descriptor file = file_with("file of " + std::to_string(rank));
  Request request = request_of("exchange", pattern(rank, bytes));
  request.descriptors.assign(static_cast<std::size_t>(descriptors), file.get());
  const std::vector<Answer> answers = group.all_gather(request);
  for (int from = 0; from < group.size(); ++from) {
    const Answer& answer = answers[static_cast<std::size_t>(from)];
    if (answer.payload != pattern(from, bytes)) throw Error("wrong payload");
    if (answer.descriptors.size() != static_cast<std::size_t>(descriptors)) {
      throw Error("wrong number of descriptors");
    }
    for (const posix::Descriptor& one : answer.descriptors) {
      if (text_of(one) != "file of " + std::to_string(from)) throw Error("wrong descriptor");
    }
  }
}

/// Becomes an ordinary user with the usual limit of descriptors, when the tests run as root.
void become_ordinary_user(unsigned long descriptors = 1024) {
  const ::rlimit limit{descriptors, descriptors};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw Error("setrlimit");
  if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) throw Error("setresuid");
}

/// From now on the kernel refuses pidfd_open, as it does in some containers.
void forbid_pidfd() {
  ::sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(::seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const ::sock_fprog filter{4, program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    throw Error("seccomp");
  }
}

/// A directory of its own, removed at the end.
struct Directory {
  Directory() {
    std::string pattern_path = "/tmp/parallel_tensor_test_XXXXXX";
    path = ::mkdtemp(pattern_path.data());
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::size_t entries() const {
    const std::filesystem::recursive_directory_iterator all(path);
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }
  std::string path;
};

TEST(GroupProcesses, ExchangePayloadsAndDescriptors) {
  const std::string name = unique_name();
  expect_all_ok(run_processes(3, [&](int rank) {
    const auto group = Group::join(rank, 3, name);
    const int before = open_descriptors();
    for (const std::size_t bytes : {0, 1, 65504, 65505, 1 << 20}) {
      exchange_and_check(*group, bytes, 1);
    }
    exchange_and_check(*group, 10, 300);
    if (open_descriptors() != before) throw Error("descriptors are left open");
    return std::to_string(group->pid(rank));
  }));
}

TEST(GroupProcesses, KnowEachOthersPids) {
  const std::string name = unique_name();
  Processes ranks(3, [&](int rank) {
    const auto group = Group::join(rank, 3, name);
    std::string text;
    for (int other = 0; other < 3; ++other) text += std::to_string(group->pid(other)) + " ";
    group->barrier();
    return text;
  });
  std::string expected;
  for (int rank = 0; rank < 3; ++rank) expected += std::to_string(ranks.pid(rank)) + " ";
  const auto results = ranks.finish();
  expect_all_ok(results);
  for (const RankResult& result : results) EXPECT_EQ(result.message, expected);
}

TEST(GroupProcesses, SeventyTwoOrdinaryProcessesMeet) {
  const std::string name = unique_name();
  expect_all_ok(run_processes(72, [&](int rank) {
    become_ordinary_user();
    const auto group = Group::join(rank, 72, name);
    for (int round = 0; round < 3; ++round) exchange_and_check(*group, 100, 1);
    group->barrier();
    return "";
  }));
}

TEST(GroupProcesses, MoreDescriptorsThanTheUsersLimitMayBeOnTheirWay) {
  const std::string name = unique_name();
  expect_all_ok(run_processes(6, [&](int rank) {
    become_ordinary_user();
    const auto group = Group::join(rank, 6, name);
    for (int round = 0; round < 20; ++round) exchange_and_check(*group, 100, 120);
    return "";
  }));
}

TEST(GroupProcesses, ALimitOfDescriptorsIsACleanErrorThatNamesIt) {
  for (const int limited : {0, 1}) {
    const std::string name = unique_name();
    const auto results = run_processes(3, [&](int rank) -> std::string {
      const auto group = Group::join(rank, 3, name);
      if (rank == limited) become_ordinary_user(60);
      std::string kind;
      try {
        exchange_and_check(*group, 10, 20);
      } catch (const ExchangeError& error) {
        kind = Status::of(error).kind + ": " + error.what();
      }
      exchange_and_check(*group, 10, 2);
      if (open_descriptors() > 30) throw Error("descriptors are left open");
      return kind;
    });
    expect_all_ok(results);
    const std::string& text = results[static_cast<std::size_t>(limited)].message;
    EXPECT_EQ(text.rfind("ExchangeError", 0), 0U) << text;
    EXPECT_NE(text.find("limit of 60"), std::string::npos) << text;
    EXPECT_EQ(results[2].message.rfind(limited == 0 ? "PeerError" : "", 0), 0U);
  }
}

TEST(GroupProcesses, ARankThatLeavesInGoodOrderDisturbsNobody) {
  for (int round = 0; round < 100; ++round) {
    const std::string name = unique_name();
    expect_all_ok(run_processes(4, [&](int rank) {
      const auto group = Group::join(rank, 4, name);
      group->barrier();
      return "";
    }));
    if (HasFailure()) break;
  }
}

TEST(GroupProcesses, AKilledClientIsSeenAtOnceByAll) {
  const std::string name = unique_name();
  const SharedPage page;
  Processes ranks(4, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 4, name);
    page.words[0].fetch_add(1);
    if (rank == 2) ::poll(nullptr, 0, -1);
    group->barrier();
    return "";
  });
  ASSERT_TRUE(page.await(0, 4));
  const pid_t killed = ranks.pid(2);
  ranks.signal(2, SIGKILL);
  const auto results = ranks.finish();
  for (const int rank : {0, 1, 3}) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.kind, "PeerError") << result.message;
    EXPECT_EQ(result.rank, 2);
    EXPECT_EQ(result.pid, killed);
    EXPECT_EQ(result.phase, "barrier");
    EXPECT_LT(result.seconds, 10);
  }
}

TEST(GroupProcesses, AKilledHubIsSeenAtOnceByAll) {
  const std::string name = unique_name();
  const SharedPage page;
  Processes ranks(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    page.words[0].fetch_add(1);
    if (rank == 0) ::poll(nullptr, 0, -1);
    group->barrier();
    return "";
  });
  ASSERT_TRUE(page.await(0, 3));
  ranks.signal(0, SIGKILL);
  const auto results = ranks.finish();
  for (const int rank : {1, 2}) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.kind, "PeerError") << result.message;
    EXPECT_EQ(result.rank, 0);
    EXPECT_EQ(result.phase, "barrier");
  }
}

TEST(GroupProcesses, AKilledClientIsSeenWhileTheHubIsElsewhere) {
  const std::string name = unique_name();
  const SharedPage page;
  Processes ranks(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    page.words[0].fetch_add(1);
    if (rank == 0) page.await(1, 1);
    if (rank == 2) ::poll(nullptr, 0, -1);
    try {
      group->barrier();
    } catch (...) {
      page.words[1].store(1);
      throw;
    }
    return "";
  });
  ASSERT_TRUE(page.await(0, 3));
  ranks.signal(2, SIGKILL);
  const auto results = ranks.finish();
  EXPECT_EQ(results[1].kind, "PeerError");
  EXPECT_EQ(results[1].rank, 2);
  EXPECT_LT(results[1].seconds, 10);
  EXPECT_EQ(results[0].kind, "PeerError");
  EXPECT_EQ(results[0].rank, 2);
}

TEST(GroupProcesses, DeathIsSeenWhileAForkedChildHoldsTheSockets) {
  for (const bool with_handlers : {true, false}) {
    for (const int dying : {0, 1}) {
      const std::string name = unique_name();
      const SharedPage page;
      {
        Processes ranks(3, [&](int rank) -> std::string {
          const auto group = Group::join(rank, 3, name);
          if (rank == dying) {
            // The raw call runs no fork handlers: the child keeps copies of everything.
            const long child = with_handlers ? ::fork() : ::syscall(SYS_fork);
            if (child == 0) {
              page.words[1].store(::getpid());
              ::poll(nullptr, 0, 30000);
              ::_exit(0);
            }
            page.words[0].fetch_add(1);
            ::poll(nullptr, 0, -1);
          }
          page.words[0].fetch_add(1);
          group->barrier();
          return "";
        });
        ASSERT_TRUE(page.await(0, 3));
        ASSERT_TRUE(page.await(1, 1));
        ranks.signal(dying, SIGKILL);
        const auto results = ranks.finish();
        ::kill(page.words[1].load(), SIGKILL);
        for (int rank = 0; rank < 3; ++rank) {
          if (rank == dying) continue;
          const RankResult& result = results[static_cast<std::size_t>(rank)];
          EXPECT_EQ(result.kind, "PeerError") << result.message;
          EXPECT_EQ(result.rank, dying) << result.message;
          EXPECT_LT(result.seconds, 10);
        }
      }
    }
  }
}

TEST(GroupProcesses, DeathIsSeenWherePidfdIsForbidden) {
  for (const int dying : {0, 1}) {
    const std::string name = unique_name();
    const SharedPage page;
    Processes ranks(3, [&](int rank) -> std::string {
      forbid_pidfd();
      const auto group = Group::join(rank, 3, name);
      exchange_and_check(*group, 100, 2);
      page.words[0].fetch_add(1);
      if (rank == dying) {
        if (::fork() == 0) {
          page.words[1].store(::getpid());
          ::poll(nullptr, 0, 30000);
          ::_exit(0);
        }
        page.await(1, 1);
        page.words[0].fetch_add(1);
        ::poll(nullptr, 0, -1);
      }
      group->barrier();
      return "";
    });
    ASSERT_TRUE(page.await(0, 4));
    ranks.signal(dying, SIGKILL);
    const auto results = ranks.finish();
    ::kill(page.words[1].load(), SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == dying) continue;
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].kind, "PeerError");
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].rank, dying);
    }
  }
}

TEST(GroupProcesses, CheckPeersSeesADeath) {
  const std::string name = unique_name();
  const SharedPage page;
  Processes ranks(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    page.words[0].fetch_add(1);
    if (rank == 1) ::poll(nullptr, 0, -1);
    const auto end = Clock::now() + seconds(20);
    while (Clock::now() < end) {
      group->check_peers();
      ::poll(nullptr, 0, 1);
    }
    return "not seen";
  });
  ASSERT_TRUE(page.await(0, 3));
  ranks.signal(1, SIGKILL);
  const auto results = ranks.finish();
  EXPECT_EQ(results[0].kind, "PeerError");
  EXPECT_EQ(results[0].rank, 1);
  EXPECT_EQ(results[2].kind, "PeerError");
  EXPECT_EQ(results[2].rank, 1);
}

TEST(GroupProcesses, AStoppedRankIsNamedByTheDeadline) {
  const std::string name = unique_name();
  const SharedPage page;
  Processes ranks(3, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 3, name);
    page.words[0].fetch_add(1);
    if (rank == 1) ::poll(nullptr, 0, -1);
    page.await(1, 1);
    group->barrier(milliseconds(500));
    return "";
  });
  ASSERT_TRUE(page.await(0, 3));
  ranks.signal(1, SIGSTOP);
  page.words[1].store(1);
  const auto results = ranks.finish(seconds(4));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].kind, "TimeoutError");
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].missing, std::vector<int>{1});
  }
}

TEST(GroupProcesses, ASecondLiveJobOfTheSameNameIsToldThePidOfTheFirst) {
  const std::string name = unique_name();
  const SharedPage page;
  Processes first(2, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 2, name);
    page.words[0].fetch_add(1);
    // The hub of a complete job refuses newcomers in its own calls.
    while (page.words[1].load() < 2) group->barrier();
    group->barrier();
    return "";
  });
  ASSERT_TRUE(page.await(0, 2));
  Processes second(2, [&](int rank) -> std::string {
    try {
      Group::join(rank, 2, name, seconds(20));
    } catch (...) {
      page.words[1].fetch_add(1);
      throw;
    }
    return "";
  });
  const auto results = second.finish();
  // Rank 0 leaves the loop one barrier before rank 1 when the flag changes in between.
  page.words[1].store(2);
  const auto first_results = first.finish();
  for (const RankResult& result : results) {
    EXPECT_EQ(result.kind, "ExchangeError") << result.message;
    EXPECT_NE(result.message.find(std::to_string(first.pid(0))), std::string::npos)
        << result.message;
    EXPECT_LT(result.seconds, 5);
  }
  for (const RankResult& result : first_results) EXPECT_TRUE(result.finished);
}

TEST(GroupProcesses, ManyJobsStartSideBySide) {
  std::vector<std::unique_ptr<Processes>> jobs;
  for (int job = 0; job < 8; ++job) {
    const std::string name = unique_name();
    jobs.push_back(std::make_unique<Processes>(8, [name, job](int rank) {
      const auto group = Group::join(rank, 8, name);
      const auto answers = group->all_gather(request_of("job", std::to_string(job)));
      for (const Answer& answer : answers) {
        if (answer.payload != std::to_string(job)) throw Error("another job's data");
      }
      exchange_and_check(*group, 1000, 1);
      return "";
    }));
  }
  for (const auto& job : jobs) expect_all_ok(job->finish());
}

TEST(GroupProcesses, TheRanksMayStartInAnyOrder) {
  for (const int late : {0, 1}) {
    const std::string name = unique_name();
    const SharedPage page;
    Processes ranks(2, [&](int rank) -> std::string {
      if (rank == late) page.await(0, 1);
      const auto start = Clock::now();
      const auto group = Group::join(rank, 2, name);
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (rank == late && waited > 0.5) throw Error("slow: " + std::to_string(waited));
      return "";
    });
    ::poll(nullptr, 0, 300);
    page.words[0].store(1);
    expect_all_ok(ranks.finish());
  }
}

TEST(GroupProcesses, StrangersDoNotDisturbAJoin) {
  const std::string name = unique_name();
  const SharedPage page;
  Processes job(3, [&](int rank) -> std::string {
    if (rank == 2) page.await(0, 7);
    const auto group = Group::join(rank, 3, name);
    exchange_and_check(*group, 1000, 2);
    return "";
  });
  Processes strangers(7, [&](int kind) -> std::string {
    const exchange::MeetingPlaces places(name);
    posix::Socket socket;
    const auto end = Clock::now() + seconds(20);
    do {
      socket = posix::Socket::create();
      if (Clock::now() > end) throw Error("no hub");
      ::poll(nullptr, 0, 1);
    } while (socket.connect(places.address(0)) != posix::SocketResult::done);
    const exchange::Hello hello{kind == 2 ? "another job" : name, kind == 3 ? 77 : 1,
                                kind == 4 ? 9 : 3, ::getpid(), 1};
    std::string body = kind == 1 ? std::string(5000, 'g') : hello.encode();
    std::vector<int> descriptors;
    if (kind == 5) descriptors.assign(20, 1);
    exchange::OutgoingMessage message(
        kind == 6 ? exchange::MessageKind::answer : exchange::MessageKind::hello, 0, body,
        descriptors);
    if (kind == 0) {
      const ::iovec garbage{body.data(), 7};
      socket.send(&garbage, 1, nullptr, 0);
    } else {
      message.send(socket);
    }
    page.words[0].fetch_add(1);
    // Stays connected until the hub has had enough of it.
    std::vector<::pollfd> entries{{socket.get(), POLLIN, 0}};
    ::poll(entries.data(), 1, 20000);
    return "";
  });
  const auto results = job.finish();
  strangers.finish(seconds(30));
  expect_all_ok(results);
}

TEST(GroupProcesses, ANameThatAChildOfADeadHubHoldsIsSkipped) {
  const std::string name = unique_name();
  const exchange::MeetingPlaces places(name);
  // Its owner is gone and a child of the owner holds it: the hub takes the next name.
  const SharedPage page;
  const auto owner = run_processes(1, [&](int) -> std::string {
    posix::Socket held = posix::Socket::create();
    if (!held.listen(places.address(0), 5)) throw Error("taken");
    const long child = ::syscall(SYS_fork);
    if (child == 0) {
      ::poll(nullptr, 0, 30000);
      ::_exit(0);
    }
    return std::to_string(child);
  });
  const auto results = run_processes(2, [&](int rank) {
    const auto group = Group::join(rank, 2, name, seconds(10));
    group->barrier();
    return "";
  });
  ::kill(std::stoi(owner[0].message), SIGKILL);
  expect_all_ok(results);
}

TEST(GroupProcesses, ANameOfAnotherUserIsSkipped) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to act as two users";
  const std::string name = unique_name();
  const exchange::MeetingPlaces places(name);
  const SharedPage page;
  Processes other(1, [&](int) -> std::string {
    if (::setresuid(65533, 65533, 65533) != 0) throw Error("setresuid");
    posix::Socket socket = posix::Socket::create();
    if (!socket.listen(places.address(0), 5)) throw Error("taken");
    page.words[0].store(1);
    page.await(1, 1);
    return "";
  });
  ASSERT_TRUE(page.await(0, 1));
  const auto results = run_processes(3, [&](int rank) {
    const auto group = Group::join(rank, 3, name, seconds(10));
    exchange_and_check(*group, 10, 1);
    return "";
  });
  page.words[1].store(1);
  expect_all_ok(results);
  expect_all_ok(other.finish());
}

TEST(GroupProcesses, KilledJobsLeaveNothingThatHindersTheNext) {
  const std::string name = unique_name();
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Processes ranks(3, [&](int rank) -> std::string {
      const auto group = Group::join(rank, 3, name);
      while (true) exchange_and_check(*group, 100, 2);
    });
    ::poll(nullptr, 0, static_cast<int>(random() % 20));
    for (int rank = 0; rank < 3; ++rank) ranks.signal(rank, SIGKILL);
    ranks.finish();
  }
  expect_all_ok(run_processes(3, [&](int rank) {
    exchange_and_check(*Group::join(rank, 3, name, seconds(10)), 100, 2);
    return "";
  }));
}

TEST(GroupProcesses, ASocketDirectoryWorksWhateverIsInIt) {
  const Directory directory;
  const std::string long_name = directory.path + "/" + std::string(120, 'd');
  const std::string shared = directory.path + "/shared";
  ::mkdir(shared.c_str(), 0777);
  ::chmod(shared.c_str(), 01777);
  for (const std::string& path : {directory.path + "/new", long_name, shared}) {
    ::setenv("PARALLEL_TENSOR_SOCKET_DIR", path.c_str(), 1);
    const std::string name = unique_name();
    const auto run = [&](int rank) -> std::string {
      const auto group = Group::join(rank, 3, name, seconds(10));
      exchange_and_check(*group, 100, 2);
      group->barrier();
      return "";
    };
    expect_all_ok(run_processes(3, run));
    for (int round = 0; round < 12; ++round) {
      Processes ranks(3, [&](int rank) -> std::string {
        const auto group = Group::join(rank, 3, name);
        while (true) group->barrier();
      });
      ::poll(nullptr, 0, 10);
      for (int rank = 0; rank < 3; ++rank) ranks.signal(rank, SIGKILL);
      ranks.finish();
    }
    expect_all_ok(run_processes(3, run));
    ::unsetenv("PARALLEL_TENSOR_SOCKET_DIR");
  }
  // The three directories and the private one inside the shared one.
  EXPECT_EQ(directory.entries(), 4U);
}

TEST(GroupProcesses, ASecondLiveJobInASocketDirectoryIsToldThePidOfTheFirst) {
  const Directory directory;
  ::setenv("PARALLEL_TENSOR_SOCKET_DIR", directory.path.c_str(), 1);
  const std::string name = unique_name();
  const SharedPage page;
  Processes first(2, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 2, name);
    page.words[0].fetch_add(1);
    page.await(1, 1);
    group->barrier();
    return "";
  });
  ASSERT_TRUE(page.await(0, 2));
  const auto second = run_processes(1, [&](int) {
    Group::join(0, 2, name, seconds(20));
    return "";
  });
  // Somebody who cleans up old files does not make the job's name look free.
  std::string lock;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path)) {
    if (entry.path().extension() == ".lock") lock = entry.path();
  }
  EXPECT_TRUE(std::filesystem::remove(lock));
  const auto third = run_processes(1, [&](int) {
    Group::join(0, 2, name, seconds(20));
    return "";
  });
  page.words[1].store(1);
  const auto first_results = first.finish();
  ::unsetenv("PARALLEL_TENSOR_SOCKET_DIR");
  expect_all_ok(first_results);
  EXPECT_EQ(second[0].kind, "ExchangeError");
  EXPECT_EQ(third[0].kind, "ExchangeError");
  EXPECT_NE(second[0].message.find(std::to_string(first.pid(0))), std::string::npos)
      << second[0].message;
}

TEST(GroupProcesses, ASocketDirectoryThatCannotBeUsedIsNamed) {
  for (const char* path : {"/proc/nothing", "/tmp/file/that/is/not/there"}) {
    ::setenv("PARALLEL_TENSOR_SOCKET_DIR", path, 1);
    const auto results = run_processes(2, [&](int rank) {
      Group::join(rank, 2, "nowhere", seconds(5));
      return "";
    });
    ::unsetenv("PARALLEL_TENSOR_SOCKET_DIR");
    for (const RankResult& result : results) {
      EXPECT_EQ(result.kind, "Error");
      EXPECT_NE(result.message.find("PARALLEL_TENSOR_SOCKET_DIR"), std::string::npos);
    }
  }
}

TEST(GroupProcesses, RanksWithOtherBootIdsDoNotMeet) {
  const std::string name = unique_name();
  const auto results = run_processes(2, [&](int rank) {
    ::setenv("PARALLEL_TENSOR_BOOT_ID", rank == 0 ? "host a" : "host b", 1);
    Group::join(rank, 2, name, milliseconds(300));
    return "";
  });
  EXPECT_EQ(results[0].kind, "TimeoutError");
  EXPECT_EQ(results[1].kind, "TimeoutError");
}

TEST(GroupProcesses, CallsInAForkedChildRaiseAndTheParentIsUnharmed) {
  const std::string name = unique_name();
  expect_all_ok(run_processes(2, [&](int rank) -> std::string {
    auto group = Group::join(rank, 2, name);
    group->attach("object", std::make_shared<int>(1));
    group->barrier();
    Processes child(1, [&](int) -> std::string {
      int raised = 0;
      const auto count = [&](const std::function<void()>& call) {
        try {
          call();
        } catch (const Error&) {
          ++raised;
        }
      };
      count([&] { group->barrier(); });
      count([&] { group->all_gather(request_of("x")); });
      count([&] { group->check(); });
      count([&] { group->check_peers(); });
      count([&] { group->attachment("object"); });
      group->fail(Error("from the child"));
      group->close();
      group.reset();
      // The child may have groups of its own, even of the same name and rank.
      Group::join(0, 1, name + ".child")->barrier();
      return std::to_string(raised);
    });
    const auto results = child.finish();
    if (results[0].message != "5") throw Error("the child: " + results[0].message);
    for (int round = 0; round < 10; ++round) exchange_and_check(*group, 100, 2);
    return "";
  }));
}

TEST(GroupProcesses, AForkedChildHoldsNoSocketOfItsParent) {
  const std::string name = unique_name();
  const auto results = run_processes(2, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 2, name);
    Processes child(1, [&](int) -> std::string {
      int sockets = 0;
      for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        const std::string target = std::filesystem::read_symlink(entry.path(), error);
        if (target.rfind("socket:", 0) == 0 || target.find("pidfd") != std::string::npos) ++sockets;
      }
      return std::to_string(sockets);
    });
    const std::string sockets = child.finish()[0].message;
    group->barrier();
    return sockets;
  });
  expect_all_ok(results);
  EXPECT_EQ(results[0].message, "0");
  EXPECT_EQ(results[1].message, "0");
}

TEST(GroupProcesses, ATimeoutOfOneRankReachesAllAsATimeout) {
  const std::string name = unique_name();
  const SharedPage page;
  const auto results = run_processes(4, [&](int rank) -> std::string {
    const auto group = Group::join(rank, 4, name);
    if (rank == 3) page.await(0, 3);
    try {
      group->barrier(rank == 1 ? milliseconds(200) : milliseconds(20000));
    } catch (...) {
      page.words[0].fetch_add(1);
      throw;
    }
    return "";
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.kind, "TimeoutError") << result.message;
    EXPECT_EQ(result.missing, std::vector<int>{3}) << result.message;
    EXPECT_LT(result.seconds, 10);
  }
}

TEST(GroupProcesses, AWaitingRankUsesLittleProcessorTime) {
  const std::string name = unique_name();
  const auto results = run_processes(3, [&](int rank) -> std::string {
    const auto group = rank < 2 ? Group::join(rank, 2, name) : nullptr;
    if (rank == 1) ::poll(nullptr, 0, 2000);
    const std::clock_t before = std::clock();
    if (group) {
      group->barrier();
    } else {
      try {
        Group::join(1, 2, name + ".nobody", milliseconds(2000));
      } catch (const TimeoutError&) {
      }
    }
    return std::to_string(1000 * (std::clock() - before) / CLOCKS_PER_SEC);
  });
  expect_all_ok(results);
  EXPECT_LT(std::stoi(results[0].message), 20) << "ms for 2 s in a barrier";
  EXPECT_LT(std::stoi(results[2].message), 40) << "ms for 2 s of joining";
}

TEST(GroupProcesses, TheEnvironmentOfALauncherGivesTheGroup) {
  const auto results = run_processes(2, [&](int rank) -> std::string {
    ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    ::setenv("PARALLEL_TENSOR_JOB", ("job of " + std::to_string(::getppid())).c_str(), 1);
    ::setenv("PARALLEL_TENSOR_TIMEOUT", "12.5", 1);
    const auto group = Group::from_env();
    if (Group::from_env() != group) throw Error("not cached");
    group->barrier();
    if (group->timeout() != milliseconds(12500)) throw Error("wrong timeout");
    return group->name() + std::to_string(group->rank());
  });
  expect_all_ok(results);
}

}  // namespace
}  // namespace parallel_tensor::test
