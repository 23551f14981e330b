/// @file
/// What the launcher's environment says: rank, size and name of the job, deadline, host identity.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "parallel_tensor/error.hpp"
#include "parallel_tensor/posix/descriptor.hpp"

namespace parallel_tensor {
inline namespace v1 {

/// Rank, size and name with which to join.
struct GroupIdentity {
  int rank = 0;
  int size = 1;
  std::string name;
};

namespace exchange {

/// The value of an environment variable; empty when it is unset.
inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// The whole text as a number. @throws ArgumentError naming the variable
template <typename Number>
Number parse_number(std::string_view text, const std::string& variable_name) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw ArgumentError("the environment variable " + variable_name + " is '" + std::string(text) +
                        "', which is not a number");
  }
  return number;
}

/// Slurm's list of tasks per node, "4(x2),3": the entry of one node.
inline int slurm_tasks_of_node(const std::string& list, int node, const std::string& name) {
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const std::size_t open = entry.find("(x");
    const int tasks = parse_number<int>(entry.substr(0, open), name);
    int nodes = 1;
    if (open != std::string_view::npos) {
      const std::string_view count = entry.substr(open + 2);
      nodes = parse_number<int>(count.substr(0, count.find(')')), name);
    }
    if (node < nodes) return tasks;
    node -= nodes;
  }
  throw ArgumentError("the environment variable " + name + " is '" + list +
                      "', which has no entry for this node");
}

/// What one launcher says; an empty field is one that it does not say.
struct LauncherValues {
  std::string rank;
  std::string rank_variable;
  std::string size;
  std::string size_variable;
  std::string name;
};

inline LauncherValues torchrun_values() {
  LauncherValues values{
      variable("LOCAL_RANK"), "LOCAL_RANK", variable("LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE", {}};
  const std::string run = variable("TORCHELASTIC_RUN_ID");
  const std::string port = variable("MASTER_PORT");
  if (run.empty() && port.empty()) return values;
  values.name = "torchrun:" + run + ":" + variable("MASTER_ADDR") + ":" + port + ":" +
                variable("GROUP_RANK") + ":" + variable("TORCHELASTIC_RESTART_COUNT");
  return values;
}

inline LauncherValues slurm_values() {
  LauncherValues values{variable("SLURM_LOCALID"), "SLURM_LOCALID", {}, {}, {}};
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const std::string list = variable(name);
    if (list.empty()) continue;
    const std::string node = variable("SLURM_NODEID");
    const int index = node.empty() ? 0 : parse_number<int>(node, "SLURM_NODEID");
    values.size = std::to_string(slurm_tasks_of_node(list, index, name));
    values.size_variable = name;
    break;
  }
  const std::string job = variable("SLURM_JOB_ID");
  if (!job.empty()) {
    values.name = "slurm:" + job + ":" + variable("SLURM_STEP_ID") + ":" +
                  variable("SLURM_NODEID") + ":" + variable("SLURM_RESTART_COUNT");
  }
  return values;
}

inline LauncherValues open_mpi_values() {
  LauncherValues values{variable("OMPI_COMM_WORLD_LOCAL_RANK"),
                        "OMPI_COMM_WORLD_LOCAL_RANK",
                        variable("OMPI_COMM_WORLD_LOCAL_SIZE"),
                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                        {}};
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    const std::string job = variable(name);
    if (job.empty()) continue;
    values.name = "openmpi:" + job;
    break;
  }
  return values;
}

/// What the launchers say: `visit` sees each one that gives both a rank and a size, until it
/// returns false.
template <typename Visit>
void for_each_launcher(Visit visit) {
  for (const auto launcher : {&torchrun_values, &slurm_values, &open_mpi_values}) {
    const LauncherValues values = launcher();
    if (values.rank.empty() || values.size.empty()) continue;
    if (!visit(values)) return;
  }
}

/// The name of the job: `PARALLEL_TENSOR_JOB`, else from the first launcher that says one.
/// @throws NotSupportedError naming the variables
inline std::string job_name() {
  std::string name = variable("PARALLEL_TENSOR_JOB");
  for_each_launcher([&](const LauncherValues& values) {
    if (name.empty()) name = values.name;
    return name.empty();
  });
  if (!name.empty()) return name;
  throw NotSupportedError(
      "the environment gives no name for the job. Set PARALLEL_TENSOR_JOB to the same text on all "
      "ranks, or start with torchrun (TORCHELASTIC_RUN_ID, MASTER_PORT), srun (SLURM_JOB_ID) or "
      "Open MPI (PMIX_NAMESPACE).");
}

/// Rank and size from the first launcher that says both, and the name of the job.
/// @throws NotSupportedError naming the variables
inline GroupIdentity identity_from_env() {
  GroupIdentity identity;
  bool known = false;
  for_each_launcher([&](const LauncherValues& values) {
    identity.rank = parse_number<int>(values.rank, values.rank_variable);
    identity.size = parse_number<int>(values.size, values.size_variable);
    known = true;
    return false;
  });
  if (!known) {
    throw NotSupportedError(
        "the environment does not say which rank this process is. Start it with torchrun "
        "(LOCAL_RANK, LOCAL_WORLD_SIZE), srun (SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE) or Open "
        "MPI (OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE), or make the group with an "
        "explicit rank, size and name.");
  }
  identity.name = job_name();
  return identity;
}

}  // namespace exchange

/// `PARALLEL_TENSOR_TIMEOUT` in seconds (a fraction is allowed), 60 s when unset. Any thread.
/// @throws ArgumentError when it is not a positive number
inline std::chrono::milliseconds default_timeout() {
  const std::string text = exchange::variable("PARALLEL_TENSOR_TIMEOUT");
  if (text.empty()) return std::chrono::seconds(60);
  const double seconds = exchange::parse_number<double>(text, "PARALLEL_TENSOR_TIMEOUT");
  if (!(seconds > 0)) {
    throw ArgumentError("the environment variable PARALLEL_TENSOR_TIMEOUT is '" + text +
                        "'; it must be a positive number of seconds");
  }
  constexpr double most = 30.0 * 24 * 3600;
  const double milliseconds = (seconds < most ? seconds : most) * 1000;
  return std::chrono::milliseconds(static_cast<long long>(milliseconds < 1 ? 1 : milliseconds));
}

/// What identifies this boot of this host: equal in all its containers, different elsewhere.
/// `PARALLEL_TENSOR_BOOT_ID` takes its place. Any thread.
inline std::string boot_id() {
  std::string text = exchange::variable("PARALLEL_TENSOR_BOOT_ID");
  if (!text.empty()) return text;
  // Not by a stream of the standard library: with some builds of libtorch, `import torch` crashes
  // in a process that has opened one before (seen with torch 2.11 on a libstdc++ of GCC 13).
  const posix::Descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char line[64] = {};
  const ssize_t length = ::read(file.get(), line, sizeof line - 1);
  if (length > 0) text.assign(line, ::strcspn(line, "\n"));
  return text;
}

}  // namespace v1
}  // namespace parallel_tensor
