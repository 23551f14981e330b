#include "thread_state.hpp"

#include <pthread.h>

#include <system_error>

#include "gate.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace emulator {
namespace {

void release(void* pointer) {
  // In a forked child the threads of these streams do not exist, and their locks may be taken.
  if (forked()) return;
  auto* state = static_cast<ThreadState*>(pointer);
  for (const auto& [context, stream] : state->streams) {
    if (stream) stream->close();
  }
  delete state;
}

// A key and not a thread_local object: its destructor does not run for the thread that calls
// exit().
pthread_key_t key() {
  static const pthread_key_t created = [] {
    pthread_key_t made{};
    if (const int error = pthread_key_create(&made, release); error != 0) {
      throw std::system_error(error, std::generic_category());
    }
    return made;
  }();
  return created;
}

}  // namespace

ThreadState& thread_state() {
  if (auto* state = static_cast<ThreadState*>(pthread_getspecific(key()))) return *state;
  auto state = std::make_unique<ThreadState>();
  if (const int error = pthread_setspecific(key(), state.get()); error != 0) {
    throw std::system_error(error, std::generic_category());
  }
  return *state.release();
}

}  // namespace emulator
}  // namespace v1
}  // namespace parallel_tensor
