"""Many creations in a row leave nothing behind."""

import gc
from pathlib import Path

import parallel_tensor as pt
import pytest
from parallel_tensor.testing import counts
from support import PlainMemory, same


def mapped_regions() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def cycles(n: int, number: int) -> None:
    group = pt.Group.from_env()
    memory = PlainMemory(1 << 16, device=group.rank)

    def close_it():
        pt.zeros((1000,), dtype="float32", group=group).close()

    def drop_it():
        x = pt.zeros((1000,), dtype="float32", group=group)
        assert x.pointers[0]

    def share_and_close_it():
        pt.share(memory, group=group).close()

    def share_and_drop_it():
        pt.share([memory, memory], group=group)

    for cycle in (close_it, drop_it, share_and_close_it, share_and_drop_it):
        for _ in range(3):
            cycle()
        gc.collect()
        group.barrier()
        before, regions = counts(), mapped_regions()
        for _ in range(number):
            cycle()
        group.barrier()
        same(counts(), before, cycle.__name__)
        assert mapped_regions() <= regions + 8, cycle.__name__
    # A group takes its workspace along.
    for i in range(3):
        pt_group = pt.Group(rank=group.rank, size=group.size, name=f"{group.name}-{i}")
        pt.empty((1,), dtype="int8", group=pt_group).close()
        pt_group.close()
        del pt_group
    before = counts()
    for i in range(20):
        other = pt.Group(rank=group.rank, size=group.size, name=f"{group.name}-again-{i}")
        x = pt.empty((1,), dtype="int8", group=other)
        pt.barrier(other)
        x.close()
        other.close()
        del other, x
    same(counts(), before, "groups")


@pytest.mark.parametrize("n", [1, 2])
def test_300_cycles_leave_no_descriptor_and_no_driver_object(ranks, n):
    ranks(n, cycles, n, 300, timeout=120)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_5000_cycles_leave_no_descriptor_and_no_driver_object(ranks):
    ranks(4, cycles, 4, 5000, timeout=1100)


def many_at_once() -> None:
    group = pt.Group.from_env()
    pt.zeros((1,), dtype="int8", group=group).close()
    before = counts()
    tensors = [pt.zeros((1000,), dtype="float32", group=group) for _ in range(500)]
    same(len({p for x in tensors for p in x.pointers}), 500 * group.size)
    same(counts()["descriptors"] - before["descriptors"], counts()["fds"] - before["fds"])
    del tensors[::2]
    gc.collect()
    pt.reclaim()
    tensors.clear()
    group.barrier()
    same(counts(), before)


def test_500_tensors_live_side_by_side(ranks):
    ranks(2, many_at_once)
