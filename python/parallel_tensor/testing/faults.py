"""Driver calls that fail, on the emulated driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import emulator

__all__ = ["failing", "fault_environment"]


@contextlib.contextmanager
def failing(
    call: str, code: int = 2, nth: int | str = 1, rank: int | None = None
) -> Iterator[None]:
    """Lets a driver call of this process fail inside the block; afterwards no call fails any more.

    Args:
        call: The driver function, for example "cuMemMap".
        code: The CUresult it returns; 2 is out of memory.
        nth: Which of its next calls, from 1; "*" is every one.
        rank: Only calls of the calling thread, and only if it joined a group as this rank.

    Raises:
        ValueError: The function is not one of the driver's.
        NotSupportedError: The emulated driver is not the chosen one.
    """
    emulator.fail(call, code=code, nth=nth, rank=rank)
    try:
        yield
    finally:
        emulator.clear()


def fault_environment(call: str, code: int = 2, nth: int | str = 1) -> dict[str, str]:
    """The variables with which a process starts that lets this call fail, for `ranks(env=)`."""
    return {"PARALLEL_TENSOR_EMULATED_FAIL": f"{call}:{nth}={code}"}
