"""Sizes around a granularity: the user sees the size that was asked for, and all of it."""

import parallel_tensor as pt
import pytest
from parallel_tensor import emulator
from support import memory, same

MIB = 1 << 20


def sizes(rank: int, granularity: int) -> None:
    pt.use_driver("emulated")
    pt.driver_name()
    emulator.set_granularity(granularity, granularity, granularity)
    group = pt.Group.from_env()
    for nbytes in (1, 128, 6912, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, granularity, granularity + 1):
        with pt.zeros((nbytes,), dtype="uint8", group=group) as x:
            same(x.nbytes, nbytes)
            memory(x.pointers[rank], nbytes)[:] = bytes([rank + 1]) * nbytes
            group.barrier()
            for peer, pointer in enumerate(x.pointers):
                bytes_ = memory(pointer, nbytes)
                same((bytes_[0], bytes_[-1]), (peer + 1, peer + 1), str(nbytes))
            group.barrier()
    same(emulator.live()["mappings"], group.size)  # the workspace's


@pytest.mark.parametrize("granularity", [64 << 10, 2 * MIB, 32 * MIB])
def test_sizes_around_a_granularity(ranks, granularity):
    ranks(2, sizes, granularity)
