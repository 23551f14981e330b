"""Collectives on the device, on streams."""

from __future__ import annotations

from typing import Any

from . import _core, _dtype
from .errors import ArgumentError
from .group import Group, resolve
from .tensor import ParallelTensor

__all__ = ["all_reduce_", "barrier"]


def all_reduce_(
    x: ParallelTensor, op: str = "sum", algorithm: str = "auto", *, stream: Any = None
) -> ParallelTensor:
    """Replaces every rank's tensor by the sum over all ranks, in place; collective.

    The results are bitwise equal on all ranks. On a GPU the call returns at once and the work is
    ordered on the stream; on the emulated driver it is complete when the call returns, and the
    arguments are compared between the ranks.

    Args:
        x: A tensor of float32 or bfloat16, or a slice of one.
        op: "sum".
        algorithm: "auto" or "two_shot".
        stream: A torch.cuda.Stream or a stream's address; None is torch's current stream.

    Returns:
        x.

    Raises:
        ArgumentError: The stream is missing, or a value is not one of those above.
        NotSupportedError: The element type or the operation has no kernel.
        MismatchError: The ranks passed different arguments (where they are compared).
        TimeoutError: A rank did not come; the group is broken, the CUDA context is not.
    """
    _core.all_reduce_(
        x._buffer,
        x._offset,
        x._count,
        x._dtype,
        op,
        algorithm,
        _stream(stream, x.cuda_device),
    )
    return x


def barrier(group: Group | None = None, *, stream: Any = None) -> None:
    """Orders the streams of all ranks: work after it starts when all ranks' work before it is done.

    Collective; the host does not wait (on the emulated driver it does). The group's first call,
    when it has no tensor yet, also exchanges the group's workspace and cannot be captured.

    Args:
        group: None is Group.from_env().
        stream: A torch.cuda.Stream or a stream's address; None is torch's current stream.
    """
    group = resolve(group)
    _core.barrier(group, _stream(stream, None))


def _stream(stream: Any, device: int | None) -> int:
    if stream is not None:
        return int(getattr(stream, "cuda_stream", stream))
    if _core.driver_name() == "emulated":
        return 0
    torch = _dtype.loaded_torch()
    if torch is None:
        raise ArgumentError("stream= is needed where torch is not imported; 0 is the default")
    if device is None:
        device = torch.cuda.current_device()
    # What torch.compile's own programs call; torch.cuda.current_stream makes an object each time.
    return int(torch._C._cuda_getCurrentRawStream(device))
