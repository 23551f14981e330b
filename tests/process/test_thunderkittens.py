"""TKParallelTensor: ThunderKittens' constructors and attributes."""

import parallel_tensor as pt
import pytest
import torch
from parallel_tensor import TKParallelTensor, emulator
from parallel_tensor.testing import counts
from support import error_of, same


def both_constructors(rank: int, size: int) -> None:
    where = {"local_rank": rank, "local_world_size": size}
    a = TKParallelTensor((8, 16), dtype=torch.bfloat16, **where)
    b = TKParallelTensor((8, 16), torch.bfloat16, rank, size, False)
    plain = emulator.empty((4, 4), torch.float32).fill_(rank)
    c = TKParallelTensor(plain, **where, multicast=False)
    d = TKParallelTensor((3,), dtype=torch.int32, group=pt.Group.from_env())
    for t, shape, dtype in (
        (a, (8, 16), torch.bfloat16),
        (b, (8, 16), torch.bfloat16),
        (c, (4, 4), torch.float32),
        (d, (3,), torch.int32),
    ):
        same((tuple(t.shape_), t.dtype_), (shape, dtype))
        same((t.local_rank_, t.local_world_size_), (rank, size))
        same((t.multicast_, t.multicast_ptr_, t.multicast_allocated_size_), (False, 0, 0))
        same(t.data().shape, torch.Size(shape))
        same(t.data_.data_ptr(), t.data().data_ptr())
        same(len(t.raw_ptrs_), size)
        same(t.raw_ptrs_[rank], t.data().data_ptr())
        assert t.allocated_size_ >= t.data().nbytes
    same(c.data().data_ptr(), plain.data_ptr())
    group = pt.Group.from_env()
    group.barrier()
    a.data().fill_(rank + 1)
    group.barrier()
    # As a kernel would: through the raw addresses.
    import ctypes

    for peer, pointer in enumerate(a.raw_ptrs_):
        value = ctypes.c_uint16.from_address(pointer).value
        same(torch.tensor([value], dtype=torch.uint16).view(torch.bfloat16).item(), peer + 1)
    for peer, pointer in enumerate(c.raw_ptrs_):
        same(ctypes.c_float.from_address(pointer).value, float(peer))
    group.barrier()

    # Dropping is local: one rank does, the others use theirs on.
    if rank == 0:
        del a
        pt.reclaim()
    group.barrier()
    if rank != 0:
        same(a.data()[0, 0].item(), rank + 1)
    TKParallelTensor((2,), dtype=torch.int8, **where)

    same(type(error_of(TKParallelTensor, (2,), torch.int8)), pt.ArgumentError)
    same(type(error_of(TKParallelTensor, (2,), torch.int8, size, size)), pt.ArgumentError)
    for _ in range(3):
        x = TKParallelTensor((1000,), torch.float32, rank, size)
        del x
    group.barrier()
    before = counts()
    for _ in range(20):
        x = TKParallelTensor((1000,), torch.float32, rank, size)
        del x
    group.barrier()
    same(counts(), before)


@pytest.mark.parametrize("n", [1, 3])
def test_both_constructors_and_a_drop_on_one_rank_only(ranks, n):
    ranks(n, both_constructors, n)
