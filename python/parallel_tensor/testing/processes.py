"""Ranks as processes: started afresh, one deadline for all, nothing left behind."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .outcome import Outcome, values

__all__ = ["rank_outcomes", "ranks"]

Environment = Mapping[str, str | None] | Callable[[int], Mapping[str, str | None]]

_SCRIPT = Path(__file__).with_name("_rank.py")
_numbers = itertools.count()

# A launcher of the caller must not be taken for the launcher of the ranks.
_LAUNCHER_PREFIXES = (
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "MASTER_",
    "GROUP_",
    "ROLE_",
)


def ranks(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 60.0,
    env: Environment | None = None,
    driver: str | None = "emulated",
) -> list[Any]:
    """Runs a function as n ranks, each a fresh process, and returns what they returned.

    The function is imported in each process from the file that defines it, so it must be a function
    of a module; arguments, results and exceptions are pickled. It is called with the rank and then
    the arguments, or with the arguments alone when it takes one less.

    Each process has a session of its own and the variables of a launcher: LOCAL_RANK,
    LOCAL_WORLD_SIZE, RANK, WORLD_SIZE and a PARALLEL_TENSOR_JOB of this call alone, so that
    `Group.from_env()` joins the n ranks. PARALLEL_TENSOR_TIMEOUT is half of the timeout unless it
    is set, so that the ranks can say who was missing before they are killed.

    Args:
        n: How many.
        function: What each of them runs.
        *args: Passed to it, the same on all ranks.
        timeout: Seconds that all of it may take; what then still runs is killed, with everything
            that it started.
        env: Environment variables on top of this process's, or a function that gives those of a
            rank; None as a value removes one.
        driver: The ranks' PARALLEL_TENSOR_DRIVER; None removes it.

    Returns:
        One value per rank.

    Raises:
        RanksFailed: A rank raised, died, exited with another code than 0 or was killed at the
            deadline; holds the outcomes, and shows the traceback and output of each that failed.
        ValueError: The function is not one that another process can import.
    """
    return values(rank_outcomes(n, function, *args, timeout=timeout, env=env, driver=driver))


def rank_outcomes(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 60.0,
    env: Environment | None = None,
    driver: str | None = "emulated",
) -> list[Outcome]:
    """As `ranks`, but returns the Outcome of every rank, whatever it was."""
    deadline = time.monotonic() + timeout
    job = f"testing-{os.getpid()}-{next(_numbers)}-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="parallel-tensor-") as name:
        folder = Path(name)
        _write_request(folder / "request", function, args)
        processes: list[subprocess.Popen[bytes]] = []
        late: set[int] = set()
        try:
            for rank in range(n):
                environment = _environment(rank, n, job, timeout, driver)
                _update(environment, env(rank) if callable(env) else env)
                processes.append(_start(folder, rank, environment))
            late = _wait(processes, deadline)
            _ask_where_they_are([processes[rank] for rank in late])
        finally:
            _end(processes)
        return [_outcome(folder, rank, processes[rank], rank in late) for rank in range(n)]


def _write_request(path: Path, function: Callable[..., Any], args: Sequence[Any]) -> None:
    module = sys.modules.get(function.__module__)
    if module is None or "<" in function.__qualname__:
        raise ValueError(
            f"{function.__qualname__} cannot be imported by another process; ranks run functions "
            "that a module defines at its top level."
        )
    request = {
        "path": sys.path,
        "module": function.__module__,
        "file": getattr(module, "__file__", None),
        "function": function.__qualname__,
        "takes_rank": _takes_rank(function, args),
        "parent": os.getpid(),
    }
    # Two pickles: what the arguments are made of is found once the first has been acted on.
    path.write_bytes(pickle.dumps(request) + pickle.dumps(args))


def _takes_rank(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return True
    try:
        signature.bind(0, *args)
    except TypeError:
        signature.bind(*args)
        return False
    return True


def _environment(rank: int, n: int, job: str, timeout: float, driver: str | None) -> dict[str, str]:
    result = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHER_PREFIXES)}
    result.setdefault("PARALLEL_TENSOR_TIMEOUT", str(timeout / 2))
    # Many processes on few cores: more threads only get in each other's way.
    result.setdefault("OMP_NUM_THREADS", "1")
    result["LOCAL_RANK"] = result["RANK"] = str(rank)
    result["LOCAL_WORLD_SIZE"] = result["WORLD_SIZE"] = str(n)
    result["PARALLEL_TENSOR_JOB"] = job
    _update(result, {"PARALLEL_TENSOR_DRIVER": driver})
    return result


def _update(environment: dict[str, str], changes: Mapping[str, str | None] | None) -> None:
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def _start(folder: Path, rank: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (
        open(folder / f"stdout.{rank}", "wb") as stdout,
        open(folder / f"stderr.{rank}", "wb") as stderr,
    ):
        return subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(folder), str(rank)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> set[int]:
    """Waits until all have ended; returns the ranks that had not at the deadline."""
    running = set(range(len(processes)))
    while running:
        running = {rank for rank in running if not _has_ended(processes[rank].pid)}
        if time.monotonic() >= deadline:
            break
        if running:
            time.sleep(0.005)
    return running


def _has_ended(pid: int) -> bool:
    # WNOWAIT: an ended process that nobody has waited for keeps its id, and the id of its group,
    # from being used again, so that `_end` cannot hit a stranger.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _ask_where_they_are(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Lets processes that are about to be killed write their threads' tracebacks to stderr."""
    for process in processes:
        os.kill(process.pid, signal.SIGRTMAX)
    if processes:
        time.sleep(0.5)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def _outcome(folder: Path, rank: int, process: subprocess.Popen[bytes], late: bool) -> Outcome:
    outcome = Outcome(rank, process.pid, exit_code=process.returncode, timed_out=late)
    outcome.stdout = (folder / f"stdout.{rank}").read_text(errors="replace")
    outcome.stderr = (folder / f"stderr.{rank}").read_text(errors="replace")
    result = folder / f"result.{rank}"
    if result.exists():
        answer = pickle.loads(result.read_bytes())
        outcome.returned = answer["returned"]
        outcome.traceback = answer["traceback"]
        outcome.value, outcome.error = _load(answer["value"]), _load(answer["error"])
    return outcome


def _load(pickled: bytes) -> Any:
    try:
        return pickle.loads(pickled)
    except Exception as error:  # of any kind: it runs code of the object's class
        return RuntimeError(f"the rank's answer could not be unpickled: {error!r}")
