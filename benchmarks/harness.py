"""The side of a benchmark that starts ranks and makes rows of their samples; README.md says how."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import Key, Launch, launch

FOLDER = Path(__file__).resolve().parent


@dataclass
class Settings:
    """What the command line asks for."""

    driver: str
    ranks: list[int]
    sizes: list[int]
    launches: int
    samples: int
    time_limit: float
    quick: bool
    output: Path | None

    @property
    def emulated(self) -> bool:
        """Whether this only shows that the benchmark runs."""
        return self.driver != "cuda"


def settings(description: str, sizes: list[int], quick_sizes: list[int]) -> Settings:
    """Reads the command line; the sizes are those measured when it names none."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add(
        "--device",
        choices=["auto", "cuda", "emulated"],
        default="auto",
        help="auto: PARALLEL_TENSOR_DRIVER, else cuda; emulated: tiny sizes, only to see it run",
    )
    add("--quick", action="store_true", help="fewer sizes and launches")
    add("--ranks", type=_numbers, help="for example 2,4,8")
    add("--sizes", type=_numbers, help="bytes, for example 4096,1048576")
    add("--launches", type=int, help="how often the ranks are started anew")
    add("--samples", type=int, help="per launch and figure")
    add("--time-limit", type=float, default=90, help="seconds for one launch")
    add(
        "--output",
        type=Path,
        help="folder for the rows (benchmarks/results; on the emulated driver none)",
    )
    given = parser.parse_args()
    # Also when this process is asked to end, the ranks have to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    driver = os.environ.get("PARALLEL_TENSOR_DRIVER", "cuda")
    if given.device == "cuda" or (given.device == "emulated" and driver == "cuda"):
        driver = given.device
    emulated = driver != "cuda"
    if emulated:
        sizes, quick_sizes = [4 << 10, 64 << 10], [4 << 10]
    return Settings(
        driver=driver,
        ranks=given.ranks or ([2] if emulated else [2, 4, 8]),
        sizes=given.sizes or (quick_sizes if given.quick else sizes),
        launches=given.launches or (1 if emulated else 2 if given.quick else 5),
        samples=given.samples or (3 if emulated else 9),
        time_limit=given.time_limit,
        quick=given.quick,
        output=given.output or (None if emulated else FOLDER / "results"),
    )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


@dataclass
class Figure:
    """One quantity in microseconds."""

    us: float  # the median over launches of each launch's median
    lowest: float  # the smallest of those
    spread: float  # from the 10th to the 90th percentile of all samples, as a part of `us`
    launches: int
    samples: int  # of one launch


