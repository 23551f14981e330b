"""The controls of the emulated driver: faults, counts and settings, for tests.

Usable only while the emulated driver is the chosen one. Names of calls are the driver's without a
version suffix ("cuMemFree"), devices are this process's visible indices, and what is set holds for
this process.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _core, _dtype
from .errors import DriverError, NotSupportedError

if TYPE_CHECKING:
    import torch

__all__ = [
    "calls",
    "clear",
    "empty",
    "fail",
    "live",
    "reset_calls",
    "set_attribute",
    "set_granularity",
    "set_memory",
    "set_multicast_slots",
    "set_peer_access",
]


def fail(call: str, code: int, nth: int | str = 1, rank: int | None = None) -> None:
    """Lets a driver call of this process return an error code, without any other effect.

    Args:
        call: The driver function, for example "cuMemMap".
        code: The CUresult it returns.
        nth: Which of its next calls, from 1; "*" is every one.
        rank: Only calls of the calling thread, and only if that is the thread which joined a group
            as this rank; None is every call of this process.

    Raises:
        ValueError: The function is not one of the driver's.
    """
    if rank is not None and rank != _core.thread_rank():
        return
    number = -1 if nth == "*" else int(nth)
    if number == 0 or number < -1:
        raise ValueError(f'nth is {nth!r}; expected a number from 1, or "*"')
    _control("pt_emulator_fail", call.encode(), code, ctypes.c_long(number), int(rank is not None))


def clear() -> None:
    """Forgets all faults."""
    _control("pt_emulator_clear")


def live() -> dict[str, int]:
    """This process's live driver objects; "fds" are the emulated driver's own descriptors."""
    counts = _Counts()
    _control("pt_emulator_live", ctypes.byref(counts))
    return {name: int(getattr(counts, name)) for name, _ in _Counts._fields_}


def calls() -> dict[str, int]:
    """How often each driver function was called since the start or `reset_calls`."""
    counts: dict[str, int] = {}

    @_Visit
    def visit(name: bytes, count: int, _: Any) -> None:
        counts[name.decode()] = count

    _control("pt_emulator_calls", visit, None)
    return counts


def reset_calls() -> None:
    """Sets the counts of `calls` to zero."""
    _control("pt_emulator_reset_calls")


def set_attribute(device: int, name: str, value: int) -> None:
    """Sets a device attribute: its CU_DEVICE_ATTRIBUTE_ name without that prefix."""
    _control("pt_emulator_set_attribute", device, name.encode(), value)


def set_granularity(
    minimum: int = 2 << 20, recommended: int = 2 << 20, multicast: int = 2 << 20
) -> None:
    """Sets the granularities of physical memory, in bytes."""
    sizes = map(ctypes.c_size_t, (minimum, recommended, multicast))
    _control("pt_emulator_set_granularity", *sizes)


def set_peer_access(device: int, peer: int, possible: bool) -> None:
    """Sets whether two devices can reach each other's memory."""
    _control("pt_emulator_set_peer_access", device, peer, int(possible))


def set_memory(device: int, nbytes: int) -> None:
    """Sets the size of a device's memory; what is allocated stays."""
    _control("pt_emulator_set_memory", device, ctypes.c_size_t(nbytes))


def set_multicast_slots(slots: int) -> None:
    """Sets how many multicast objects can exist at once."""
    _control("pt_emulator_set_multicast_slots", slots)


def empty(shape: int | Sequence[int], dtype: Any, device: int | None = None) -> torch.Tensor:
    """Plain device memory, as cudaMalloc gives it, as a torch tensor; `share` takes it."""
    import torch

    _library()
    name = _dtype.name_of(dtype)
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(dimensions) * _dtype.size_of(name)
    if nbytes == 0:
        return torch.empty(dimensions, dtype=_dtype.public(name))
    ordinal = _core.current_device() if device is None else device
    memory = torch.utils.dlpack.from_dlpack(_core.allocate_plain(ordinal, nbytes))
    return memory.view(_dtype.public(name)).view(dimensions)


class _Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_long)
        for name in (
            "allocations",
            "mappings",
            "reservations",
            "handles",
            "multicasts",
            "streams",
            "events",
            "fds",
        )
    ]


_Visit = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_void_p)


@functools.cache
def _library() -> ctypes.CDLL:
    if _core.driver_name() != "emulated":
        raise NotSupportedError(
            "The controls of the emulated driver work on the emulated driver only; choose it with "
            'PARALLEL_TENSOR_DRIVER=emulated or use_driver("emulated") before the first call.'
        )
    return ctypes.CDLL(_core.driver_origin())


def _control(function: str, *arguments: Any) -> None:
    code = getattr(_library(), function)(*arguments)
    if code == 1:
        shown = ", ".join(str(getattr(a, "value", a)) for a in arguments)
        raise ValueError(f"{function}({shown}): unknown name or value")
    if code != 0:
        raise DriverError(f"{function} returned {code}", function, code, "")
