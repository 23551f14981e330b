#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "parallel_tensor/memory/device_memory.hpp"
#include "parallel_tensor/parallel_buffer.hpp"
#include "support.hpp"

namespace parallel_tensor::testing {
namespace {

using std::chrono::seconds;

std::shared_ptr<Group> join(int rank, int size, const std::string& name) {
  return Group::join(rank, size, "test_parallel_buffer " + name + std::to_string(getpid()),
                     seconds(30));
}

BufferOptions on_device(int ordinal) { return {.device = ordinal}; }

TEST(ParallelBuffer, LetsEveryRankReadAndWriteEveryRanksMemory) {
  run_ranks(4, [](int rank) {
    auto group = join(rank, 4, "bytes");
    auto buffer = ParallelBuffer::create(group, 1000, on_device(rank));
    EXPECT_EQ(buffer.bytes(), 1000U);
    EXPECT_EQ(buffer.flavor(), memory::Flavor::descriptor);
    static_cast<int*>(buffer.local())[0] = 100 + rank;
    group->barrier();
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(static_cast<int*>(buffer.peer(peer))[0], 100 + peer);
      static_cast<int*>(buffer.peer(peer))[1 + rank] = rank;
    }
    group->barrier();
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(static_cast<int*>(buffer.local())[1 + peer], peer);
    }
    buffer.close();
    group->close();
  });
  reclaim_all();
}

TEST(ParallelBuffer, OfNoBytesHasNoMemory) {
  run_ranks(2, [](int rank) {
    auto buffer = ParallelBuffer::create(join(rank, 2, "empty"), 0, on_device(0));
    EXPECT_EQ(buffer.local(), nullptr);
    EXPECT_EQ(buffer.peer(1 - rank), nullptr);
    buffer.close();
  });
}

TEST(ParallelBuffer, RefusesWhatIsOutsideTheGroupAndWhatIsClosed) {
  run_ranks(2, [](int rank) {
    auto buffer = ParallelBuffer::create(join(rank, 2, "refuse"), 8, on_device(rank));
    EXPECT_THROW(buffer.peer(2), ArgumentError);
    EXPECT_THROW(buffer.peer(-1), ArgumentError);
    buffer.close();
    buffer.close();
    EXPECT_THROW(buffer.local(), Error);
  });
}

TEST(ParallelBuffer, OfDifferentSizesIsAMismatchOnAllRanks) {
  run_ranks(3, [](int rank) {
    auto group = join(rank, 3, "mismatch");
    const std::size_t bytes = rank == 1 ? 16 : 8;
    EXPECT_THROW(ParallelBuffer::create(group, bytes, on_device(rank)), MismatchError);
    auto works = ParallelBuffer::create(group, 8, on_device(rank));
    works.close();
    group->close();
  });
}

TEST(ParallelBuffer, ThatFailsOnOneRankFailsOnAllAndTheNextWorks) {
  reclaim_all();
  const std::string before = live_text();
  for (const char* call : {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemMap",
                           "cuMemImportFromShareableHandle", "cuMemSetAccess"}) {
    run_ranks(3, [&](int rank) {
      auto group = join(rank, 3, call);
      if (rank == 1) fail(call, CUDA_ERROR_OUT_OF_MEMORY, 1, true);
      try {
        ParallelBuffer::create(group, 4 << 20, on_device(rank));
        ADD_FAILURE() << call << " on rank " << rank;
      } catch (const OutOfMemoryError& error) {
        EXPECT_EQ(rank, 1) << error.what();
        EXPECT_EQ(error.call(), call);
      } catch (const PeerError& error) {
        EXPECT_NE(rank, 1) << error.what();
        EXPECT_EQ(error.rank(), 1);
        EXPECT_NE(std::string(error.what()).find(call), std::string::npos) << error.what();
      }
      auto works = ParallelBuffer::create(group, 4 << 20, on_device(rank));
      works.close();
      group->close();
    });
    clear_faults();
    reclaim_all();
    EXPECT_EQ(live_text(), before) << call;
  }
}

