#include <gtest/gtest.h>

#include <set>

#include "parallel_tensor/device/workspace_layout.cuh"

namespace {

using namespace parallel_tensor::device;

TEST(WorkspaceLayout, NoTwoWordsOverlap) {
  for (int size : {1, 2, 8, 33, 72}) {
    std::set<std::size_t> offsets{failed_offset()};
    std::size_t words = 1;
    for (std::uint32_t channel = 0; channel < maximum_channels; ++channel) {
      for (unsigned int block = 0; block < maximum_blocks; ++block) {
        offsets.insert(epoch_offset(Channel{channel}, block));
        ++words;
        for (int source = 0; source < size; ++source) {
          offsets.insert(signal_offset(Channel{channel}, block, source, size));
          ++words;
        }
      }
    }
    EXPECT_EQ(offsets.size(), words);
    EXPECT_LE(*offsets.rbegin() + 4, control_bytes(size));
    for (std::size_t offset : offsets) ASSERT_EQ(offset % 4, 0U);
  }
}

TEST(WorkspaceLayout, RowsOfDifferentBlocksShareNoCacheLine) {
  EXPECT_EQ(signal_row_offset(Channel::barrier, 1, 8) % 128, 0U);
  EXPECT_GE(signal_row_offset(Channel::barrier, 1, 8),
            signal_offset(Channel::barrier, 0, 7, 8) + 4);
}

TEST(WorkspaceLayout, IsSmallBesideTheWorkspace) {
  EXPECT_LE(control_bytes(8), std::size_t{1} << 18);
  EXPECT_LE(control_bytes(maximum_ranks), std::size_t{1} << 20);
}

}  // namespace
