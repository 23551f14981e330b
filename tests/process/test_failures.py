"""A failure on one rank is an error on all, and the next call works."""

import time
from pathlib import Path

import parallel_tensor as pt
from parallel_tensor import emulator
from parallel_tensor.testing import no_leaks
from support import error_of, job, same, until

ODD = 1  # the rank on which it fails


def creation(group: pt.Group, **changes: object) -> BaseException | None:
    arguments = {"shape": (4,), "dtype": "float32", "group": group}
    if group.rank == ODD:
        arguments |= changes
    return error_of(pt.empty, arguments.pop("shape"), **arguments)


def argument_errors() -> None:
    group = pt.Group.from_env()
    pt.empty((1,), dtype="int8", group=group).close()
    for changes in (
        {"dtype": "float31"},
        {"dtype": None},
        {"shape": (-4,)},
        {"shape": None},
        {"shape": (1 << 62, 4)},
        {"multicast": "perhaps"},
        {"device": "cpu"},
        {"device": 99},
        {"device": -1},
    ):
        with no_leaks():
            error = creation(group, **changes)
            if group.rank == ODD:
                same(type(error), pt.ArgumentError, str(changes))
                assert isinstance(error, ValueError)
            else:
                same(type(error), pt.PeerError, str(changes))
                same((error.rank, error.pid), (ODD, group.pid(ODD)), str(changes))
                assert "ArgumentError" in str(error)
            assert not group.broken
            pt.empty((4,), dtype="float32", group=group).close()


def test_a_bad_argument_on_one_rank_is_its_own_error_there_and_a_peer_error_elsewhere(ranks):
    ranks(3, argument_errors)


def out_of_memory() -> None:
    group = pt.Group.from_env()
    device = group.rank
    pt.empty((1,), dtype="int8", group=group, device=device).close()
    for _ in range(10):
        with no_leaks():
            if group.rank == ODD:
                emulator.set_memory(device, 64 << 20)
            error = error_of(pt.empty, (128 << 20,), dtype="int8", group=group)
            if group.rank == ODD:
                same(type(error), pt.OutOfMemoryError)
                assert isinstance(error, MemoryError)
                same((error.call, error.code), ("cuMemCreate", 2))
                emulator.set_memory(device, 16 << 30)
            else:
                same(type(error), pt.PeerError)
                same((error.rank, error.pid), (ODD, group.pid(ODD)))
                assert "OutOfMemoryError" in str(error)
            pt.empty((128 << 20,), dtype="int8", group=group).close()


def test_out_of_memory_on_one_rank(ranks):
    ranks(3, out_of_memory)


def no_path() -> None:
    """Rank 0's device cannot reach rank 1's: the others can all reach each other."""
    group = pt.Group.from_env()
    if group.rank == 0:
        emulator.set_peer_access(0, 1, False)
    for _ in range(3):
        error = error_of(pt.empty, (4,), dtype="int8", group=group, device=group.rank)
        if group.rank == 0:
            assert isinstance(error, pt.DriverError), repr(error)
            same(error.code, 101)
            assert "rank 1" in str(error)
        else:
            same(type(error), pt.PeerError)
            same(error.rank, 0)
    if group.rank == 0:
        emulator.set_peer_access(0, 1, True)
    pt.empty((4,), dtype="int8", group=group, device=group.rank).close()


def test_a_missing_peer_path_names_the_pair(ranks):
    ranks(3, no_path)


def late(rank: int, folder: str) -> None:
    """Rank 1 comes when the others have given up."""
    group = pt.Group.from_env()
    x = pt.empty((4,), dtype="int8", group=group)
    if rank == ODD:
        until(lambda: len(list(Path(folder).iterdir())) == group.size - 1)
        error = error_of(group.barrier)
    else:
        start = time.monotonic()
        error = error_of(group.barrier, timeout=1.0)
        assert time.monotonic() - start < 5
        Path(folder, str(rank)).touch()
    same(type(error), pt.TimeoutError)
    same(error.missing, (ODD,))
    assert str(group.pid(ODD)) in str(error)
    # From now on it is the first cause, until a new group is made.
    assert group.broken
    same(type(error_of(pt.empty, (4,), dtype="int8", group=group)), pt.TimeoutError)
    assert error_of(x.close) is not None
    assert x.closed
    again = pt.Group(rank=rank, size=group.size, name=job() + "-again")
    pt.empty((4,), dtype="int8", group=again).close()


def test_a_rank_that_does_not_come_is_named_and_a_new_group_works(ranks, tmp_path):
    ranks(3, late, str(tmp_path))


def never_joins(rank: int) -> BaseException | None:
    if rank == ODD:
        return None
    return error_of(pt.Group, rank=rank, size=3, name=job(), timeout=1.0)


def test_a_rank_that_never_joins_is_named(ranks):
    first, _, third = ranks(3, never_joins)
    for error in (first, third):
        assert isinstance(error, pt.TimeoutError)
        assert ODD in error.missing
        assert error.phase == "join"


def leaves_a_with(rank: int) -> BaseException | None:
    group = pt.Group.from_env()
    try:
        with pt.empty((4,), dtype="int8", group=group):
            if rank == ODD:
                raise KeyError("k")
            group.barrier()
    except Exception as error:
        return error.with_traceback(None)


def test_a_with_left_by_an_exception_ends_the_others_waits(ranks):
    start = time.monotonic()
    first, odd, third = ranks(3, leaves_a_with)
    assert time.monotonic() - start < 20
    assert isinstance(odd, KeyError)
    for error in (first, third):
        assert isinstance(error, pt.PeerError)
        assert error.rank == ODD
        assert "KeyError" in str(error)


def close_is_not_followed(rank: int) -> tuple[BaseException | None, bool, float]:
    group = pt.Group(rank=rank, size=2, name=job(), timeout=1.0)
    x = pt.empty((4,), dtype="int8", group=group)
    if rank == ODD:
        until(lambda: error_of(group.barrier, timeout=30.0) is not None)
        return None, True, 0.0
    start = time.monotonic()
    error = error_of(x.close)
    return error, x.closed, time.monotonic() - start


def test_a_close_with_another_call_on_the_other_rank_raises_and_releases(ranks):
    (error, closed, seconds), _ = ranks(2, close_is_not_followed)
    assert isinstance(error, pt.MismatchError)
    assert closed
    assert seconds < 5