TEST(ParallelBuffer, OnADeviceThatDoesNotExistFailsOnAllRanks) {
  run_ranks(2, [](int rank) {
    auto group = join(rank, 2, "device");
    if (rank == 0) {
      EXPECT_THROW(ParallelBuffer::create(group, 8, on_device(99)), ArgumentError);
    } else {
      EXPECT_THROW(ParallelBuffer::create(group, 8, on_device(0)), PeerError);
    }
    ParallelBuffer::create(group, 8, on_device(0)).close();
  });
}

TEST(ParallelBuffer, SharesExistingMemoryWithItsOffset) {
  run_ranks(2, [](int rank) {
    auto group = join(rank, 2, "share");
    const auto device = driver::Device::at(rank);
    const memory::DeviceMemory memory(device, 4096);
    auto* ints = static_cast<int*>(memory.pointer());
    for (int i = 0; i < 1024; ++i) ints[i] = rank * 10000 + i;
    // A different offset on each rank, two views in one exchange.
    const int offset = 10 + rank;
    auto buffers =
        ParallelBuffer::share(group, {{ints + offset, 40}, {ints + 500, 80}}, {.device = rank});
    ASSERT_EQ(buffers.size(), 2U);
    EXPECT_EQ(buffers[0].flavor(), memory::Flavor::legacy);
    const int peer = 1 - rank;
    EXPECT_EQ(static_cast<int*>(buffers[0].peer(peer))[0], peer * 10000 + 10 + peer);
    EXPECT_EQ(static_cast<int*>(buffers[1].peer(peer))[0], peer * 10000 + 500);
    for (auto& buffer : buffers) buffer.close();
    group->close();
  });
}

TEST(ParallelBuffer, KeepsSharedStorageUntilAllRanksHaveGivenItUp) {
  std::weak_ptr<memory::DeviceMemory> watched[2];
  run_ranks(2, [&](int rank) {
    auto group = join(rank, 2, "retire");
    const auto device = driver::Device::at(rank);
    auto storage = std::make_shared<memory::DeviceMemory>(device, 4096);
    watched[rank] = storage;
    std::vector<ExistingMemory> memories = {{storage->pointer(), 4096, storage}};
    auto buffers = ParallelBuffer::share(group, memories, {.device = rank});
    storage.reset();
    memories.clear();
    if (rank == 0) buffers.clear();
    group->barrier();
    reclaim_all();
    // An exchange carries that rank 0 has given it up; rank 1 has not.
    ParallelBuffer::create(group, 8, {.device = rank}).close();
    EXPECT_FALSE(watched[0].expired());
    EXPECT_FALSE(watched[1].expired());
    group->barrier();
    buffers.clear();
    ParallelBuffer::create(group, 8, {.device = rank}).close();
    group->barrier();
    reclaim_all();
    group->barrier();
    EXPECT_TRUE(watched[rank].expired());
    group->close();
  });
}

