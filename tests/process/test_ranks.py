"""The helpers of parallel_tensor.testing: what they promise when a rank does not behave."""

import os
import signal
import subprocess
import sys
import time

import parallel_tensor as pt
import pytest
from parallel_tensor import testing


class Odd(Exception):
    def __reduce__(self):
        return (Odd, (1, 2, 3))

    def __init__(self, only):
        super().__init__(only)


def environment(rank: int, factor: int) -> tuple[int, dict[str, str]]:
    return rank * factor, dict(os.environ)


def test_each_rank_is_a_process_with_a_launchers_variables(ranks):
    answers = ranks(3, environment, 10, env={"EXTRA": "yes", "OMP_NUM_THREADS": "2"})
    assert [value for value, _ in answers] == [0, 10, 20]
    for rank, (_, variables) in enumerate(answers):
        assert variables["LOCAL_RANK"] == variables["RANK"] == str(rank)
        assert variables["LOCAL_WORLD_SIZE"] == variables["WORLD_SIZE"] == "3"
        assert variables["PARALLEL_TENSOR_DRIVER"] == "emulated"
        assert variables["EXTRA"] == "yes"
        assert variables["OMP_NUM_THREADS"] == "2"
    assert len({variables["PARALLEL_TENSOR_JOB"] for _, variables in answers}) == 1


def test_an_environment_may_differ_per_rank_and_a_launcher_around_is_not_seen(ranks, monkeypatch):
    monkeypatch.setenv("SLURM_LOCALID", "5")
    monkeypatch.setenv("MASTER_PORT", "1")
    answers = ranks(2, environment, 1, env=lambda rank: {"X": str(rank), "PATH": None}, driver=None)
    for rank, (_, variables) in enumerate(answers):
        assert variables["X"] == str(rank)
        assert not {"PATH", "SLURM_LOCALID", "MASTER_PORT", "PARALLEL_TENSOR_DRIVER"} & set(
            variables
        )


def is_interrupted() -> str:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt:
        return "interrupted"
    return "not interrupted"


def test_a_rank_reacts_to_ctrl_c_also_where_its_parent_ignores_it(ranks):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert ranks(1, is_interrupted) == ["interrupted"]
    finally:
        signal.signal(signal.SIGINT, before)


def without_rank(word: str) -> str:
    return word + os.environ["RANK"]


def test_a_function_may_do_without_its_rank(ranks):
    assert ranks(2, without_rank, "r") == ["r0", "r1"]


def misbehave(rank: int) -> str:
    print(f"printed by {rank}")
    if rank == 1:
        raise pt.PeerError("m", 2, 3, "create")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 3:
        sys.exit(7)
    if rank == 4:
        raise Odd("cannot be pickled")
    if rank == 5:
        os._exit(0)
    if rank == 6:
        return lambda: None
    return "fine"


def test_whatever_becomes_of_a_rank_is_an_outcome(rank_outcomes):
    fine, raised, killed, exited, odd, left, unpicklable = rank_outcomes(7, misbehave)
    assert (fine.ok, fine.value, fine.exit_code, fine.stderr) == (True, "fine", 0, "")
    assert fine.stdout == "printed by 0\n"
    assert isinstance(raised.error, pt.PeerError)
    assert (raised.error.rank, raised.error.pid, raised.error.phase) == (2, 3, "create")
    assert "misbehave" in raised.traceback
    assert (raised.ok, raised.exit_code) == (False, 1)
    assert (killed.ok, killed.exit_code, killed.error) == (False, -signal.SIGKILL, None)
    assert (exited.ok, exited.exit_code) == (False, 7)
    assert isinstance(odd.error, RuntimeError)
    assert "cannot be pickled" in str(odd.error)
    assert (left.ok, left.exit_code, left.returned) == (False, 0, False)
    assert (unpicklable.ok, type(unpicklable.error)) == (False, TypeError)


def test_a_rank_that_fails_is_an_error_that_shows_every_rank(ranks):
    with pytest.raises(testing.RanksFailed) as caught:
        ranks(7, misbehave)
    text = str(caught.value)
    assert "6 of 7 ranks failed" in text
    assert "rank 1 raised PeerError: m" in text
    assert "rank 2 was ended by SIGKILL" in text
    assert "misbehave(rank" in text or "in misbehave" in text
    assert "printed by 3" in text
    assert [outcome.ok for outcome in caught.value.outcomes] == [True] + [False] * 6


def never_ends(rank: int, path: str) -> None:
    if rank == 1:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(path, "w") as file:
            file.write(str(child.pid))
        time.sleep(600)


