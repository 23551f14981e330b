#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "binding.hpp"
#include "parallel_tensor/exchange/group.hpp"

namespace py = pybind11;

namespace parallel_tensor::binding {
namespace {

std::optional<std::chrono::milliseconds> milliseconds(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  if (!(*seconds > 0) || *seconds > 1e9) {
    throw ArgumentError("timeout is " + std::to_string(*seconds) +
                        " s; it must be above zero and finite.");
  }
  return std::chrono::milliseconds(static_cast<long long>(std::ceil(*seconds * 1e3)));
}

py::list all_gather(Group& group, const py::bytes& payload, std::vector<int> descriptors,
                    std::optional<double> timeout) {
  Request request{.operation = "all_gather", .payload = payload};
  request.descriptors = std::move(descriptors);
  const auto limit = milliseconds(timeout);
  std::vector<Answer> answers;
  {
    py::gil_scoped_release release;
    answers = group.all_gather(request, limit);
    group.require_ok(answers, "all_gather");
  }
  py::list result;
  for (Answer& answer : answers) {
    py::list numbers;
    for (posix::Descriptor& descriptor : answer.descriptors) numbers.append(descriptor.release());
    result.append(py::make_tuple(py::bytes(answer.payload), numbers));
  }
  return result;
}

// The rank that the calling thread joined a group as last; faults of tests are aimed with it.
thread_local int joined_as = -1;

int thread_rank() {
  if (joined_as >= 0) return joined_as;
  const char* local_rank = std::getenv("LOCAL_RANK");
  return local_rank ? std::atoi(local_rank) : -1;
}

std::shared_ptr<Group> joined(std::shared_ptr<Group> group) {
  joined_as = group->rank();
  return group;
}

// Takes this rank's place in a step that it cannot take, so that the other ranks learn why.
void report_failure(Group& group, const std::string& operation, const std::string& kind,
                    const std::string& message) {
  group.all_gather({.operation = operation, .status = {kind, message}});
}

}  // namespace

void bind_group(py::module_& module) {
  using py::literals::operator""_a;
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("boot_id", &boot_id);
  module.def("thread_rank", &thread_rank);
  py::class_<Group, std::shared_ptr<Group>>(module, "Group", R"(The ranks of a job on one host.

Making one joins it: collective, it returns when all ranks have called it.

Args:
    rank: This rank, from 0 to size - 1.
    size: How many ranks there are.
    name: The name of the job; equal on all ranks, different from other live jobs of this user.
    timeout: Seconds for this call and the default of every later one; None is
        PARALLEL_TENSOR_TIMEOUT, else 60.

Raises:
    ArgumentError: The rank is outside the group or a value is out of range.
    TimeoutError: Not all ranks came; names the missing ones.
    ExchangeError: Another live job has this name, or the rank is taken.
)")
      .def(py::init([](int rank, int size, const std::string& name, std::optional<double> timeout) {
             const auto limit = milliseconds(timeout).value_or(default_timeout());
             py::gil_scoped_release release;
             return joined(Group::join(rank, size, name, limit));
           }),
           py::kw_only(), "rank"_a, "size"_a, "name"_a, "timeout"_a = py::none())
      .def_static(
          "from_env", [] { return joined(Group::from_env()); }, Release(),
          "The group that the launcher describes (torchrun, Slurm, Open MPI, or "
          "PARALLEL_TENSOR_JOB); cached. Collective the first time.")
      .def_static(
          "_cached",
          [](int rank, int size) {
            return joined(Group::cached(rank, size, exchange::job_name()));
          },
          "rank"_a, "size"_a, Release())
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("size", &Group::size)
      .def_property_readonly("name", &Group::name)
      .def_property_readonly(
          "timeout", [](const Group& group) { return group.timeout().count() / 1e3; },
          "Seconds that a collective call of this group may take.")
      .def_property_readonly("closed", &Group::closed)
      .def_property_readonly("broken", &Group::broken)
      .def("pid", &Group::pid, "rank"_a, "The process of a rank.")
      .def(
          "barrier",
          [](Group& group, std::optional<double> timeout) {
            const auto limit = milliseconds(timeout);
            py::gil_scoped_release release;
            group.barrier(limit);
          },
          "timeout"_a = py::none(),
          "Returns when every rank has called it. Collective. A timeout breaks the group.")
      .def("all_gather", &all_gather, "payload"_a, "fds"_a = std::vector<int>{},
           "timeout"_a = py::none(),
           "Gives every rank's bytes and file descriptors to every rank, in rank order: a list of "
           "(bytes, list of int). Collective. The descriptors that are returned are new and the "
           "caller's; those passed in stay the caller's.")
      .def("close", &Group::close, Release(),
           "Leaves the group: local, waits for nobody. A second call does nothing.")
      .def("_report_failure", &report_failure, "operation"_a, "kind"_a, "message"_a, Release())
      .def("_fail",
           [](Group& group, const std::string& message) {
             group.fail(std::make_exception_ptr(Error(message)));
           })
      .def("__repr__", [](const Group& group) {
        return "Group(rank=" + std::to_string(group.rank()) +
               ", size=" + std::to_string(group.size()) + ", name=\"" + group.name() + "\"" +
               (group.closed()   ? ", closed"
                : group.broken() ? ", broken"
                                 : "") +
               ")";
      });
}

}  // namespace parallel_tensor::binding
