"""Counts of what a process holds, before and after."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator

from .. import _core, emulator
from ..reclaim import reclaim

__all__ = ["counts", "no_leaks"]


def counts() -> dict[str, int]:
    """How many descriptors and, on the emulated driver, driver objects this process holds.

    Collects garbage and frees what the device has finished with first. "descriptors" are those of
    the process; the other names are those of `emulator.live`.
    """
    settle()
    result = {"descriptors": len(_descriptors())}
    if _core.driver_loaded() and _core.driver_name() == "emulated":
        result.update(emulator.live())
    return result


@contextlib.contextmanager
def no_leaks() -> Iterator[None]:
    """Fails when the block ends with more descriptors or driver objects than it began with.

    What is made once and kept (the driver, a group and, with its first tensor, its workspace) must
    exist before. After an exception nothing is judged: that error is the one to see.

    Raises:
        AssertionError: Something is left; names what and how much.
    """
    before, open_before = counts(), _descriptors()
    yield
    after = counts()
    left = {
        name: f"{before.get(name, 0)} -> {count}"
        for name, count in after.items()
        if count > before.get(name, 0)
    }
    if left:
        new = {n: target for n, target in _descriptors().items() if open_before.get(n) != target}
        raise AssertionError(f"left behind: {left}; new descriptors: {new or 'none'}")


def settle(timeout: float = 10.0) -> None:
    """Frees what nobody refers to any more; returns when all is free or the seconds are over."""
    gc.collect()
    deadline = time.monotonic() + timeout
    while reclaim(patience=0.1) and time.monotonic() < deadline:
        pass


def _descriptors() -> dict[int, str]:
    """The open descriptors and what they are; not the one that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found
