"""What it costs to create a tensor that every rank can address, and to let it go.

Ours, torch's symmetric memory (empty + rendezvous) and the driver calls made by hand take turns in
the same processes. All ranks start at one moment; a sample is the time of the slowest.

"create" and "drop" let every tensor go locally, as torch's must be: the next one of ours takes the
memory again. "create_fresh" and "close" give it back to the driver in between, by our collective
close.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections import defaultdict
from typing import Any, Protocol

import parallel_tensor as pt
from harness import Measurement, Rows, field_of, settings, size_of, time_of
from rank import Rank, is_rank
from raw_driver import RawDriver, RawExchange

WARM_UP = 3
PHASE = "phase "
STEPS = ("create", "drop")
FRESH_STEPS = ("create_fresh", "close")
PEERS = [("torch_symm_mem", "torch"), ("torch_symm_mem_pool", "torch pool")]


class _Method(Protocol):
    """A way to make memory that every rank can address."""

    def create(self, nbytes: int) -> Any:
        """Collective."""

    def pointers(self, made: Any) -> list[int]:
        """Every rank's memory as it is addressed here."""

    def close(self, made: Any) -> None:
        """Collective, or local where the method is."""


class _Ours:
    """This package; a drop is local, as that of the others."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.phases: dict[str, list[float]] = defaultdict(list)

    def create(self, nbytes: int) -> list[pt.ParallelTensor]:
        rank = self._rank
        made = pt.empty(
            nbytes, dtype="uint8", group=rank.group, device=rank.device, multicast=False
        )
        for phase, us in made.timings.items():
            self.phases[phase].append(us)
        return [made]

    def pointers(self, made: list[pt.ParallelTensor]) -> list[int]:
        return list(made[0].pointers)

    def close(self, made: list[pt.ParallelTensor]) -> None:
        made.clear()


class _OursFresh(_Ours):
    """This package, with a close, which is collective and leaves nothing to use again."""

    def close(self, made: list[pt.ParallelTensor]) -> None:
        made.pop().close()


class _TorchSymmetricMemory:
    """torch.distributed._symmetric_memory: empty and rendezvous."""

    def __init__(self, rank: Rank, pool: bool) -> None:
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric_memory

        self._device = f"cuda:{rank.device}"
        self._group = dist.group.WORLD
        self._module = symmetric_memory
        self._pool = pool

    def create(self, nbytes: int) -> list[Any]:
        import torch

        # What the environment variable of the same meaning sets, for one call.
        self._module._use_implicit_mempool = self._pool
        tensor = self._module.empty(nbytes, dtype=torch.uint8, device=self._device)
        return [self._module.rendezvous(tensor, self._group), tensor]

    def pointers(self, made: list[Any]) -> list[int]:
        return list(made[0].buffer_ptrs)

    def close(self, made: list[Any]) -> None:
        made.clear()


class _RawCalls:
    """The driver calls, and one datagram with a descriptor to each peer."""

    def __init__(self, rank: Rank, driver: RawDriver) -> None:
        self._rank = rank.rank
        self._driver = driver
        self._granularity = driver.granularity()
        self._exchange = RawExchange(rank.group.name, rank.rank, rank.size)

    def create(self, nbytes: int) -> list[tuple[int, Any, int]]:
        driver, size = self._driver, -(-nbytes // self._granularity) * self._granularity
        handle, descriptor = driver.allocate(size)
        made = {self._rank: (driver.map(handle, size), handle, size)}
        for peer, theirs in self._exchange.all_to_all(descriptor).items():
            handle = driver.take_in(theirs)
            os.close(theirs)
            made[peer] = (driver.map(handle, size), handle, size)
        os.close(descriptor)
        return [made[peer] for peer in sorted(made)]

    def pointers(self, made: list[tuple[int, Any, int]]) -> list[int]:
        return [address for address, _, _ in made]

    def close(self, made: list[tuple[int, Any, int]]) -> None:
        for part in made:
            self._driver.unmap(*part)


def measure() -> None:
    """One rank of a launch."""
    rank = Rank()
    if rank.plan["torch"]:
        _join_torch(rank)
    driver = RawDriver(rank.library, rank.device)
    rank.describe(driver.mps())
    others: dict[str, _Method] = {"raw": _RawCalls(rank, driver)}
    if rank.plan["torch"]:
        others["torch"] = _TorchSymmetricMemory(rank, pool=False)
        others["torch pool"] = _TorchSymmetricMemory(rank, pool=True)
    rank.group.barrier()  # all sockets of the exchange by hand are open
    for nbytes in rank.plan["sizes"]:
        for steps, ours in ((STEPS, _Ours(rank)), (FRESH_STEPS, _OursFresh(rank))):
            pt.reclaim()
            methods: dict[str, _Method] = {"ours": ours} | others
            for method in methods.values():
                _check(rank, driver, method, nbytes)
            _time(rank, methods, nbytes, WARM_UP, steps)
            ours.phases.clear()
            samples = _time(rank, methods, nbytes, rank.plan["samples"], steps)
            for (name, step), of_step in samples.items():
                rank.record(name, step, nbytes, samples=of_step)
            for phase, of_phase in ours.phases.items():
                rank.record(steps[0], PHASE + phase, nbytes, samples=of_phase)


def _join_torch(rank: Rank) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.cuda.set_device(rank.device)
    dist.init_process_group("gloo")


def _check(rank: Rank, driver: RawDriver, method: _Method, nbytes: int) -> None:
    """Every rank must find every rank's mark, at both ends."""
    made = method.create(nbytes)
    pointers = method.pointers(made)
    driver.fill(pointers[rank.rank], rank.rank + 1, nbytes)
    rank.group.barrier()
    for peer, pointer in enumerate(pointers):
        for position in (0, nbytes - 1):
            mark = driver.read(pointer + position, 1)[0]
            if mark != peer + 1:
                raise RuntimeError(
                    f"{type(method).__name__}, {nbytes} bytes: rank {rank.rank} reads {mark} at "
                    f"byte {position} of rank {peer}, which wrote {peer + 1}"
                )
    rank.group.barrier()
    method.close(made)


