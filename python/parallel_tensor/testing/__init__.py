"""Helpers and pytest fixtures for programs whose ranks share tensors.

In a `conftest.py`:

    pytest_plugins = ["parallel_tensor.testing"]

and then in a test, where the function is any function of a module:

    def fill(rank):
        group = parallel_tensor.Group.from_env()
        x = parallel_tensor.full((4,), rank, dtype="int32", group=group)
        return [peer.tolist() for peer in x.peers]

    def test_every_rank_sees_every_rank(ranks):
        assert ranks(2, fill) == [[[0] * 4, [1] * 4]] * 2

Every helper is also a plain function of this module, for use without fixtures:

- `ranks`, `rank_outcomes`: a function on n fresh processes, with one deadline.
- `thread_ranks`: a function on n threads of this process.
- `emulated_gpus` (a fixture only): how many emulated GPUs this process and its ranks see.
- `failing`, `fault_environment`: driver calls of the emulated driver that fail.
- `no_leaks`, `counts`: descriptors and driver objects before and after.

`import parallel_tensor` does not import this module; it needs pytest, and no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .. import _core
from .faults import failing, fault_environment
from .leaks import counts, no_leaks
from .outcome import Outcome, RanksFailed
from .processes import rank_outcomes, ranks
from .threads import thread_ranks

__all__ = [
    "Outcome",
    "RanksFailed",
    "counts",
    "failing",
    "fault_environment",
    "no_leaks",
    "rank_outcomes",
    "ranks",
    "thread_ranks",
]


@pytest.fixture(name="ranks")
def _ranks() -> Callable[..., list[Any]]:
    """The function `parallel_tensor.testing.ranks`."""
    return ranks


@pytest.fixture(name="rank_outcomes")
def _rank_outcomes() -> Callable[..., list[Outcome]]:
    """The function `parallel_tensor.testing.rank_outcomes`."""
    return rank_outcomes


@pytest.fixture(name="thread_ranks")
def _thread_ranks() -> Callable[..., list[Any]]:
    """The function `parallel_tensor.testing.thread_ranks`."""
    return thread_ranks


@pytest.fixture(name="failing")
def _failing() -> Callable[..., Any]:
    """The context manager `parallel_tensor.testing.failing`."""
    return failing


@pytest.fixture(name="no_leaks")
def _no_leaks() -> Iterator[None]:
    """Fails the test when it leaves descriptors or driver objects in this process."""
    with no_leaks():
        yield


@pytest.fixture
def emulated_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets the emulated GPUs of this process and of the ranks that it starts.

    `emulated_gpus(devices=8, memory=None, multicast=None)`: how many, with how many bytes each, and
    whether they have multicast. What is None stays at the driver's default. This process keeps the
    GPUs that its driver already shows; the ranks that it starts get these until the test ends.

    Raises:
        Error: This process already uses another driver.
    """

    def choose(
        devices: int = 8, *, memory: int | None = None, multicast: bool | None = None
    ) -> None:
        _core.use_driver("emulated")
        monkeypatch.setenv("PARALLEL_TENSOR_DRIVER", "emulated")
        monkeypatch.setenv("PARALLEL_TENSOR_EMULATED_DEVICES", str(devices))
        if memory is not None:
            monkeypatch.setenv("PARALLEL_TENSOR_EMULATED_MEMORY", str(memory))
        if multicast is not None:
            monkeypatch.setenv("PARALLEL_TENSOR_EMULATED_MULTICAST", str(int(multicast)))

    return choose