@dataclass
class Measurement:
    """The samples of all launches of one benchmark."""

    settings: Settings
    samples: dict[Key, list[list[float]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def run(self, script: str, ranks: int, plan: dict[str, Any]) -> None:
        """Starts the ranks as often as the settings say; a launch that fails is kept in mind."""
        plan = plan | {"torch": not self.settings.emulated}
        for number in range(self.settings.launches):
            limit = self.settings.time_limit
            done = self.launch_once(script, ranks, plan | {"launch": number}, limit)
            if done.overran:
                plan["torch"] = False  # so that the others have a chance
                self.fail(f"{ranks} ranks, launch {number}: ended after {limit:.0f} s")
            if done.failure:
                self.fail(f"{ranks} ranks, launch {number}: {done.failure}")

    def launch_once(
        self, script: str, ranks: int, plan: dict[str, Any], time_limit: float
    ) -> Launch:
        """Starts the ranks once and keeps their samples; to judge the outcome is the caller's."""
        start = time.monotonic()
        plan = {"launch": 0, "samples": self.settings.samples} | plan
        done = launch(script, ranks, plan, self.settings.driver, time_limit)
        for key, samples in done.figures.items():
            self.samples.setdefault((ranks, *key), []).append(samples)
        self.facts = self.facts or done.facts
        seconds, count = time.monotonic() - start, len(done.figures)
        print(f"{ranks} ranks: {count} figures in {seconds:.1f} s", flush=True)
        return done

    def fail(self, message: str) -> None:
        """Says what went wrong, now and in the exit code."""
        self.failures.append(message)
        print(f"FAILED: {message}", file=sys.stderr, flush=True)

    def figure(self, *key: Any) -> Figure | None:
        """What the ranks recorded under a key, the number of ranks before it; None if nothing."""
        launches = self.samples.get(key)
        if not launches:
            return None
        medians = [statistics.median(samples) for samples in launches]
        ordered = sorted(sample for samples in launches for sample in samples)
        tenth = (len(ordered) - 1) / 10
        low, high = ordered[round(tenth)], ordered[round(9 * tenth)]
        middle = statistics.median(medians)
        spread = (high - low) / middle
        return Figure(middle, min(medians), spread, len(launches), min(map(len, launches)))


class Rows:
    """The rows of one benchmark: JSON lines in a file and tables on the screen."""

    def __init__(self, name: str, measurement: Measurement) -> None:
        """Starts without rows; `name` is that of the file."""
        self._name = name
        self._measurement = measurement
        self._rows: list[dict[str, Any]] = []
        facts = measurement.facts
        self._common = {
            "driver": facts.get("driver", "unknown"),
            "mps": facts.get("mps", False),
            "machine": facts.get("machine", "unknown"),
            "versions": facts.get("versions", {}),
            "commit": _commit(),
        }

    def add(
        self,
        name: str,
        *,
        ranks: int,
        nbytes: int,
        dtype: str,
        mode: str,
        ours: Figure | None,
        peer: tuple[str | None, Figure | None],
        limit: tuple[str | None, Figure | None],
        **more: Any,
    ) -> None:
        """Adds a row; without a figure of our own there is none, and the run counts as failed."""
        if ours is None:
            what = f"{name} {mode}, {ranks} ranks, {nbytes} bytes, {dtype}"
            self._measurement.fail(f"no figure for {what}")
            return
        (peer_name, theirs), (limit_name, bound) = peer, limit
        row = {
            "name": name,
            "ranks": ranks,
            "bytes": nbytes,
            "dtype": dtype,
            "mode": mode,
            "us": ours.us,
            "us_min": ours.lowest,
            "spread": ours.spread,
            "launches": ours.launches,
            "samples": ours.samples,
            "peer": peer_name,
            "peer_us": theirs and theirs.us,
            "peer_us_min": theirs and theirs.lowest,
            "peer_spread": theirs and theirs.spread,
            "peer_launches": theirs and theirs.launches,
            "ratio": theirs and theirs.us / ours.us,
            "ratio_min": theirs and theirs.lowest / ours.lowest,
            "limit": limit_name,
            "limit_us": bound and bound.us,
            "limit_us_min": bound and bound.lowest,
            "limit_ratio": bound and bound.us / ours.us,
            **more,
        }
        rounded = {key: _five_digits(value) for key, value in row.items()}
        self._rows.append(rounded | self._common)

    def table(self, name: str, columns: dict[str, Callable[[dict[str, Any]], Any]]) -> None:
        """Prints the rows of a name; a column is a title and what it shows of a row."""
        rows = [row for row in self._rows if row["name"] == name]
        if not rows:
            return
        cells = [list(columns)] + [[_text(show(row)) for show in columns.values()] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        print(f"\n{name}: us, the median of the launches and in brackets the best of them")
        for line in cells:
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))

    def finish(self) -> int:
        """Writes the file and says what the figures stand on; returns the exit code."""
        common = self._common
        versions = ", ".join(f"{name} {version}" for name, version in common["versions"].items())
        print(f"\n{common['machine']}; {versions}; commit {common['commit']}")
        if common["driver"] == "emulated":
            print("The figures of the emulated driver say nothing about a GPU.")
        elif not common["mps"]:
            print("MPS does not run: ranks that share a GPU take turns, and figures mean little.")
        output = self._measurement.settings.output
        if output and self._rows:
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"{self._name}.jsonl"
            partial = path.with_suffix(".partial")
            partial.write_text("".join(json.dumps(row) + "\n" for row in self._rows))
            partial.replace(path)
            print(f"{len(self._rows)} rows in {path}")
        failures = len(self._measurement.failures)
        if failures:
            print(f"{failures} failures, see above", file=sys.stderr)
        return 1 if failures else 0


def time_of(name: str) -> Callable[[dict[str, Any]], str]:
    """A column with a time, and in brackets that of the best launch."""

    def show(row: dict[str, Any]) -> str:
        if row[name] is None:
            return "-"
        return f"{_text(row[name])} ({_text(row[name + '_min'])})"

    return show


def field_of(name: str) -> Callable[[dict[str, Any]], Any]:
    """A column with a field of the row."""
    return lambda row: row.get(name)


def size_of(row: dict[str, Any]) -> str:
    """A column with the bytes, in the largest unit that divides them."""
    nbytes: int = row["bytes"]
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}"
    return f"{nbytes} B"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _five_digits(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _commit() -> str:
    if named := os.environ.get("PARALLEL_TENSOR_COMMIT"):
        return named
    command = ["git", "-C", str(FOLDER), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
