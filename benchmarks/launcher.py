"""Starts the ranks of a benchmark, and ends them when their time is up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One GPU has no multicast, and torch must accept that ranks share it. Without its pool torch's
# `empty` makes memory, as ours does, instead of handing out what was freed before.
TORCH_ENVIRONMENT = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    "TORCH_SYMMMEM_IMPLICIT_POOL": "0",
    "NCCL_NVLS_ENABLE": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
}

PATIENCE = 10  # seconds for the others, once one rank has failed

Key = tuple[Any, ...]


@dataclass
class Launch:
    """What the ranks of one launch handed back."""

    figures: dict[Key, list[float]]  # samples in microseconds, each that of the slowest rank
    facts: dict[str, Any]  # of rank 0
    overran: bool
    failure: str  # empty when every rank ended well, or when they had no more time


def launch(script: str, ranks: int, plan: dict[str, Any], driver: str, time_limit: float) -> Launch:
    """Runs the script once per rank; ends what still runs after `time_limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        (folder / "plan").write_text(json.dumps(plan))
        environment = os.environ | TORCH_ENVIRONMENT
        environment |= {
            "PARALLEL_TENSOR_DRIVER": driver,
            "PARALLEL_TENSOR_JOB": folder.name,
            "PARALLEL_TENSOR_MULTICAST": "0",
            "BENCHMARK_FOLDER": name,
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
        }
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                with (folder / f"log{rank}").open("wb") as log:
                    process = subprocess.Popen(
                        [sys.executable, "-u", script],
                        env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                processes.append(process)
            overran = not _wait(processes, time_limit)
        finally:
            _end(processes)
        return _collect(folder, processes, overran)


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Whether all ended in time; once one has failed the others get PATIENCE seconds."""
    deadline = time.monotonic() + seconds
    failed = False
    while any(process.poll() is None for process in processes):
        if not failed and any(process.poll() for process in processes):
            failed = True
            deadline = min(deadline, time.monotonic() + PATIENCE)
        if time.monotonic() > deadline:
            return failed
        time.sleep(0.02)
    return True


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    running = [process for process in processes if process.poll() is None]
    if not running:
        return
    # A client of MPS that dies while its kernel spins can take the server along: MPS has to end the
    # client's work first.
    servers = mps_control("get_server_list").split()
    pids = [process.pid for process in running]
    mps_control(*(f"terminate_client {server} {pid}" for server in servers for pid in pids))
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)  # the driver may take its time to take a context down


def mps_control(*commands: str) -> str:
    """What MPS answers; empty when it does not run."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    control = shutil.which("nvidia-cuda-mps-control")
    if not commands or not control or not (pipe / "control").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        lines = "".join(command + "\n" for command in commands)
        done = subprocess.run([control], input=lines, capture_output=True, text=True, timeout=20)
        return done.stdout
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _collect(folder: Path, processes: list[subprocess.Popen[bytes]], overran: bool) -> Launch:
    per_rank: list[dict[Key, list[float]]] = []
    facts: dict[str, Any] = {}
    for rank in range(len(processes)):
        samples: dict[Key, list[float]] = {}
        path = folder / f"rank{rank}"
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):  # the rank was ended while it wrote
                record = json.loads(line)
                if "key" in record:
                    samples[tuple(record["key"])] = record["samples"]
                elif rank == 0:
                    facts |= record
        per_rank.append(samples)
    figures = {
        key: [max(values) for values in zip(*(samples[key] for samples in per_rank), strict=True)]
        for key in per_rank[0]
        if all(key in samples for samples in per_rank)
    }
    return Launch(figures, facts, overran, "" if overran else _failure(folder, processes))


def _failure(folder: Path, processes: list[subprocess.Popen[bytes]]) -> str:
    failure = ""
    for rank, process in enumerate(processes):
        if process.returncode:
            log = (folder / f"log{rank}").read_text(errors="replace").splitlines()
            lines = "\n  ".join(log[-15:])
            failure += f"rank {rank} ended with {process.returncode}:\n  {lines}\n"
    return failure
