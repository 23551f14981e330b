#include "gate.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

constexpr const char* call_names[call_count] = {
#define PARALLEL_TENSOR_CALL_NAME(name, version) #name,
    PARALLEL_TENSOR_EMULATED_CALLS(PARALLEL_TENSOR_CALL_NAME)
#undef PARALLEL_TENSOR_CALL_NAME
};

struct Fault {
  Call call;
  CUresult code;
  long nth;
  long seen;
  pid_t thread;  // 0 is any
};

struct Gate {
  std::atomic<bool> initialized{false};
  std::atomic<bool> forked{false};
  std::array<std::atomic<unsigned long>, call_count> counts{};

  std::atomic<int> armed{0};
  std::mutex mutex;  // guards faults
  std::vector<Fault> faults;

  std::once_flag environment_once;
  CUresult environment_result = CUDA_SUCCESS;
  std::atomic<int> trace_descriptor{-1};
};

Gate& state() {
  static Gate* gate =
      new Gate;  // left to the process's end: calls may come from other exit handlers
  return *gate;
}

pid_t thread_id() noexcept { return static_cast<pid_t>(syscall(SYS_gettid)); }

// These answer from constants; a caller in a forked child needs them to name the error it got.
bool needs_no_driver(Call call) noexcept {
  return call == PARALLEL_TENSOR_CALL(cuDriverGetVersion) ||
         call == PARALLEL_TENSOR_CALL(cuGetErrorName) ||
         call == PARALLEL_TENSOR_CALL(cuGetErrorString) ||
         call == PARALLEL_TENSOR_CALL(cuGetProcAddress);
}

// "cuMemMap:1=2;cuMemCreate:*=2"
bool parse_fault(const std::string& text) {
  const auto colon = text.find(':');
  const auto equals = text.find('=', colon == std::string::npos ? 0 : colon);
  if (colon == std::string::npos || equals == std::string::npos) return false;
  Call call;
  if (!find_call(text.substr(0, colon).c_str(), &call)) return false;
  const std::string nth = text.substr(colon + 1, equals - colon - 1);
  const std::string code = text.substr(equals + 1);
  char* nth_end = nullptr;
  char* code_end = nullptr;
  const long nth_value = nth == "*" ? -1 : std::strtol(nth.c_str(), &nth_end, 10);
  const long code_value = std::strtol(code.c_str(), &code_end, 10);
  if ((nth_end && (*nth_end || nth.empty() || nth_value < 1)) || *code_end || code.empty()) {
    return false;
  }
  return add_fault(call, static_cast<int>(code_value), nth_value, false);
}

CUresult read_environment() {
  if (const char* list = std::getenv("PARALLEL_TENSOR_EMULATED_FAIL")) {
    const std::string text = list;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(';', begin), text.size());
      const std::string entry = text.substr(begin, end - begin);
      if (!entry.empty() && !parse_fault(entry)) {
        std::fprintf(stderr,
                     "emulated driver: PARALLEL_TENSOR_EMULATED_FAIL: \"%s\" is not CALL:N=CODE or "
                     "CALL:*=CODE "
                     "with the name of an emulated call\n",
                     entry.c_str());
        return CUDA_ERROR_INVALID_VALUE;
      }
      begin = end + 1;
    }
  }
  if (const char* path = std::getenv("PARALLEL_TENSOR_EMULATED_TRACE"); path && *path) {
    // Appending, one write for each line: several processes can share the file.
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (descriptor < 0) {
      std::fprintf(stderr, "emulated driver: PARALLEL_TENSOR_EMULATED_TRACE: cannot open %s: %s\n",
                   path, std::strerror(errno));
      return CUDA_ERROR_INVALID_VALUE;
    }
    state().trace_descriptor = descriptor;
  }
  return CUDA_SUCCESS;
}

