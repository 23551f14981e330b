"""What became of a rank."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from typing import Any

__all__ = ["Outcome", "RanksFailed"]

_SHOWN = 4000  # characters of a rank's output in a report


@dataclasses.dataclass
class Outcome:
    """What became of one rank.

    Attributes:
        rank: The rank.
        pid: Its process.
        value: What the function returned.
        error: The exception that it raised, else None. One that cannot be pickled arrives as a
            RuntimeError with its text.
        traceback: The text of that exception with its traceback.
        exit_code: Of the process: negative for the signal that ended it; None for a thread.
        stdout: What the process printed.
        stderr: What the process printed there; for one that was killed at the deadline, also where
            its threads were.
        returned: Whether the function came to its end, by returning or by `sys.exit`.
        timed_out: Whether it had to be killed at the deadline.
    """

    rank: int
    pid: int = 0
    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    returned: bool = False
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether the function returned and the process ended with exit code 0."""
        return self.returned and self.error is None and self.exit_code in (0, None)

    def summary(self) -> str:
        """One line: how it ended."""
        if self.timed_out:
            return "had not ended at the deadline"
        if self.error is not None:
            return f"raised {type(self.error).__name__}: {self.error}"
        if self.exit_code is not None and self.exit_code < 0:
            return f"was ended by {signal.Signals(-self.exit_code).name}"
        if self.exit_code:
            return f"ended with exit code {self.exit_code}"
        return "returned" if self.returned else "ended before its function returned"

    def report(self) -> str:
        """Some lines: how it ended, its traceback and what it printed."""
        where = f" (pid {self.pid})" if self.pid else ""
        parts = [f"rank {self.rank}{where} {self.summary()}"]
        for title, text in (
            ("", self.traceback),
            ("stdout", self.stdout),
            # An exception's traceback is on stderr too.
            ("stderr", self.stderr.replace(self.traceback, "") if self.traceback else self.stderr),
        ):
            if text.strip():
                heading = f"-- {title}\n" if title else ""
                parts.append(heading + text.rstrip()[-_SHOWN:])
        return "\n".join(parts)


class RanksFailed(AssertionError):
    """Ranks that should have succeeded did not.

    Attributes:
        outcomes: The Outcome of every rank, in rank order.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        """Makes the report."""
        self.outcomes = list(outcomes)
        failed = [outcome for outcome in outcomes if not outcome.ok]
        lines = [f"{len(failed)} of {len(self.outcomes)} ranks failed"]
        lines += [f"  rank {outcome.rank} {outcome.summary()}" for outcome in self.outcomes]
        lines += ["", *("=" * 20 + " " + outcome.report() + "\n" for outcome in failed)]
        super().__init__("\n".join(lines))


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """What the ranks returned.

    Raises:
        RanksFailed: Not all did.
    """
    if not all(outcome.ok for outcome in outcomes):
        raise RanksFailed(outcomes)
    return [outcome.value for outcome in outcomes]
