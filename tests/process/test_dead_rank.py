"""A rank that is killed is an error on all others, at once and by name."""

import os
import signal
import time

import parallel_tensor as pt
import pytest
from support import error_of, is_sleeping, until

SIZE = 3
CALLS = ("create", "share", "barrier", "all_gather", "device_barrier", "all_reduce", "close")


def die(rank: int, dead: int, call: str) -> tuple[BaseException | None, bool, float]:
    """One rank dies once the others wait for it in the call."""
    group = pt.Group.from_env()
    x = pt.zeros((1000,), dtype="float32", group=group)
    pt.all_reduce_(x)
    pt.barrier(group)
    if rank == dead:
        others = [group.pid(r) for r in range(SIZE) if r != rank]
        until(lambda: all(map(is_sleeping, others)))
        os.kill(os.getpid(), signal.SIGKILL)
    run = {
        "create": lambda: pt.empty((4,), dtype="int8", group=group),
        "share": lambda: pt.share([], group=group),
        "barrier": group.barrier,
        "all_gather": lambda: group.all_gather(b"x"),
        "device_barrier": lambda: pt.barrier(group),
        "all_reduce": lambda: pt.all_reduce_(x),
        "close": x.close,
    }[call]
    start = time.monotonic()
    error = error_of(run)
    seconds = time.monotonic() - start
    again = error_of(group.barrier)
    return error, type(again) is type(error) and group.broken, seconds


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_a_death_ends_every_wait_for_it(rank_outcomes, call, dead):
    outcomes = rank_outcomes(SIZE, die, dead, call)
    assert outcomes[dead].exit_code == -signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank == dead:
            continue
        assert outcome.ok, outcome.report()
        error, stays, seconds = outcome.value
        assert isinstance(error, pt.PeerError), repr(error)
        assert (error.rank, error.pid) == (dead, outcomes[dead].pid)
        assert stays
        assert seconds < 10


def die_in_a_kernel(rank: int) -> tuple[BaseException | None, float]:
    """Rank 1 has taken part in the exchange of arguments and dies before its kernel is done."""
    group = pt.Group.from_env()
    x = pt.zeros((1 << 22,), dtype="float32", group=group)
    for _ in range(3):
        pt.all_reduce_(x)
    if rank == 1:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, wherever it is
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    start = time.monotonic()
    error = None
    while error is None and time.monotonic() - start < 20:
        error = error_of(pt.all_reduce_, x)
    return error, time.monotonic() - start


def test_a_death_somewhere_in_all_reduce(rank_outcomes):
    first, dead, third = rank_outcomes(SIZE, die_in_a_kernel)
    assert dead.exit_code == -signal.SIGALRM
    for outcome in (first, third):
        assert outcome.ok, outcome.report()
        error, seconds = outcome.value
        assert isinstance(error, pt.PeerError | pt.TimeoutError), repr(error)
        assert seconds < 20


def dies_with_a_child(rank: int) -> tuple[BaseException | None, float]:
    """A forked child of the dead rank still holds copies of its descriptors."""
    group = pt.Group.from_env()
    if rank == 1:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    return error_of(group.barrier), time.monotonic() - start


def test_a_death_is_seen_although_a_child_of_it_lives(rank_outcomes):
    first, _, third = rank_outcomes(SIZE, dies_with_a_child)
    for outcome in (first, third):
        assert outcome.ok, outcome.report()
        error, seconds = outcome.value
        assert isinstance(error, pt.PeerError)
        assert error.rank == 1
        assert seconds < 10


def keeps_reading(rank: int) -> tuple[list[int], str]:
    """A dead rank's memory stays readable to those who map it."""
    group = pt.Group.from_env()
    x = pt.full((100,), rank, dtype="int32", group=group)
    kept = x.peers
    group.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(group.barrier)
    values = [peer[0].item() for peer in kept]
    del x
    pt.reclaim()
    return values + [peer[0].item() for peer in kept], type(error).__name__


def test_a_dead_ranks_memory_stays_readable(rank_outcomes):
    first, _, third = rank_outcomes(SIZE, keeps_reading)
    assert first.value == third.value == ([0, 1, 2] * 2, "PeerError"), first.report()
