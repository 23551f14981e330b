"""The side of a benchmark that measures: one rank of a launch."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parallel_tensor as pt

PR_SET_PDEATHSIG = 1


def is_rank() -> bool:
    """Whether `launcher.launch` started this process."""
    return "BENCHMARK_FOLDER" in os.environ


class Rank:
    """The plan of the launch, the group, and the way back for samples."""

    def __init__(self) -> None:
        """Joins the group; collective."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody else could end it then
        folder = Path(os.environ["BENCHMARK_FOLDER"])
        self.plan: dict[str, Any] = json.loads((folder / "plan").read_text())
        self._out = (folder / f"rank{os.environ['RANK']}").open("w", buffering=1)
        self.group = pt.Group.from_env()
        self.rank, self.size = self.group.rank, self.group.size
        self.emulated = pt.driver_name() == "emulated"
        info = pt.info()
        self.device = self.rank % len(info["devices"])
        self.library: str = info["driver_origin"]

    def record(self, *key: Any, samples: list[float]) -> None:
        """Hands samples in microseconds back; every rank does so, with the same key."""
        self._write({"key": key, "samples": samples})

    def describe(self, mps: bool) -> None:
        """Hands back what the rows say about the machine; rank 0's is taken."""
        info = pt.info()
        versions = {"parallel_tensor": pt.__version__, "python": platform.python_version()}
        if info["torch"]:
            versions["torch"] = info["torch"]
        versions["cuda_driver"] = str(info["driver_version"])
        machine = f"{info['devices'][self.device]['name']}, {os.cpu_count()} CPUs"
        driver = pt.driver_name()
        self._write({"mps": mps, "driver": driver, "machine": machine, "versions": versions})

    def align(self) -> None:
        """Returns on all ranks at the same moment, as far as the operating system lets them."""
        # A barrier lets the ranks go one after the other; the clock is one for all processes.
        answers = self.group.all_gather(struct.pack("q", time.monotonic_ns()))
        start = max(struct.unpack("q", payload)[0] for payload, _ in answers) + 300_000
        while time.monotonic_ns() < start:
            pass

    def rotated(self, names: list[str], rounds: int) -> Iterator[list[str]]:
        """The names, in every round in another order, so that none is always first."""
        for turn in range(rounds):
            shift = (turn + self.plan["launch"]) % len(names)
            yield names[shift:] + names[:shift]

    def _write(self, record: dict[str, Any]) -> None:
        self._out.write(json.dumps(record) + "\n")
