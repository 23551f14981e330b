"""Ranks as threads of this process."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from ..group import Group
from .outcome import Outcome, values

__all__ = ["thread_ranks"]

_numbers = itertools.count()


def thread_ranks(
    n: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0
) -> list[Any]:
    """Runs a function as n ranks, each a thread of this process, and returns what they returned.

    Each thread joins a group of the n ranks and calls the function with it and the arguments; the
    group is closed when the function is left, so a rank that raises ends the others' waits.

    Args:
        n: How many.
        function: Called as function(group, *args).
        *args: Passed to it.
        timeout: Seconds that all of it may take; the groups' own timeout is half of it.

    Returns:
        One value per rank.

    Raises:
        RanksFailed: A rank raised, or had not ended at the deadline; such a thread cannot be killed
            and lives on, and the report says where it is.
    """
    name = f"testing-threads-{os.getpid()}-{next(_numbers)}"
    outcomes = [Outcome(rank) for rank in range(n)]

    def run(outcome: Outcome) -> None:
        try:
            group = Group(rank=outcome.rank, size=n, name=name, timeout=timeout / 2)
            try:
                outcome.value = function(group, *args)
            finally:
                group.close()
            outcome.returned = True
        except BaseException as error:
            outcome.error, outcome.traceback = error, traceback.format_exc()
            traceback.clear_frames(error.__traceback__)

    threads = [
        threading.Thread(target=run, args=(outcome,), name=f"rank {outcome.rank}", daemon=True)
        for outcome in outcomes
    ]
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    for thread, outcome in zip(threads, outcomes, strict=True):
        frame = sys._current_frames().get(thread.ident or 0) if thread.is_alive() else None
        if frame is not None:
            outcome.timed_out, outcome.returned = True, False
            outcome.traceback = "".join(traceback.format_stack(frame))
    return values(outcomes)
