"""The ends of a process: with live tensors, by a signal, and in a forked child."""

import atexit
import os
import signal
import sys
import time
from pathlib import Path

import parallel_tensor as pt
import pytest
from support import error_of, is_sleeping, same, until

kept = []  # what lives until the interpreter goes away


class Cycle:
    def __init__(self, x: object) -> None:
        self.x, self.me = x, self


def leave(rank: int, how: str) -> None:
    import torch

    x = pt.zeros((1000,), dtype=torch.float32)
    y = pt.share(plain_memory(), group=x.group)
    tensors = [x, y, x.local, y.peers, x[1:3].local]
    pt.all_reduce_(x)
    if how == "global":
        kept.append(tensors)
    elif how == "cycle":
        Cycle(tensors)
    elif how == "atexit":
        atexit.register(tensors.clear)
        del x, y
    elif how == "sys.exit":
        sys.exit(0)
    elif how == "module":
        sys.modules["parallel_tensor"].kept = tensors
    elif how == "one rank only":
        if rank == 0:
            kept.append(tensors)
    else:
        x.close()
        kept.append(tensors)


def plain_memory():
    from parallel_tensor import emulator

    return emulator.empty((100,), "int32")


@pytest.mark.parametrize(
    "how", ["global", "cycle", "atexit", "sys.exit", "module", "one rank only", "closed"]
)
def test_a_process_ends_quietly_with_live_tensors(rank_outcomes, how):
    for outcome in rank_outcomes(2, leave, how):
        assert outcome.ok, outcome.report()
        assert outcome.exit_code == 0
        assert outcome.stderr == ""
        assert outcome.stdout == ""


def leave_by_an_exception(rank: int) -> None:
    x = pt.zeros((1000,), dtype="float32")
    kept.append(x)
    if rank == 1:
        raise KeyError("k")
    x.group.barrier()


def test_one_rank_that_raises_ends_the_job_at_once(rank_outcomes):
    start = time.monotonic()
    first, second, third = rank_outcomes(3, leave_by_an_exception)
    assert time.monotonic() - start < 15
    assert isinstance(second.error, KeyError)
    for outcome in (first, third):
        assert isinstance(outcome.error, pt.PeerError)
        assert outcome.error.rank == 1


def fork_and_go_on(rank: int) -> tuple[int, str]:
    group = pt.Group.from_env()
    x = pt.zeros((100,), dtype="float32", group=group)
    pt.all_reduce_(x)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        errors = [
            error_of(group.barrier),
            error_of(pt.zeros, (4,), dtype="int8", group=group),
            error_of(pt.all_reduce_, x),
            error_of(x.close),
            error_of(pt.Group, rank=0, size=1, name=f"child-of-{rank}-{os.getpid()}"),
        ]
        os.write(write, ",".join(type(e).__name__ for e in errors).encode())
        del x, group
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    answer = os.read(read, 1000).decode()
    os.close(read)
    pt.all_reduce_(x)
    pt.zeros((4,), dtype="int8", group=group).close()
    group.barrier()
    return os.waitstatus_to_exitcode(status), answer


def test_a_forked_childs_calls_raise_and_the_parent_goes_on(rank_outcomes):
    for outcome in rank_outcomes(2, fork_and_go_on):
        assert outcome.ok, outcome.report()
        code, answer = outcome.value
        assert code == 0
        kinds = answer.split(",")
        assert len(kinds) == 5
        assert set(kinds[:2]) <= {"Error", "DriverError"}
        assert set(kinds) <= {"Error", "DriverError", "NoneType"}


def child_that_exits(rank: int) -> None:
    group = pt.Group.from_env()
    kept.append(pt.zeros((100,), dtype="float32", group=group))
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # with all that an interpreter does at its end
    _, status = os.waitpid(pid, 0)
    same(os.waitstatus_to_exitcode(status), 0)
    group.barrier()
    pt.all_reduce_(kept[0])


def test_a_forked_childs_exit_does_not_harm_the_parent(rank_outcomes):
    for outcome in rank_outcomes(2, child_that_exits):
        assert outcome.ok, outcome.report()
        assert outcome.stderr == ""


def interrupted(rank: int, call: str, left: str) -> tuple[str, float, str]:
    group = pt.Group.from_env()
    x = pt.zeros((100,), dtype="float32", group=group)
    run = {
        "barrier": group.barrier,
        "create": lambda: pt.zeros((100,), dtype="float32", group=group),
        "all_reduce": lambda: pt.all_reduce_(x),
        "join": lambda: pt.Group(rank=0, size=2, name=group.name + "-again"),
    }[call]
    if rank == 1:
        until(lambda: is_sleeping(group.pid(0)))
        os.kill(group.pid(0), signal.SIGINT)
        if call == "join":
            return "", 0.0, ""
        until(Path(left).exists)
        start = time.monotonic()
        error = error_of(group.barrier)
        return type(error).__name__, time.monotonic() - start, str(error)
    start = time.monotonic()
    try:
        run()
    except KeyboardInterrupt:
        seconds = time.monotonic() - start
        Path(left).touch()
        return "KeyboardInterrupt", seconds, type(error_of(group.barrier)).__name__
    return "nothing", 0.0, ""


@pytest.mark.parametrize("call", ["barrier", "create", "all_reduce", "join"])
def test_ctrl_c_ends_a_wait(ranks, call, tmp_path):
    (kind, seconds, _), (other, other_seconds, text) = ranks(
        2, interrupted, call, str(tmp_path / "left")
    )
    assert kind == "KeyboardInterrupt"
    assert seconds < 2 + 3  # until it was sent, and then 2 s
    if call != "join":
        assert other == "PeerError", text
        assert other_seconds < 5
