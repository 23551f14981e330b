"""Sharing of memory that exists already: offsets, lists, and what cannot be shared."""

import parallel_tensor as pt
import torch
from support import error_of, same

from . import meet, on_gpu, plain


def every_rank_sees_every_ranks_memory(group: pt.Group) -> None:
    t = plain((1000,), torch.float32)
    t.fill_(group.rank + 0.5)
    x = pt.share(t, group=group)
    same((x.shape, x.dtype, x.flavor), ((1000,), torch.float32, "legacy"))
    same(x.pointers[group.rank], t.data_ptr())
    meet(group)
    for rank, peer in enumerate(x.peers):
        assert peer.eq(rank + 0.5).all()
    meet(group)
    x.peer((group.rank + 1) % group.size).fill_(group.rank)
    meet(group)
    assert t.eq((group.rank - 1) % group.size).all()
    x.close()


def four_slices_of_one_allocation(group: pt.Group) -> None:
    whole = plain((4, 1 << 18), torch.int32)
    for i in range(4):
        whole[i].fill_(10 * group.rank + i)
    shared = pt.share([whole[i] for i in range(4)], group=group)
    meet(group)
    for i, x in enumerate(shared):
        for rank, peer in enumerate(x.peers):
            assert peer.eq(10 * rank + i).all(), f"slice {i} of rank {rank}"
    meet(group)
    for x in shared:
        x.close()


def an_offset_that_differs_between_ranks(group: pt.Group) -> None:
    whole = plain((100,), torch.int16)
    whole.fill_(-1)
    start = 3 + 5 * group.rank
    view = whole[start : start + 4]
    view.fill_(group.rank)
    with pt.share(view, group=group) as x:
        meet(group)
        for rank, peer in enumerate(x.peers):
            same(peer.tolist(), [rank] * 4)
        meet(group)
        x.peer(0)[0] += 1
        meet(group)
    same(whole.ne(-1).sum().item(), 4)


def a_list_is_one_exchange_of_any_types(group: pt.Group) -> None:
    tensors = [
        plain((), torch.float64).fill_(group.rank),
        plain((2, 3), torch.bfloat16).fill_(group.rank),
        plain((0, 4), torch.int8),
        plain((5,), torch.bool).fill_(group.rank % 2),
    ]
    shared = pt.share(tensors, group=group)
    same(type(shared), tuple)
    same([x.shape for x in shared], [(), (2, 3), (0, 4), (5,)])
    meet(group)
    for rank in range(group.size):
        same(shared[0].peer(rank).item(), rank)
        same(shared[1].peer(rank).tolist(), [[rank] * 3] * 2)
        same(shared[2].peer(rank).shape, torch.Size((0, 4)))
        same(shared[3].peer(rank).tolist(), [bool(rank % 2)] * 5)
    meet(group)
    for x in reversed(shared):
        x.close()
    same(pt.share([], group=group), ())


def one_tensor_may_be_shared_twice(group: pt.Group) -> None:
    t = plain((100,), torch.int32).fill_(group.rank)
    x, y = pt.share(t, group=group), pt.share(t[50:], group=group)
    meet(group)
    x.close()
    for rank, peer in enumerate(y.peers):
        same(peer.tolist(), [rank] * 50)
    meet(group)
    y.close()


def ours_can_be_shared_again(group: pt.Group) -> None:
    x = pt.full((100,), group.rank, dtype=torch.int32, group=group)
    y = pt.share(x.local[10:], group=group)
    same(y.flavor, "fd")
    x.close()
    meet(group)
    for rank, peer in enumerate(y.peers):
        same(peer.tolist(), [rank] * 90)
    meet(group)
    y.close()


def the_tensor_may_be_dropped_before_what_is_shared(group: pt.Group) -> None:
    t = plain((100,), torch.int32).fill_(group.rank)
    x = pt.share(t, group=group)
    del t
    plain((100,), torch.int32).fill_(-1)  # torch could hand the memory out again
    meet(group)
    for rank, peer in enumerate(x.peers):
        same(peer.tolist(), [rank] * 100)
    meet(group)
    if group.rank:
        del x  # on some ranks only
        pt.reclaim()
    meet(group)


def what_cannot_be_shared_is_an_error_on_all(group: pt.Group) -> None:
    fine = plain((4, 4), torch.int32)
    ordinary = torch.zeros((4, 4), dtype=torch.int32)
    for bad, kinds in (
        (ordinary, (pt.ArgumentError, pt.NotSupportedError)),
        (fine.t(), (pt.ArgumentError,)),
        (fine[:, :2], (pt.ArgumentError,)),
        ([fine, ordinary], (pt.ArgumentError, pt.NotSupportedError)),
    ):
        error = error_of(pt.share, bad, group=group)
        assert isinstance(error, kinds), f"{type(error).__name__}: {error}"
        assert not group.broken
        # On one rank only: that rank raises its own error, the others one that names it.
        odd = group.size - 1
        given = bad if group.rank == odd else [fine, fine] if isinstance(bad, list) else fine
        error = error_of(pt.share, given, group=group)
        if group.rank == odd:
            assert isinstance(error, kinds), f"{type(error).__name__}: {error}"
        else:
            assert isinstance(error, pt.PeerError), f"{type(error).__name__}: {error}"
            same((error.rank, error.pid), (odd, group.pid(odd)))
        assert not group.broken
    pt.share(fine, group=group).close()


def a_size_that_differs_is_a_mismatch_on_all(group: pt.Group) -> None:
    if group.size == 1:
        return
    t = plain((8,), torch.int32)
    error = error_of(pt.share, t[: 4 + (group.rank == 0)], group=group)
    same(type(error), pt.MismatchError)
    error = error_of(pt.share, [t] * (1 + (group.rank == 0)), group=group)
    same(type(error), pt.MismatchError)
    pt.share(t, group=group).close()


def a_multicast_address_of_existing_memory_is_refused(group: pt.Group) -> None:
    t = plain((8,), torch.int32)
    same(type(error_of(pt.share, t, group=group, multicast=True)), pt.ArgumentError)
    pt.share(t, group=group, multicast=False).close()


def freed_memory_comes_back_under_another_identity(group: pt.Group) -> None:
    """A handle that is opened already must not be taken for one of new memory at its address."""
    for i in range(5):
        t = plain((1 << 20,), torch.int32).fill_(100 * i + group.rank)
        x = pt.share(t, group=group)
        meet(group)
        for rank, peer in enumerate(x.peers):
            assert peer.eq(100 * i + rank).all()
        meet(group)
        x.close()
        del t, x, peer
        if on_gpu():
            torch.cuda.empty_cache()


CHECKS = (
    every_rank_sees_every_ranks_memory,
    four_slices_of_one_allocation,
    an_offset_that_differs_between_ranks,
    a_list_is_one_exchange_of_any_types,
    one_tensor_may_be_shared_twice,
    ours_can_be_shared_again,
    the_tensor_may_be_dropped_before_what_is_shared,
    what_cannot_be_shared_is_an_error_on_all,
    a_size_that_differs_is_a_mismatch_on_all,
    a_multicast_address_of_existing_memory_is_refused,
    freed_memory_comes_back_under_another_identity,
)