TEST(ParallelBuffer, GivesItsMemoryBackAtClose) {
  auto group = join(0, 1, "close");
  ParallelBuffer::create(group, 0, on_device(0)).close();  // the workspace stays
  reclaim_all();
  const std::string before = live_text();
  auto buffer = ParallelBuffer::create(group, 1 << 20, on_device(0));
  EXPECT_NE(live_text(), before);
  buffer.close();
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

TEST(ParallelBuffer, DroppedWithoutCloseIsFreed) {
  reclaim_all();
  const std::string before = live_text();
  run_ranks(2, [](int rank) {
    auto group = join(rank, 2, "drop");
    for (int i = 0; i < 20; ++i) ParallelBuffer::create(group, 1 << 20, on_device(rank));
    group->close();
  });
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

unsigned long calls_of(const char* call) {
  struct Wanted {
    std::string name;
    unsigned long count = 0;
  } wanted{call};
  control<decltype(&pt_emulator_calls)>("pt_emulator_calls")(
      [](const char* name, unsigned long count, void* context) {
        auto* asked = static_cast<Wanted*>(context);
        if (asked->name == name) asked->count = count;
      },
      &wanted);
  return wanted.count;
}

TEST(ParallelBuffer, UsesDroppedMemoryAgainAndLeavesItsContentsAlone) {
  reclaim_all();
  const std::string before = live_text();
  {
    auto group = join(0, 1, "again");
    std::map<void*, int> written;
    int used_again = 0;
    // A creation does not wait long for the device to be done with what was dropped.
    for (int i = 0; i < 1000 && used_again < 5; ++i) {
      const unsigned long created = calls_of("cuMemCreate");
      auto buffer = ParallelBuffer::create(group, (3 << 20) + i, on_device(0));
      EXPECT_EQ(buffer.bytes(), std::size_t{3 << 20} + i);
      auto* word = static_cast<int*>(buffer.local());
      if (calls_of("cuMemCreate") == created) {
        ASSERT_TRUE(written.contains(word));
        EXPECT_EQ(*word, written[word]);
        ++used_again;
      }
      *word = written[word] = i;
    }
    EXPECT_EQ(used_again, 5);
    // Another size, and memory of a kind that is in use, are made anew.
    const unsigned long created = calls_of("cuMemCreate");
    auto larger = ParallelBuffer::create(group, 9 << 20, on_device(0));
    auto second = ParallelBuffer::create(group, 9 << 20, on_device(0));
    EXPECT_EQ(calls_of("cuMemCreate"), created + 2);
    EXPECT_NE(larger.local(), second.local());
    group->close();
  }
  reclaim_all();
  EXPECT_EQ(live_text(), before);
}

TEST(ParallelBuffer, FillsMemoryThatIsUsedAgain) {
  auto group = join(0, 1, "fill again");
  for (const char* pattern : {"x", "y"}) {
    auto buffer = ParallelBuffer::create(group, 5000, {.device = 0, .pattern = pattern});
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(static_cast<char*>(buffer.local())[i], *pattern);
  }
}

TEST(ParallelBuffer, IsMadeAnewWhereOneRankStillUsesTheMemory) {
  run_ranks(3, [](int rank) {
    auto group = join(rank, 3, "one keeps");
    std::shared_ptr<const void> kept;
    for (int i = 0; i < 10; ++i) {
      auto buffer = ParallelBuffer::create(group, 100, on_device(rank));
      static_cast<int*>(buffer.local())[0] = 10 * i + rank;
      group->barrier();
      for (int peer = 0; peer < 3; ++peer) {
        ASSERT_EQ(static_cast<int*>(buffer.peer(peer))[0], 10 * i + peer);
      }
      group->barrier();
      if (i % 3 == rank) kept = buffer.owner(1);
    }
    group->close();
  });
}

TEST(ParallelBuffer, OwnersOutliveIt) {
  run_ranks(2, [](int rank) {
    auto group = join(rank, 2, "owner");
    auto buffer = ParallelBuffer::create(group, 64, {.device = rank, .pattern = "x"});
    auto owner = buffer.owner(1 - rank);
    auto* bytes = static_cast<char*>(buffer.peer(1 - rank));
    buffer.close();
    reclaim_all();
    EXPECT_EQ(bytes[63], 'x');
    group->close();
  });
}

TEST(ParallelBuffer, OnASecondDeviceOfOneRankIsRefusedByName) {
  run_ranks(2, [](int rank) {
    auto group = join(rank, 2, "second device");
    ParallelBuffer::create(group, 8, on_device(0)).close();
    if (rank == 0) {
      EXPECT_THROW(ParallelBuffer::create(group, 8, on_device(1)), ArgumentError);
    } else {
      EXPECT_THROW(ParallelBuffer::create(group, 8, on_device(0)), PeerError);
    }
  });
}

TEST(Workspace, IsSharedByTheRanksAndKnowsHowManyUseAGpu) {
  run_ranks(3, [](int rank) {
    auto group = join(rank, 3, "workspace");
    EXPECT_EQ(Workspace::find(*group), nullptr);
    const auto workspace = Workspace::require(*group, rank == 2 ? 1 : 0);
    EXPECT_EQ(workspace, Workspace::require(*group));
    EXPECT_EQ(workspace->ranks_on_device(), rank == 2 ? 1 : 2);
    EXPECT_EQ(workspace->block_limit(), 132 / 2);
    std::memcpy(workspace->pointer(rank), &rank, sizeof rank);
    group->barrier();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(*reinterpret_cast<int*>(workspace->pointer(peer)), peer);
    }
    group->close();
  });
}

}  // namespace
}  // namespace parallel_tensor::testing