CUresult injected_fault(Call call) {
  auto& gate = state();
  if (gate.armed.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  const pid_t thread = thread_id();
  std::lock_guard lock(gate.mutex);
  CUresult result = CUDA_SUCCESS;
  for (auto fault = gate.faults.begin(); fault != gate.faults.end();) {
    if (fault->call != call || (fault->thread != 0 && fault->thread != thread)) {
      ++fault;
      continue;
    }
    ++fault->seen;
    const bool due = fault->nth < 0 || fault->seen == fault->nth;
    if (due && result == CUDA_SUCCESS) result = fault->code;
    if (due && fault->nth > 0) {
      fault = gate.faults.erase(fault);
      gate.armed.fetch_sub(1, std::memory_order_release);
    } else {
      ++fault;
    }
  }
  return result;
}

}  // namespace

const char* call_name(Call call) noexcept { return call_names[static_cast<int>(call)]; }

bool find_call(const char* name, Call* call) noexcept {
  if (!name) return false;
  for (int i = 0; i < call_count; ++i) {
    if (std::strcmp(call_names[i], name) == 0) {
      *call = static_cast<Call>(i);
      return true;
    }
  }
  return false;
}

namespace gate_detail {

CUresult enter(Call call) noexcept {
  auto& gate = state();
  if (gate.forked.load(std::memory_order_relaxed)) {
    return needs_no_driver(call) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  }
  const bool is_init = call == PARALLEL_TENSOR_CALL(cuInit);
  if (!is_init && !needs_no_driver(call) && !gate.initialized.load(std::memory_order_acquire)) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  try {
    if (is_init) {
      std::call_once(gate.environment_once, [&] { gate.environment_result = read_environment(); });
      if (gate.environment_result != CUDA_SUCCESS) return gate.environment_result;
    }
    gate.counts[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed);
    return injected_fault(call);
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

void leave(Call call, CUresult result) noexcept {
  auto& gate = state();
  const int descriptor = gate.trace_descriptor.load(std::memory_order_acquire);
  if (descriptor < 0 || gate.forked.load(std::memory_order_relaxed)) return;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  char line[160];
  const int length = std::snprintf(
      line, sizeof line, "%d %d %lld %s %d\n", static_cast<int>(getpid()),
      static_cast<int>(thread_id()),
      static_cast<long long>(std::chrono::duration_cast<std::chrono::microseconds>(now).count()),
      call_name(call), static_cast<int>(result));
  // A full disk must not fail the call that is traced.
  [[maybe_unused]] const ssize_t written = write(descriptor, line, static_cast<size_t>(length));
}

}  // namespace gate_detail

void set_initialized() noexcept {
  static std::once_flag once;
  // A plain flag: the child may not touch a lock that another thread of the parent held.
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { state().forked = true; }); });
  state().initialized.store(true, std::memory_order_release);
}

bool initialized() noexcept { return state().initialized.load(std::memory_order_acquire); }
bool forked() noexcept { return state().forked.load(std::memory_order_relaxed); }

bool add_fault(Call call, int code, long nth, bool this_thread_only) {
  if (code <= 0 || code > 999 || nth == 0 || nth < -1) return false;
  auto& gate = state();
  std::lock_guard lock(gate.mutex);
  gate.faults.push_back(
      {call, static_cast<CUresult>(code), nth, 0, this_thread_only ? thread_id() : 0});
  gate.armed.fetch_add(1, std::memory_order_release);
  return true;
}

void clear_faults() {
  auto& gate = state();
  std::lock_guard lock(gate.mutex);
  gate.faults.clear();
  gate.armed.store(0, std::memory_order_release);
}

void visit_calls(CallVisit visit, void* context) {
  for (int i = 0; i < call_count; ++i) {
    const unsigned long count = state().counts[static_cast<size_t>(i)].load();
    if (count > 0) visit(call_names[i], count, context);
  }
}

void reset_calls() noexcept {
  for (auto& count : state().counts) count.store(0);
}

long gate_descriptors() noexcept { return state().trace_descriptor.load() >= 0 ? 1 : 0; }

void complain(const char* call, const char* what) noexcept {
  std::fprintf(stderr, "emulated driver: %s: %s\n", call, what);
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
