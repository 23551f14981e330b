/// @file
/// Ranks of a job for tests, as threads or as processes, with a deadline. What is left over is
/// ended before anything is judged.
#pragma once

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "parallel_tensor/exchange/group.hpp"

namespace parallel_tensor::test {

using Clock = std::chrono::steady_clock;

/// How one rank ended.
struct RankResult {
  bool finished = false;  ///< it returned or threw; false: it was killed or is stuck
  std::string kind;       ///< exception class, empty when it returned
  std::string message;    ///< that exception's text, else what the rank returned
  int rank = -1;          ///< of a PeerError
  int pid = 0;
  std::string phase;
  std::vector<int> missing;  ///< of a TimeoutError
  double seconds = 0;        ///< how long it ran
};

using RankFunction = std::function<std::string(int rank)>;

inline std::string unique_name() {
  static std::atomic<int> counter{0};
  return "test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
}

/// Runs one rank's function and records its exception.
inline RankResult run_rank(const RankFunction& function, int rank) {
  RankResult result;
  const auto start = Clock::now();
  try {
    result.message = function(rank);
  } catch (const std::exception& error) {
    const Status status = Status::of(error);
    result.kind = status.kind;
    result.message = status.message;
    if (const auto* exchange_error = dynamic_cast<const ExchangeError*>(&error)) {
      result.phase = exchange_error->phase();
    }
    if (const auto* peer = dynamic_cast<const PeerError*>(&error)) {
      result.rank = peer->rank();
      result.pid = peer->pid();
    }
    if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error)) {
      result.missing = timeout->missing();
    }
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  result.finished = true;
  return result;
}

/// Ranks as threads of this process. A thread cannot be ended from outside: one that is stuck ends
/// the program.
inline std::vector<RankResult> run_threads(int size, const RankFunction& function,
                                           std::chrono::seconds limit = std::chrono::seconds(60)) {
  std::vector<RankResult> results(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  std::atomic<int> running{size};
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      results[static_cast<std::size_t>(rank)] = run_rank(function, rank);
      running.fetch_sub(1);
      running.notify_all();
    });
  }
  std::atomic<bool> done{false};
  std::thread watchdog([&] {
    const auto end = Clock::now() + limit;
    while (!done.load()) {
      if (Clock::now() > end) {
        std::fputs("ranks as threads are stuck\n", stderr);
        std::abort();
      }
      ::poll(nullptr, 0, 10);
    }
  });
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  watchdog.join();
  return results;
}

/// Ranks as processes, forked from this one. Nothing of them outlives this object.
class Processes {
 public:
  Processes(int size, const RankFunction& function) {
    for (int rank = 0; rank < size; ++rank) start(rank, function);
  }

