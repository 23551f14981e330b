"""Creation: every rank sees every rank's bytes, for every type and shape."""

import gc

import parallel_tensor as pt
import torch
from support import error_of, same

from . import meet

DTYPES = [
    getattr(torch, name)
    for name in [
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e8m0fnu",
    ]
]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def check_bytes(x: pt.ParallelTensor) -> None:
    """Writes to the own memory, then to the next rank's; every rank sees both."""
    group, rank, size = x.group, x.rank, x.size
    meet(group)
    raw(x.local).fill_(rank + 1)
    meet(group)
    for peer in range(size):
        assert raw(x.peer(peer)).eq(peer + 1).all(), f"rank {peer}'s bytes as rank {rank} sees them"
    meet(group)
    raw(x.peer((rank + 1) % size)).fill_(100 + rank)
    meet(group)
    assert raw(x.local).eq(100 + (rank - 1) % size).all()
    meet(group)


def every_dtype(group: pt.Group) -> None:
    for dtype in DTYPES:
        with pt.zeros((3, 5), dtype=dtype, group=group) as x:
            same(x.dtype, dtype)
            same([peer.dtype for peer in x.peers], [dtype] * group.size)
            assert all(raw(peer).eq(0).all() for peer in x.peers)
            check_bytes(x)


def every_shape(group: pt.Group) -> None:
    for shape in ((), (1,), (0,), (3, 0, 2), (7, 1, 3), (1,) * 9, (1 << 20,), (3 << 20,)):
        with pt.empty(shape, dtype=torch.int32, group=group) as x:
            same([peer.shape for peer in x.peers], [torch.Size(shape)] * group.size)
            same(len(set(x.pointers)), group.size if x.nbytes else 1)
            if x.nbytes:
                check_bytes(x)


def values_are_there_before_any_peer_can_see(group: pt.Group) -> None:
    for value in (0, 3, -1.5):
        with pt.full((1000,), value, dtype=torch.float64, group=group) as x:
            assert all(peer.eq(value).all() for peer in x.peers)


def a_slice_is_the_same_rows_on_every_rank(group: pt.Group) -> None:
    with pt.zeros((10, 3), dtype=torch.int16, group=group) as x:
        part = x[3:5]
        part.local.fill_(group.rank + 1)
        meet(group)
        for peer in range(group.size):
            same(part.peer(peer).tolist(), [[peer + 1] * 3] * 2)
            same(x.peer(peer)[3:5].tolist(), [[peer + 1] * 3] * 2)
            same(x.peer(peer).sum().item(), 6 * (peer + 1))
        same(part.pointers, tuple(p + 18 for p in x.pointers))
        meet(group)


def what_differs_between_ranks_is_a_mismatch_on_all(group: pt.Group) -> None:
    odd = group.rank == group.size - 1
    calls = {
        "shape": lambda: pt.empty((4 + odd,), dtype=torch.int8, group=group),
        "same bytes, other shape": lambda: pt.empty(
            (2, 8) if odd else (16,), dtype=torch.int8, group=group
        ),
        "dtype": lambda: pt.empty((4,), dtype=torch.int8 if odd else torch.uint8, group=group),
        "multicast": lambda: pt.empty(
            (4,), dtype=torch.int8, group=group, multicast=not odd and "auto"
        ),
        "call": group.barrier if odd else lambda: pt.empty((4,), dtype=torch.int8, group=group),
    }
    for name, call in calls.items():
        error = error_of(call)
        same(type(error), pt.MismatchError if group.size > 1 else type(None), name)
        assert not group.broken
    pt.empty((4,), dtype=torch.int8, group=group).close()


def a_rank_outside_the_group_is_an_argument_error(group: pt.Group) -> None:
    with pt.empty((4,), dtype=torch.int8, group=group) as x:
        for rank in (-1, group.size, group.size + 7):
            same(type(error_of(x.peer, rank)), pt.ArgumentError)


def tensors_outlive_a_close(group: pt.Group) -> None:
    x = pt.full((100,), group.rank, dtype=torch.int32, group=group)
    kept = x.peers
    x.close()
    x.close()
    for access in ("local", "peers", "pointers", "pointer_table"):
        assert isinstance(error_of(getattr, x, access), pt.Error)
    for rank, peer in enumerate(kept):
        same(peer.tolist(), [rank] * 100)
    # It is still the same memory on all ranks.
    meet(group)
    kept[group.rank].fill_(50 + group.rank)
    meet(group)
    for rank, peer in enumerate(kept):
        same(peer.tolist(), [50 + rank] * 100)
    meet(group)


def a_drop_needs_no_other_rank(group: pt.Group) -> None:
    x = pt.full((100,), group.rank, dtype=torch.int32, group=group)
    kept = x.peers if group.rank == 0 else None
    if group.rank != 0:
        del x
    pt.reclaim()
    pt.zeros((100,), dtype=torch.int32, group=group).close()
    if kept:
        for rank, peer in enumerate(kept):
            same(peer.tolist(), [rank] * 100)


def drops_may_come_in_opposite_order(group: pt.Group) -> None:
    for _ in range(5):
        x = pt.full((100,), 1, dtype=torch.int32, group=group)
        y = pt.full((100,), 2, dtype=torch.int32, group=group)
        if group.rank % 2:
            del x
            pt.reclaim()
            assert all(peer.eq(2).all() for peer in y.peers)
            del y
        else:
            del y
            pt.reclaim()
            assert all(peer.eq(1).all() for peer in x.peers)
            del x
        gc.collect()
        pt.reclaim()


def closes_may_come_in_any_order_with_other_calls_between(group: pt.Group) -> None:
    tensors = [pt.full((10,), i, dtype=torch.int32, group=group) for i in range(5)]
    for index in (3, 0, 4, 1, 2):
        tensors[index].close()
        pt.zeros((10,), dtype=torch.int32, group=group).close()


CHECKS = (
    every_dtype,
    every_shape,
    values_are_there_before_any_peer_can_see,
    a_slice_is_the_same_rows_on_every_rank,
    what_differs_between_ranks_is_a_mismatch_on_all,
    a_rank_outside_the_group_is_an_argument_error,
    tensors_outlive_a_close,
    a_drop_needs_no_other_rank,
    drops_may_come_in_opposite_order,
    closes_may_come_in_any_order_with_other_calls_between,
)