def test_what_runs_at_the_deadline_is_killed_with_what_it_started(rank_outcomes, tmp_path):
    path = tmp_path / "pid"
    start = time.monotonic()
    ended, late = rank_outcomes(2, never_ends, str(path), timeout=3)
    assert time.monotonic() - start < 10
    assert ended.ok
    assert late.timed_out
    assert not late.ok
    assert "never_ends" in late.stderr  # where it was
    assert is_gone(int(path.read_text()))


def leaves_a_child(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(path, "w") as file:
        file.write(str(child.pid))


def test_a_rank_that_ends_leaves_nothing_running(ranks, tmp_path):
    ranks(1, leaves_a_child, str(tmp_path / "pid"))
    assert is_gone(int((tmp_path / "pid").read_text()))


def is_gone(pid: int) -> bool:
    """Whether a killed process has ended; its new parent may take a moment to see to it."""
    for _ in range(1000):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_a_function_that_no_other_process_can_import_is_refused(ranks):
    def inner():
        pass

    for function in (inner, lambda: None):
        with pytest.raises(ValueError, match="import"):
            ranks(1, function)


def imported() -> list[str]:
    return sorted(sys.modules)


def test_a_rank_imports_torch_only_if_its_function_does(ranks):
    (modules,) = ranks(1, imported)
    assert "torch" not in modules
    assert "numpy" not in modules


def test_no_leaks_sees_a_descriptor():
    pt.use_driver("emulated")
    pt.driver_name()
    with pytest.raises(AssertionError, match="descriptors"):  # noqa: SIM117
        with testing.no_leaks():
            descriptor = os.open("/dev/null", os.O_RDONLY)
    os.close(descriptor)
    with testing.no_leaks():
        os.close(os.open("/dev/null", os.O_RDONLY))


def test_no_leaks_sees_a_driver_object():
    pt.use_driver("emulated")
    group = pt.Group(rank=0, size=1, name="test-no-leaks")
    pt.empty((1,), dtype="int8", group=group).close()
    with pytest.raises(AssertionError, match="allocations"):  # noqa: SIM117
        with testing.no_leaks():
            x = pt.empty((1,), dtype="int8", group=group)
    x.close()
    group.close()


def test_no_leaks_leaves_an_error_of_its_block_alone():
    with pytest.raises(KeyError):  # noqa: SIM117
        with testing.no_leaks():
            raise KeyError


def thread(group: pt.Group, word: str) -> str:
    group.barrier()
    if group.rank == 1 and word == "raise":
        raise Odd("from a thread")
    if group.rank == 1 and word == "sleep":
        time.sleep(4)
    group.barrier()
    return word + str(group.rank)


def test_ranks_may_be_threads(thread_ranks):
    assert thread_ranks(3, thread, "t") == ["t0", "t1", "t2"]


def test_a_thread_that_raises_ends_the_others_waits(thread_ranks):
    start = time.monotonic()
    with pytest.raises(testing.RanksFailed) as caught:
        thread_ranks(3, thread, "raise")
    assert time.monotonic() - start < 10
    kinds = [type(outcome.error) for outcome in caught.value.outcomes]
    assert kinds == [pt.PeerError, Odd, pt.PeerError]


def test_a_thread_that_does_not_end_is_reported_with_where_it_is(thread_ranks):
    with pytest.raises(testing.RanksFailed) as caught:
        thread_ranks(2, thread, "sleep", timeout=2)
    assert isinstance(caught.value.outcomes[0].error, pt.TimeoutError)
    assert caught.value.outcomes[1].timed_out
    assert "time.sleep" in str(caught.value)


def test_a_process_starts_with_faults(ranks):
    faults = testing.fault_environment("cuMemCreate", code=2, nth="*")
    (error,) = ranks(1, first_creation, env=faults)
    assert isinstance(error, pt.OutOfMemoryError)


def first_creation():
    try:
        pt.empty((1,), dtype="int8")
    except pt.Error as error:
        return error


def test_a_conftest_of_users_gets_the_fixtures(pytester):
    pytester.makeconftest('pytest_plugins = ["parallel_tensor.testing"]')
    pytester.makepyfile(
        test_users="""
        import parallel_tensor

        def fill(rank):
            x = parallel_tensor.full((4,), rank, dtype="int32")
            return [peer.tolist() for peer in x.peers]

        def test_every_rank_sees_every_rank(ranks, emulated_gpus):
            emulated_gpus(devices=1)
            assert ranks(2, fill) == [[[0] * 4, [1] * 4]] * 2

        def test_leaves_nothing(no_leaks, thread_ranks, rank_outcomes, failing):
            pass
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