def _time(
    rank: Rank, methods: dict[str, _Method], nbytes: int, rounds: int, steps: tuple[str, str]
) -> dict[tuple[str, str], list[float]]:
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for order in rank.rotated(list(methods), rounds):
        for name in order:
            rank.align()
            start = time.perf_counter()
            made = methods[name].create(nbytes)
            samples[name, steps[0]].append((time.perf_counter() - start) * 1e6)
            rank.align()
            start = time.perf_counter()
            methods[name].close(made)
            samples[name, steps[1]].append((time.perf_counter() - start) * 1e6)
    return samples


def main() -> int:
    """Starts the ranks, draws the tables, writes the rows."""
    options = settings(__doc__.splitlines()[0], [2 << 20, 64 << 20, 1 << 30], [64 << 20])
    measurement = Measurement(options)
    for ranks in options.ranks:
        measurement.run(__file__, ranks, {"sizes": options.sizes})
    rows = Rows("create", measurement)
    for ranks in options.ranks:
        for nbytes in options.sizes:
            # Where torch has nothing to show the row has no peer, once.
            peers = PEERS[:1] if options.emulated else PEERS
            for (name, method), steps in itertools.product(peers, (STEPS, FRESH_STEPS)):
                for step in steps:
                    phases = {"phases": _phases(measurement, ranks, nbytes, step)}
                    rows.add(
                        step,
                        ranks=ranks,
                        nbytes=nbytes,
                        dtype="uint8",
                        mode="host",
                        ours=measurement.figure(ranks, "ours", step, nbytes),
                        peer=(name, measurement.figure(ranks, method, step, nbytes)),
                        limit=("raw_driver_calls", measurement.figure(ranks, "raw", step, nbytes)),
                        **(phases if step == steps[0] else {}),
                    )
    columns = {
        "ranks": field_of("ranks"),
        "size": size_of,
        "ours": time_of("us"),
        "spread": field_of("spread"),
        "peer": field_of("peer"),
        "peer's": time_of("peer_us"),
        "ratio": field_of("ratio"),
        "raw calls": time_of("limit_us"),
        "ours/raw": lambda row: row["limit_ratio"] and 1 / row["limit_ratio"],
    }
    for create, drop in (STEPS, FRESH_STEPS):
        rows.table(create, columns | {"steps of ours": _phases_text})
        rows.table(drop, columns)
    return rows.finish()


def _phases(measurement: Measurement, ranks: int, nbytes: int, step: str) -> dict[str, float]:
    """The median of each step of our creation, of the slowest rank."""
    return {
        key[2].removeprefix(PHASE): round(statistics.median(itertools.chain(*launches)), 1)
        for key, launches in measurement.samples.items()
        if key[0] == ranks and key[1] == step and key[2].startswith(PHASE) and key[3] == nbytes
    }


def _phases_text(row: dict[str, Any]) -> str:
    return ", ".join(f"{phase} {us:.0f}" for phase, us in row["phases"].items())


if __name__ == "__main__":
    sys.exit(measure() if is_rank() else main())
