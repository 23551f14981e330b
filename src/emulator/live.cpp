#include "live.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "context.hpp"
#include "event.hpp"
#include "gate.hpp"
#include "memory.hpp"
#include "physical.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {

pt_emulator_counts live_counts() {
  pt_emulator_counts counts{};
  if (!initialized()) return counts;
  counts.allocations = Physical::created_count();
  counts.fds = Physical::descriptor_count() + gate_descriptors();
  counts.streams = static_cast<long>(streams().size());
  counts.events = static_cast<long>(events().size());
  auto& memory = Memory::instance();
  std::lock_guard lock(memory.mutex);
  counts.reservations = static_cast<long>(memory.reservations.size());
  counts.handles = static_cast<long>(memory.handles.size());
  for (const auto& [base, region] : memory.regions) {
    if (region.kind == RegionKind::host) ++counts.allocations;
    if (region.kind == RegionKind::mapping || region.kind == RegionKind::opened) ++counts.mappings;
  }
  return counts;
}

namespace {

bool leaks_are_fatal = false;

void report_at_exit() {
  if (forked()) return;
  const auto counts = live_counts();
  const struct {
    const char* name;
    long count;
  } rows[] = {{"allocations", counts.allocations},
              {"mappings", counts.mappings},
              {"reservations", counts.reservations},
              {"handles", counts.handles},
              {"multicasts", counts.multicasts},
              {"streams", counts.streams},
              {"events", counts.events}};
  bool any = false;
  for (const auto& row : rows) {
    if (row.count == 0) continue;
    std::fprintf(stderr, "emulated driver: alive at exit in process %d: %ld %s\n",
                 static_cast<int>(getpid()), row.count, row.name);
    any = true;
  }
  if (!any || !leaks_are_fatal) return;
  std::fflush(nullptr);
  _exit(23);
}

}  // namespace

void arrange_exit_report() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* wanted = std::getenv("PARALLEL_TENSOR_EMULATED_LEAKS");
    if (!wanted || !*wanted) return;
    leaks_are_fatal = std::strcmp(wanted, "fatal") == 0;
    if (!leaks_are_fatal && std::strcmp(wanted, "report") != 0) {
      std::fprintf(
          stderr,
          "emulated driver: PARALLEL_TENSOR_EMULATED_LEAKS is \"%s\", expected report or fatal\n",
          wanted);
      return;
    }
    std::atexit(report_at_exit);
  });
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
