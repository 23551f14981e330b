"""What tests use in the processes they start; needs neither torch nor pytest."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def same(actual: Any, expected: Any, what: str = "") -> None:
    """An assertion that shows both sides where pytest does not rewrite assertions."""
    assert actual == expected, f"{what}: {actual!r} instead of {expected!r}"


def error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> BaseException | None:
    """What a call raises; None when it returns."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)
    return None


def memory(pointer: int, nbytes: int) -> memoryview:
    """The bytes at a device address of the emulated driver."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(pointer)).cast("B")


def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Returns when the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout} s"
        time.sleep(0.002)


def is_sleeping(pid: int) -> bool:
    """Whether the main thread of a process waits in the kernel."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"


def seconds_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """How long a call takes that may raise."""
    start = time.monotonic()
    error_of(function, *args, **kwargs)
    return time.monotonic() - start


def job() -> str:
    """The name of this process's job, for groups beside the one of the environment."""
    return os.environ["PARALLEL_TENSOR_JOB"]


class PlainMemory:
    """Memory of the emulated driver as cudaMalloc gives it, with what `share` asks of a tensor."""

    def __init__(self, nbytes: int, device: int = 0) -> None:
        import numpy
        from parallel_tensor import _core

        capsule = _core.allocate_plain(device, nbytes)
        methods = {"__dlpack__": lambda _, **__: capsule, "__dlpack_device__": lambda _: (1, 0)}
        self._array = numpy.from_dlpack(type("Producer", (), methods)())
        self.shape, self.dtype, self.nbytes = (nbytes,), "uint8", nbytes
        self.device = SimpleNamespace(type="cpu", index=None)

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def is_contiguous(self) -> bool:
        return True
