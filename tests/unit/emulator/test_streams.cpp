#include <atomic>
#include <chrono>
#include <mutex>

#include "emulated_driver.hpp"

using namespace emulator_test;

namespace {

class EmulatedStreams : public Driver {
 protected:
  static CUstream create_stream(unsigned int flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(EMULATED(cuStreamCreate)(&stream, flags), CUDA_SUCCESS);
    return stream;
  }
  static void destroy_stream(CUstream stream) {
    EXPECT_EQ(EMULATED(cuStreamDestroy)(stream), CUDA_SUCCESS);
  }
  static CUevent create_event(unsigned int flags = CU_EVENT_DISABLE_TIMING) {
    CUevent event = nullptr;
    EXPECT_EQ(EMULATED(cuEventCreate)(&event, flags), CUDA_SUCCESS);
    return event;
  }
  static void destroy_event(CUevent event) {
    EXPECT_EQ(EMULATED(cuEventDestroy)(event), CUDA_SUCCESS);
  }
};

// Notes the order in which steps run.
class Order {
 public:
  struct Step {
    Order* order;
    int number;
  };
  void add(CUstream stream, Step& step) {
    EXPECT_EQ(EMULATED(cuLaunchHostFunc)(
                  stream,
                  [](void* data) {
                    auto& of = *static_cast<Step*>(data);
                    std::lock_guard lock(of.order->mutex_);
                    of.order->steps_.push_back(of.number);
                  },
                  &step),
              CUDA_SUCCESS);
  }
  std::vector<int> steps() {
    std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  std::mutex mutex_;
  std::vector<int> steps_;
};

}  // namespace

TEST_F(EmulatedStreams, WorkOfOneStreamRunsInOrder) {
  const CUstream stream = create_stream();
  Order order;
  std::vector<Order::Step> steps;
  for (int i = 0; i < 100; ++i) steps.push_back({&order, i});
  std::vector<int> expected;
  for (auto& step : steps) {
    order.add(stream, step);
    expected.push_back(step.number);
  }
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  EXPECT_EQ(order.steps(), expected);
  destroy_stream(stream);
}

TEST_F(EmulatedStreams, QueryIsNotReadyWhileWorkIsPending) {
  const CUstream stream = create_stream();
  EXPECT_EQ(EMULATED(cuStreamQuery)(stream), CUDA_SUCCESS);
  StreamLock lock;
  lock.hold(stream);
  EXPECT_EQ(EMULATED(cuStreamQuery)(stream), CUDA_ERROR_NOT_READY);
  lock.open();
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuStreamQuery)(stream), CUDA_SUCCESS);
  destroy_stream(stream);
}

TEST_F(EmulatedStreams, NonBlockingStreamsDoNotWaitForEachOtherOrTheDefaultStream) {
  const CUstream held = create_stream();
  const CUstream free_stream = create_stream();
  StreamLock lock;
  StreamLock default_lock;
  lock.hold(held);
  default_lock.hold(nullptr);
  Order order;
  Order::Step step{&order, 1};
  order.add(free_stream, step);
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(free_stream), CUDA_SUCCESS);
  EXPECT_EQ(order.steps().size(), 1U);
  default_lock.open();
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(nullptr), CUDA_SUCCESS) << "it does not wait for `held`";
  EXPECT_EQ(EMULATED(cuStreamQuery)(held), CUDA_ERROR_NOT_READY);
  lock.open();
  EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  destroy_stream(held);
  destroy_stream(free_stream);
}

