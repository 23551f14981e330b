// Two ranks as threads share memory, read each other's bytes, and say which version they used.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <parallel_tensor/error.hpp>
#include <parallel_tensor/parallel_buffer.hpp>
#include <parallel_tensor/version.hpp>
#include <thread>

namespace pt = parallel_tensor;

int main() {
  bool right[2] = {false, false};
  auto run = [&right](int rank) {
    try {
      auto group = pt::Group::join(rank, 2, "consumer", std::chrono::seconds(20));
      auto buffer = pt::ParallelBuffer::create(group, 4096);
      std::memset(buffer.local(), 'a' + rank, buffer.bytes());
      group->barrier();
      const char* theirs = static_cast<const char*>(buffer.peer(1 - rank));
      right[rank] = theirs[0] == 'b' - rank && theirs[4095] == 'b' - rank;
      group->barrier();
      buffer.close();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  if (right[0] && right[1]) std::puts("parallel-tensor " PARALLEL_TENSOR_VERSION);
  return right[0] && right[1] ? 0 : 1;
}