  ~Processes() {
    for (std::size_t i = 0; i < children_.size(); ++i) end(i);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Starts one more process.
  void start(int rank, const RankFunction& function) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::close(ends[0]);
      write_result(ends[1], run_rank(function, rank));
      ::_exit(0);
    }
    ::close(ends[1]);
    children_.push_back({pid, posix::Descriptor(ends[0]), RankResult(), false});
  }

  pid_t pid(int i) const { return children_[static_cast<std::size_t>(i)].pid; }
  void signal(int i, int number) const { ::kill(pid(i), number); }

  /// Waits for all processes, ends those that are left at the limit, then returns the results.
  std::vector<RankResult> finish(std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto end_time = Clock::now() + limit;
    std::vector<RankResult> results;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      if (!child.reaped) child.result = read_result(child, end_time);
    }
    for (std::size_t i = 0; i < children_.size(); ++i) {
      end(i);
      results.push_back(children_[i].result);
    }
    return results;
  }

 private:
  struct Child {
    pid_t pid;
    posix::Descriptor output;
    RankResult result;
    bool reaped;
  };

  void end(std::size_t i) {
    Child& child = children_[i];
    if (child.reaped) return;
    // One that has written its result is about to exit by itself, exit handlers included.
    if (!child.result.finished) ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    child.reaped = true;
  }

  static void write_result(int descriptor, const RankResult& result) {
    exchange::Writer writer;
    writer.text(result.kind);
    writer.text(result.message);
    writer.integer(result.rank);
    writer.integer(result.pid);
    writer.text(result.phase);
    writer.integer<std::uint32_t>(static_cast<std::uint32_t>(result.missing.size()));
    for (const int rank : result.missing) writer.integer(rank);
    writer.integer<std::int64_t>(static_cast<std::int64_t>(result.seconds * 1e6));
    const std::string& bytes = writer.bytes();
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ::ssize_t n = ::write(descriptor, bytes.data() + sent, bytes.size() - sent);
      if (n <= 0) return;
      sent += static_cast<std::size_t>(n);
    }
  }

  static RankResult read_result(const Child& child, Clock::time_point end_time) {
    // A child of the child may hold the pipe, so its end is not waited for.
    const posix::Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
    std::string bytes;
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end_time - Clock::now()).count();
      ::pollfd entries[2]{{child.output.get(), POLLIN, 0}, {pidfd.get(), POLLIN, 0}};
      if (::poll(entries, 2, static_cast<int>(std::max<long>(left, 0))) <= 0) return {};
      if (entries[0].revents == 0) break;
      char buffer[4096];
      const ::ssize_t n = ::read(child.output.get(), buffer, sizeof buffer);
      if (n <= 0) break;
      bytes.append(buffer, static_cast<std::size_t>(n));
    }
    if (bytes.empty()) return {};
    exchange::Reader reader(bytes);
    RankResult result;
    result.kind = reader.text();
    result.message = reader.text();
    result.rank = reader.integer<int>();
    result.pid = reader.integer<int>();
    result.phase = reader.text();
    result.missing.resize(reader.integer<std::uint32_t>());
    for (int& rank : result.missing) rank = reader.integer<int>();
    result.seconds = static_cast<double>(reader.integer<std::int64_t>()) / 1e6;
    result.finished = true;
    return result;
  }

  std::vector<Child> children_;
};

inline std::vector<RankResult> run_processes(int size, const RankFunction& function) {
  return Processes(size, function).finish();
}

/// A counter and flags that processes share; made before they are forked.
struct SharedPage {
  SharedPage() {
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    words = static_cast<std::atomic<int>*>(memory);
  }
  ~SharedPage() { ::munmap(words, 4096); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  /// Waits until a word has reached a value; false after 30 s.
  bool await(int word, int value) const {
    const auto end = Clock::now() + std::chrono::seconds(30);
    while (words[word].load() < value) {
      if (Clock::now() > end) return false;
      ::poll(nullptr, 0, 1);
    }
    return true;
  }

  std::atomic<int>* words;
};

/// The open descriptors of this process.
inline int open_descriptors() {
  int count = 0;
  ::DIR* listing = ::opendir("/proc/self/fd");
  while (::readdir(listing) != nullptr) ++count;
  ::closedir(listing);
  return count - 3;  // ".", ".." and the listing itself
}

/// An anonymous file with a text in it.
inline posix::Descriptor file_with(const std::string& text) {
  posix::Descriptor file(::memfd_create("test", MFD_CLOEXEC));
  if (!file ||
      ::pwrite(file.get(), text.data(), text.size(), 0) != static_cast<::ssize_t>(text.size())) {
    std::abort();
  }
  return file;
}

inline std::string text_of(const posix::Descriptor& file) {
  char buffer[256];
  const ::ssize_t n = ::pread(file.get(), buffer, sizeof buffer, 0);
  return n < 0 ? "unreadable" : std::string(buffer, static_cast<std::size_t>(n));
}

/// Reproducible bytes that differ between ranks and positions.
inline std::string pattern(int rank, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>((i * 31 + i / 251 + static_cast<std::size_t>(rank) * 97) & 0xff);
  }
  return text;
}

inline Request request_of(const std::string& operation, const std::string& payload = {}) {
  Request request;
  request.operation = operation;
  request.payload = payload;
  return request;
}

}  // namespace parallel_tensor::test