TEST_F(EmulatedStreams, TheLegacyStreamAndBlockingStreamsWaitForEachOther) {
  const CUstream first = create_stream(CU_STREAM_DEFAULT);
  const CUstream second = create_stream(CU_STREAM_DEFAULT);
  StreamLock lock;
  lock.hold(first);
  Order order;
  Order::Step on_legacy{&order, 1};
  Order::Step on_second{&order, 2};
  order.add(CU_STREAM_LEGACY, on_legacy);
  order.add(second, on_second);
  EXPECT_EQ(EMULATED(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(EMULATED(cuStreamQuery)(second), CUDA_ERROR_NOT_READY);
  EXPECT_TRUE(order.steps().empty());
  lock.open();
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(second), CUDA_SUCCESS);
  EXPECT_EQ(order.steps(), (std::vector<int>{1, 2}));
  EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  destroy_stream(first);
  destroy_stream(second);
}

TEST_F(EmulatedStreams, APerThreadStreamIsTheThreadsOwn) {
  StreamLock lock;
  lock.hold(CU_STREAM_PER_THREAD);
  std::thread([this] {
    ASSERT_EQ(EMULATED(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
    Order order;
    Order::Step step{&order, 1};
    order.add(CU_STREAM_PER_THREAD, step);
    EXPECT_EQ(EMULATED(cuStreamSynchronize)(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    EXPECT_EQ(order.steps().size(), 1U);
  }).join();
  lock.open();
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
}

TEST_F(EmulatedStreams, AnEventOrdersTwoStreams) {
  const CUstream first = create_stream();
  const CUstream second = create_stream();
  const CUevent event = create_event();
  StreamLock lock;
  Order order;
  Order::Step before{&order, 1};
  Order::Step after{&order, 2};
  lock.hold(first);
  order.add(first, before);
  ASSERT_EQ(EMULATED(cuEventRecord)(event, first), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuStreamWaitEvent)(second, event, 0), CUDA_SUCCESS);
  order.add(second, after);
  EXPECT_EQ(EMULATED(cuEventQuery)(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(EMULATED(cuStreamQuery)(second), CUDA_ERROR_NOT_READY);
  lock.open();
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(second), CUDA_SUCCESS);
  EXPECT_EQ(order.steps(), (std::vector<int>{1, 2}));
  EXPECT_EQ(EMULATED(cuEventQuery)(event), CUDA_SUCCESS);
  destroy_event(event);
  destroy_stream(first);
  destroy_stream(second);
}

TEST_F(EmulatedStreams, AnEventThatWasNeverRecordedIsReady) {
  const CUevent event = create_event();
  EXPECT_EQ(EMULATED(cuEventQuery)(event), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuEventSynchronize)(event), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuStreamWaitEvent)(nullptr, event, 0), CUDA_SUCCESS);
  destroy_event(event);
}

TEST_F(EmulatedStreams, EventsRefuseBadFlagsAndMeasureTime) {
  CUevent event = nullptr;
  EXPECT_EQ(EMULATED(cuEventCreate)(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuEventCreate)(&event, 0x100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING),
            CUDA_SUCCESS);
  const CUevent start = create_event(CU_EVENT_DEFAULT);
  const CUevent end = create_event(CU_EVENT_DEFAULT);
  float milliseconds = -1;
  EXPECT_EQ(EMULATED(cuEventElapsedTime)(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(EMULATED(cuEventRecord)(start, nullptr), CUDA_SUCCESS);
  StreamLock lock;
  lock.hold(nullptr);
  ASSERT_EQ(EMULATED(cuEventRecord)(end, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuEventSynchronize)(start), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuEventElapsedTime)(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  lock.open();
  ASSERT_EQ(EMULATED(cuEventSynchronize)(end), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuEventElapsedTime)(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(EMULATED(cuEventElapsedTime)(&milliseconds, event, end), CUDA_ERROR_INVALID_HANDLE);
  destroy_event(event);
  destroy_event(start);
  destroy_event(end);
}

TEST_F(EmulatedStreams, AContextEventWaitsForAllStreams) {
  const CUstream first = create_stream();
  const CUstream second = create_stream(CU_STREAM_DEFAULT);
  const CUevent event = create_event();
  StreamLock first_lock;
  StreamLock second_lock;
  first_lock.hold(first);
  second_lock.hold(second);
  ASSERT_EQ(procedure<CUresult(CUcontext, CUevent)>("cuCtxRecordEvent")(context_, event),
            CUDA_SUCCESS);
  first_lock.open();
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(first), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuEventQuery)(event), CUDA_ERROR_NOT_READY);
  second_lock.open();
  EXPECT_EQ(EMULATED(cuEventSynchronize)(event), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuStreamQuery)(second), CUDA_SUCCESS);
  destroy_event(event);
  destroy_stream(first);
  destroy_stream(second);
}

TEST_F(EmulatedStreams, AnEventOfAnotherContextIsRefused) {
  CUcontext other = nullptr;
  ASSERT_EQ(EMULATED(cuDevicePrimaryCtxRetain)(&other, 1), CUDA_SUCCESS);
  const CUevent event = create_event();
  ASSERT_EQ(EMULATED(cuCtxPushCurrent)(other), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuEventRecord)(event, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(procedure<CUresult(CUcontext, CUevent)>("cuCtxRecordEvent")(other, event),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuCtxPopCurrent)(&other), CUDA_SUCCESS);
  destroy_event(event);
  EXPECT_EQ(EMULATED(cuDevicePrimaryCtxRelease)(1), CUDA_SUCCESS);
}

TEST_F(EmulatedStreams, DestroyDoesNotWaitAndTheWorkStillRuns) {
  const CUstream stream = create_stream();
  StreamLock lock;
  lock.hold(stream);
  lock.wait_until_entered();
  Order order;
  Order::Step step{&order, 1};
  order.add(stream, step);
  destroy_stream(stream);
  EXPECT_EQ(EMULATED(cuStreamQuery)(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_TRUE(order.steps().empty());
  lock.open();
  EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS) << "waits for a destroyed stream's work";
  EXPECT_EQ(order.steps().size(), 1U);
}

TEST_F(EmulatedStreams, UnknownHandlesAndBadFlagsAreRefused) {
  CUstream stream = nullptr;
  EXPECT_EQ(EMULATED(cuStreamCreate)(&stream, 0x10), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(EMULATED(cuStreamCreate)(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  const auto bad_stream = reinterpret_cast<CUstream>(0x1234567);
  const auto bad_event = reinterpret_cast<CUevent>(0x1234567);
  EXPECT_EQ(EMULATED(cuStreamSynchronize)(bad_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuStreamDestroy)(bad_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuStreamDestroy)(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuEventRecord)(bad_event, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuEventDestroy)(bad_event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuStreamWaitEvent)(nullptr, bad_event, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(EMULATED(cuLaunchHostFunc)(nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(EmulatedStreams, NothingIsCapturing) {
  const CUstream stream = create_stream();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(EMULATED(cuStreamIsCapturing)(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(EMULATED(cuStreamIsCapturing)(nullptr, &status), CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_EQ(EMULATED(cuThreadExchangeStreamCaptureMode)(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(EMULATED(cuThreadExchangeStreamCaptureMode)(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUcontext context = nullptr;
  EXPECT_EQ(EMULATED(cuStreamGetCtx)(stream, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, context_);
  destroy_stream(stream);
}

TEST_F(EmulatedStreams, AnAsynchronousCopyFromPageableMemoryTakesTheBytesAtOnce) {
  const CUstream stream = create_stream();
  CUdeviceptr device = 0;
  ASSERT_EQ(EMULATED(cuMemAlloc)(&device, 4096), CUDA_SUCCESS);
  StreamLock lock;
  lock.hold(stream);
  int value = 11;
  ASSERT_EQ(EMULATED(cuMemcpyHtoDAsync)(device, &value, sizeof value, stream), CUDA_SUCCESS);
  value = 22;
  lock.open();
  int result = 0;
  ASSERT_EQ(EMULATED(cuMemcpyDtoHAsync)(&result, device, sizeof result, stream), CUDA_SUCCESS);
  EXPECT_EQ(result, 11) << "a copy to pageable memory is complete when the call returns";
  EXPECT_EQ(EMULATED(cuMemFree)(device), CUDA_SUCCESS);
  destroy_stream(stream);
}

TEST_F(EmulatedStreams, AnAsynchronousCopyToPinnedMemoryRunsLater) {
  const CUstream stream = create_stream();
  void* pinned = nullptr;
  CUdeviceptr device = 0;
  ASSERT_EQ(EMULATED(cuMemHostAlloc)(&pinned, 4096, 0), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuMemAlloc)(&device, 4096), CUDA_SUCCESS);
  StreamLock lock;
  lock.hold(stream);
  ASSERT_EQ(EMULATED(cuMemsetD8Async)(device, 0x77, 4096, stream), CUDA_SUCCESS);
  ASSERT_EQ(EMULATED(cuMemcpyDtoHAsync)(pinned, device, 4096, stream), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<char*>(pinned)[4095], 0);
  lock.open();
  ASSERT_EQ(EMULATED(cuStreamSynchronize)(stream), CUDA_SUCCESS);
  EXPECT_EQ(static_cast<char*>(pinned)[4095], 0x77);
  EXPECT_EQ(EMULATED(cuMemFree)(device), CUDA_SUCCESS);
  EXPECT_EQ(EMULATED(cuMemFreeHost)(pinned), CUDA_SUCCESS);
  destroy_stream(stream);
}

TEST_F(EmulatedStreams, FreeWaitsForTheWorkOfTheContext) {
  const CUstream stream = create_stream();
  CUdeviceptr device = 0;
  ASSERT_EQ(EMULATED(cuMemAlloc)(&device, 4096), CUDA_SUCCESS);
  StreamLock lock;
  lock.hold(stream);
  ASSERT_EQ(EMULATED(cuMemsetD8Async)(device, 1, 4096, stream), CUDA_SUCCESS);
  std::atomic<bool> freed{false};
  std::thread freeing([&] {
    ASSERT_EQ(EMULATED(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
    EXPECT_EQ(EMULATED(cuMemFree)(device), CUDA_SUCCESS);
    freed = true;
  });
  lock.wait_until_entered();
  EXPECT_FALSE(freed);
  lock.open();
  freeing.join();
  destroy_stream(stream);
}

TEST_F(EmulatedStreams, ManyThreadsUseManyStreamsAtOnce) {
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      ASSERT_EQ(EMULATED(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
      for (int i = 0; i < 20; ++i) {
        const CUstream stream = create_stream(i % 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
        const CUevent event = create_event();
        for (CUstream on : {stream, CUstream{nullptr}, CU_STREAM_PER_THREAD}) {
          EXPECT_EQ(EMULATED(cuLaunchHostFunc)(
                        on, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &ran),
                    CUDA_SUCCESS);
          EXPECT_EQ(EMULATED(cuEventRecord)(event, on), CUDA_SUCCESS);
        }
        EXPECT_EQ(EMULATED(cuEventSynchronize)(event), CUDA_SUCCESS);
        destroy_event(event);
        destroy_stream(stream);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(EMULATED(cuCtxSynchronize)(), CUDA_SUCCESS);
  EXPECT_EQ(ran, 8 * 20 * 3);
}
