/// @file
/// A stream of this library's own, for work that belongs to no stream of the caller's.
#pragma once

#include <cuda.h>

#include "parallel_tensor/driver/device.hpp"

namespace parallel_tensor {
inline namespace v1 {
namespace driver {

/// Owns a stream that does not synchronise with the legacy default stream.
/// The device's context must be current while it lives (ContextGuard).
class Stream {
 public:
  Stream() { api.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING); }
  ~Stream() { api.cuStreamDestroy.result(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const noexcept { return stream_; }

  /// Waits for everything on the stream. @throws DriverError.
  void synchronize() const { api.cuStreamSynchronize(stream_); }

 private:
  CUstream stream_ = nullptr;
};

}  // namespace driver
}  // namespace v1
}  // namespace parallel_tensor
