"""The exceptions of parallel_tensor.

A message says what was tried, with which numbers, on which rank and device, what came back, and
what to do about it. Code that reacts to an error reads the attributes, never the text.
"""

from __future__ import annotations

import builtins

__all__ = [
    "ArgumentError",
    "DriverError",
    "Error",
    "ExchangeError",
    "MismatchError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PeerError",
    "TimeoutError",
]


class Error(RuntimeError):
    """Base of every exception of this package."""


class ArgumentError(Error, ValueError):
    """An argument that can never work: an unknown type, a negative size, a foreign rank."""


class NotSupportedError(Error):
    """This machine, driver or memory cannot do what was asked; says what, why and what to do."""


class DriverError(Error):
    """A call of the CUDA driver failed.

    Attributes:
        call: The driver function without a version suffix, for example "cuMemCreate".
        code: The CUresult that came back.
        name: Its name, for example "CUDA_ERROR_INVALID_VALUE".
    """

    def __init__(self, message: str, call: str = "", code: int = 0, name: str = "") -> None:
        super().__init__(message, call, code, name)
        self.call, self.code, self.name = call, code, name

    def __str__(self) -> str:
        return str(self.args[0])


class OutOfMemoryError(DriverError, MemoryError):
    """The device is out of memory."""


class ExchangeError(Error):
    """The ranks of a group could not complete an operation together.

    Attributes:
        phase: The step in which it happened, for example "join", "create" or "barrier".
    """

    def __init__(self, message: str, phase: str = "") -> None:
        super().__init__(message, phase)
        self.phase = phase

    def __str__(self) -> str:
        return str(self.args[0])


class PeerError(ExchangeError):
    """Another rank failed or died; the message holds that rank's own error.

    Attributes:
        rank: The rank that failed.
        pid: Its process, 0 when it never joined.
        phase: The step in which it happened.
    """

    def __init__(self, message: str, rank: int = -1, pid: int = 0, phase: str = "") -> None:
        Error.__init__(self, message, rank, pid, phase)
        self.rank, self.pid, self.phase = rank, pid, phase


class TimeoutError(ExchangeError, builtins.TimeoutError):
    """A deadline ran out; the message names the ranks that were missing.

    Attributes:
        phase: The step in which it happened.
        missing: The ranks that had not answered.
    """

    def __init__(
        self, message: str, phase: str = "", missing: tuple[int, ...] | list[int] = ()
    ) -> None:
        Error.__init__(self, message, phase, tuple(missing))
        self.phase, self.missing = phase, tuple(missing)


class MismatchError(ExchangeError):
    """The ranks called different operations, or the same one with different arguments."""
