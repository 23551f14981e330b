"""Release of memory that nobody owns any more."""

from __future__ import annotations

from . import _core

__all__ = ["reclaim"]


def reclaim(patience: float = 0.01) -> int:
    """Frees the dropped memory that the device has finished with.

    Creation and `close` do the same. Not while a thread of the process captures a CUDA graph: as
    cudaMalloc, it would end the capture.

    Args:
        patience: Seconds to wait for work that still runs.

    Returns:
        How many dropped pieces of memory still wait for the device.
    """
    return int(_core.reclaim(patience))
