"""Jobs beside each other and after each other: names, kills, many starts."""

import os
import random
import secrets
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import parallel_tensor as pt
import pytest
from support import error_of, job, memory, same, until


def work(rank: int, mark: int) -> int:
    group = pt.Group.from_env()
    with pt.zeros((64,), dtype="uint8", group=group) as x:
        memory(x.pointers[rank], 64)[:] = bytes([mark + rank]) * 64
        group.barrier()
        for peer, pointer in enumerate(x.pointers):
            same(bytes(memory(pointer, 64)), bytes([mark + peer]) * 64)
        group.barrier()
    return mark


def killed(rank: int) -> None:
    x = pt.zeros((64,), dtype="uint8")
    x.group.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("folder", [False, True], ids=["abstract", "path"])
def test_the_name_of_a_killed_job_is_free_at_once(ranks, rank_outcomes, tmp_path, folder):
    env = {"PARALLEL_TENSOR_JOB": f"killed-{secrets.token_hex(4)}"}
    if folder:
        env["PARALLEL_TENSOR_SOCKET_DIR"] = str(tmp_path / "sockets")
    left = []
    for _ in range(3):
        for outcome in rank_outcomes(2, killed, env=env):
            assert outcome.exit_code in (-signal.SIGKILL, 1), outcome.report()
        assert ranks(2, work, 7, env=env) == [7, 7]
        left.append(len(list(tmp_path.rglob("*"))))
    assert left[-1] == left[0]


def same_name(rank: int, folder: str) -> BaseException | None:
    """Ranks 0 and 1 are a job; rank 2 wants to start another of that name."""
    if rank == 2:
        until(lambda: len(list(Path(folder).iterdir())) == 2)
        error = error_of(pt.Group, rank=0, size=2, name=job(), timeout=5.0)
        taken = error_of(pt.Group, rank=1, size=2, name=job(), timeout=5.0)
        Path(folder, "done").touch()
        assert isinstance(taken, pt.ExchangeError), repr(taken)
        return error
    group = pt.Group(rank=rank, size=2, name=job())
    Path(folder, f"{os.getpid()}").touch()
    until(Path(folder, "done").exists, timeout=20)
    group.barrier()  # and the first is unharmed
    pt.zeros((4,), dtype="int8", group=group).close()
    return os.getpid()


def test_a_second_job_of_a_live_name_is_refused_with_the_first_ones_pid(ranks, tmp_path):
    pid, _, error = ranks(3, same_name, str(tmp_path))
    assert isinstance(error, pt.ExchangeError)
    assert str(pid) in str(error)


def other_size(rank: int) -> BaseException | None:
    return error_of(pt.Group, rank=rank, size=2 + (rank == 1), name=job(), timeout=3.0)


def test_ranks_that_disagree_about_the_size_all_raise(ranks):
    for error in ranks(2, other_size):
        assert isinstance(error, pt.ExchangeError), repr(error)


def test_jobs_side_by_side_do_not_meet(ranks):
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(ranks, 2, work, 10 * number) for number in range(8)]
        for number, answer in enumerate(jobs):
            assert answer.result() == [10 * number] * 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_100_pairs_of_jobs_and_eight_jobs_of_eight_ranks(ranks):
    with ThreadPoolExecutor(max_workers=8) as pool:
        for _ in range(50):
            jobs = [pool.submit(ranks, 2, work, 10 * number) for number in range(2)]
            assert [answer.result() for answer in jobs] == [[0, 0], [10, 10]]
        jobs = [pool.submit(ranks, 8, work, 10 * number, timeout=120) for number in range(8)]
        assert [answer.result()[0] for answer in jobs] == [10 * number for number in range(8)]


def dies_at_some_point(rank: int, after: float) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, wherever it is
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, after)
    group = pt.Group.from_env()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with pt.zeros((1000,), dtype="float32", group=group) as x:
            pt.all_reduce_(x)
            pt.barrier(group)
    return "nobody died"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_kill_at_any_point_is_an_error_on_the_others_and_the_next_job_starts(
    ranks, rank_outcomes
):
    name = f"chaos-{secrets.token_hex(4)}"
    env = {"PARALLEL_TENSOR_JOB": name, "PARALLEL_TENSOR_TIMEOUT": "5"}
    generator = random.Random(1)
    for _ in range(20):
        first, dead, third = rank_outcomes(
            3, dies_at_some_point, generator.uniform(1e-3, 0.3), env=env
        )
        assert dead.exit_code == -signal.SIGALRM
        for outcome in (first, third):
            assert isinstance(outcome.error, pt.PeerError | pt.TimeoutError), outcome.report()
        assert ranks(3, work, 1, env=env) == [1, 1, 1]
