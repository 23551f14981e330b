"""Samples of work on a GPU, from events on a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import parallel_tensor as pt
import torch
from rank import Rank

CALLS = 20  # of one sample


class Device:
    """The stream that a rank measures on, and how it takes a sample there."""

    def __init__(self, rank: Rank) -> None:
        """On a GPU, makes a stream on torch's current device."""
        self._rank = rank
        self._stream = None if rank.emulated else torch.cuda.Stream()
        if not rank.emulated:
            self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def stream(self) -> AbstractContextManager[Any]:
        """Makes the benchmark's stream the current one: the default one cannot be captured."""
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def graph(self, call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """Captures CALLS calls."""
        graph = torch.cuda.CUDAGraph()
        self.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(CALLS):
            call()
        graph.capture_end()
        return graph

    def sample(self, run: Callable[[], Any], ahead: bool) -> float:
        """Microseconds that the device takes from the moment at which all ranks are there.

        Args:
            run: What the host does, in the meantime.
            ahead: Lets the device wait until the host has handed everything over.
        """
        if ahead:
            torch.cuda._sleep(400_000)  # cycles, some 0.2 ms
        pt.barrier(self._rank.group)
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3

    def warm(self, seconds: float) -> None:
        """Keeps the device busy until its clocks have risen."""
        a = torch.ones(2048, 2048, dtype=torch.bfloat16, device="cuda")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(50):
                a @ a
            self.synchronize()

    def synchronize(self) -> None:
        """Waits for the stream."""
        if self._stream:
            self._stream.synchronize()
