"""All-reduce (float32 and bfloat16, sum) and the barrier on the device.

Ours, torch's symmetric memory and the limit (a plain copy; an empty kernel) take turns in the same
processes. On the device a sample is 20 calls between two events, from a moment at which the streams
of all ranks are level; it is that of the slowest rank.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import parallel_tensor as pt
import torch
from device import CALLS, Device
from harness import Measurement, Rows, field_of, settings, size_of, time_of
from rank import Rank, is_rank
from raw_driver import RawDriver

SIZES = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
QUICK_SIZES = [4 << 10, 64 << 10, 1 << 20, 64 << 20]
DTYPES = ["bfloat16", "float32"]
TORCH = ["one_shot", "two_shot"]
TORCH_LIMIT = 30  # seconds for sizes that torch is not known to finish
HOST_CALLS = 100
HOST_BYTES = 4 << 10  # the host's time is the same for all sizes
WARM_UP = 3

# 20 sums of 8 ranks grow a value by 8 ** 20: from here it stays finite in both types.
SCALE = 1e-6


@dataclass
class _Contender:
    """Somebody's way to do a thing."""

    call: Callable[[], Any]
    input: torch.Tensor | None = None  # takes this rank's values before every sample
    result: torch.Tensor | None = None  # where the sum is afterwards


class _Torch:
    """torch's symmetric memory: what its operators and barriers need."""

    def __init__(self, rank: Rank) -> None:
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric_memory

        dist.init_process_group("gloo")
        self._group = dist.group.WORLD
        self._module = symmetric_memory
        self._device = f"cuda:{rank.device}"

    def tensor(self, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
        """A new tensor and its handle; collective."""
        tensor = self._module.empty(count, dtype=dtype, device=self._device)
        return tensor, self._module.rendezvous(tensor, self._group)

    def contender(self, algorithm: str, like: torch.Tensor) -> _Contender:
        """An all-reduce of a new tensor of the same size and type; collective."""
        tensor, _ = self.tensor(like.numel(), like.dtype)
        name, operators = self._group.group_name, torch.ops.symm_mem
        if algorithm == "two_shot":
            call = lambda: operators.two_shot_all_reduce_(tensor, "sum", name)  # noqa: E731
            return _Contender(call, tensor, tensor)
        out = torch.empty_like(like)
        call = lambda: operators.one_shot_all_reduce_out(tensor, "sum", name, out)  # noqa: E731
        return _Contender(call, tensor, out)


def measure() -> None:
    """One rank of a launch."""
    torch.set_num_threads(1)
    rank = Rank()
    if not rank.emulated:
        torch.cuda.set_device(rank.device)
    device = Device(rank)
    theirs = _Torch(rank) if rank.plan["torch"] else None
    rank.describe(RawDriver(rank.library, rank.device).mps())
    with device.stream():
        pt.barrier(rank.group)  # the first one sets the group's workspace up
        if not rank.emulated:
            device.warm(0.5)
        if "ours" in rank.plan["methods"]:
            _time(rank, device, ("barrier", 0, ""), _barriers(rank, theirs), None)
        for name in rank.plan["dtypes"]:
            for nbytes in rank.plan["sizes"]:
                _all_reduces(rank, device, theirs, name, nbytes)


def _barriers(rank: Rank, theirs: _Torch | None) -> dict[str, _Contender]:
    contenders = {"ours": _Contender(lambda: pt.barrier(rank.group))}
    if theirs:
        tensor, handle = theirs.tensor(1024, torch.float32)
        contenders["torch"] = _Contender(lambda: handle.barrier(channel=0), tensor)
    if not rank.emulated:
        contenders["limit"] = _Contender(lambda: torch.cuda._sleep(0))
    return contenders


def _all_reduces(rank: Rank, device: Device, theirs: _Torch | None, name: str, nbytes: int) -> None:
    dtype = getattr(torch, name)
    count = nbytes // dtype.itemsize
    inputs = [_input(rank, r, count, dtype) for r in range(rank.size)]
    source = inputs[rank.rank]
    contenders: dict[str, _Contender] = {}
    x = None
    if "ours" in rank.plan["methods"]:
        x = pt.empty(count, dtype=dtype, group=rank.group, device=rank.device, multicast=False)
        contenders["ours"] = _Contender(lambda: pt.all_reduce_(x), x.local, x.local)
        if not rank.emulated:
            copy = torch.empty_like(source)
            contenders["limit"] = _Contender(lambda: copy.copy_(source))
    for algorithm in TORCH if theirs else []:
        known = rank.plan["all_sizes"] or not _doubtful(rank.size, nbytes)
        if algorithm in rank.plan["methods"] and known:
            contenders[algorithm] = theirs.contender(algorithm, source)
    for label, contender in contenders.items():
        if contender.result is not None:
            _check(rank, contender, inputs, f"{label}, {name}, {nbytes} bytes")
    if x is not None:
        neighbour = x.peer((rank.rank + 1) % rank.size)
        if not torch.equal(x.local.view(torch.uint8), neighbour.view(torch.uint8)):
            raise RuntimeError(f"{name}, {nbytes} bytes: the results of the ranks differ")
        pt.barrier(rank.group)  # nobody reads any more
    del inputs
    _time(rank, device, ("all_reduce", nbytes, name), contenders, source)
    device.synchronize()
    if x is not None:
        x.close()


def _doubtful(ranks: int, nbytes: int) -> bool:
    """Whether torch may not come to an end: with 8 ranks on one GPU it did not above 1 MiB."""
    return ranks >= 8 and nbytes > 1 << 20


def _input(rank: Rank, of: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    where = "cpu" if rank.emulated else "cuda"
    generator = torch.Generator(where).manual_seed(of)
    return (torch.rand(count, generator=generator, device=where) * SCALE - SCALE / 2).to(dtype)


def _check(rank: Rank, contender: _Contender, inputs: list[torch.Tensor], what: str) -> None:
    """Compares one call's result with the sum in float64, within n * eps."""
    contender.input.copy_(inputs[rank.rank])
    pt.barrier(rank.group)
    contender.call()
    pt.barrier(rank.group)
    exact = sum(part.double() for part in inputs)
    magnitude = sum(part.double().abs() for part in inputs)
    allowed = magnitude * (rank.size * torch.finfo(inputs[0].dtype).eps)
    excess = float(((contender.result.double() - exact).abs() - allowed).max())
    if not excess <= 0:
        raise RuntimeError(f"{what}: the sum is wrong by {excess} more than n * eps allows")


def _time(
    rank: Rank,
    device: Device,
    key: tuple[str, int, str],
    contenders: dict[str, _Contender],
    source: torch.Tensor | None,
) -> None:
    """Measures contenders in turns, and hands the samples back."""

    def prepare(label: str) -> None:
        if source is not None and contenders[label].input is not None:
            contenders[label].input.copy_(source)

    for mode, sample in _modes(rank, device, key[1], contenders, prepare).items():
        samples: dict[str, list[float]] = defaultdict(list)
        rounds = WARM_UP + rank.plan["samples"]
        for turn, order in enumerate(rank.rotated(list(contenders), rounds)):
            for label in order:
                prepare(label)
                us = sample(label)
                if turn >= WARM_UP:
                    samples[label].append(us)
        for label, measured in samples.items():
            rank.record(*key, mode, label, samples=measured)


def _modes(
    rank: Rank,
    device: Device,
    nbytes: int,
    contenders: dict[str, _Contender],
    prepare: Callable[[str], None],
) -> dict[str, Callable[[str], float]]:
    """What takes a sample of a contender, for each way to call it."""
    if rank.emulated:
        return {"host": lambda label: _host_sample(rank, contenders[label].call, 1)}
    graphs = {}
    for label, contender in contenders.items():
        prepare(label)
        device.sample(contender.call, ahead=False)
        graphs[label] = device.graph(contender.call)

    def eager(label: str) -> None:
        for _ in range(CALLS):
            contenders[label].call()

    modes = {
        "graph": lambda label: device.sample(graphs[label].replay, ahead=True) / CALLS,
        "eager": lambda label: device.sample(lambda: eager(label), ahead=False) / CALLS,
    }
    if nbytes <= HOST_BYTES:
        modes["host"] = lambda label: _host_sample(rank, contenders[label].call, HOST_CALLS)
    return modes


def _host_sample(rank: Rank, call: Callable[[], Any], calls: int) -> float:
    """Microseconds of the host for one call; on a GPU it does not wait for the device."""
    if not rank.emulated:
        torch.cuda.synchronize()
    rank.align()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    us = (time.perf_counter() - start) * 1e6 / calls
    if not rank.emulated:
        torch.cuda.synchronize()
    return us


def main() -> int:
    """Starts the ranks, draws the tables, writes the rows."""
    options = settings(__doc__.splitlines()[0], SIZES, QUICK_SIZES)
    measurement = Measurement(options)
    dtypes = DTYPES[:1] if options.quick else DTYPES
    plan = {
        "sizes": options.sizes,
        "dtypes": dtypes,
        "methods": ["ours", *TORCH],
        "all_sizes": False,
    }
    for ranks in options.ranks:
        measurement.run(__file__, ranks, plan)
    outcomes = {} if options.emulated else _try_torch(measurement, plan)
    rows = Rows("all_reduce", measurement)
    for ranks in options.ranks:
        for mode in ("graph", "eager", "host"):
            _add(rows, measurement, ranks, ("barrier", 0, ""), mode, outcomes)
            for dtype in dtypes:
                for nbytes in options.sizes:
                    _add(rows, measurement, ranks, ("all_reduce", nbytes, dtype), mode, outcomes)
    columns = {
        "ranks": field_of("ranks"),
        "mode": field_of("mode"),
        "ours": time_of("us"),
        "spread": field_of("spread"),
        "torch": time_of("peer_us"),
        "ratio": field_of("ratio"),
        "limit": time_of("limit_us"),
        "limit/ours": field_of("limit_ratio"),
    }
    bandwidths = {
        "dtype": field_of("dtype"),
        "size": size_of,
        "algbw": field_of("algbw"),
        "busbw": field_of("busbw"),
        "note": lambda row: row["peer_note"] or row["peer_algorithm"],
    }
    rows.table("barrier", columns)
    rows.table("all_reduce", columns | bandwidths)
    return rows.finish()


def _try_torch(measurement: Measurement, plan: dict[str, Any]) -> dict[tuple[int, str], str]:
    """Runs torch where it may not come to an end, in launches of its own, after all others."""
    outcomes = {}
    for ranks in measurement.settings.ranks:
        sizes = [nbytes for nbytes in plan["sizes"] if _doubtful(ranks, nbytes)]
        for algorithm in TORCH if sizes else []:
            if measurement.settings.quick:
                outcomes[ranks, algorithm] = "not run"
                continue
            alone = plan | {
                "sizes": sizes,
                "methods": [algorithm],
                "torch": True,
                "all_sizes": True,
            }
            done = measurement.launch_once(__file__, ranks, alone, TORCH_LIMIT)
            if done.overran:
                outcomes[ranks, algorithm] = f"did not finish in {TORCH_LIMIT} s"
            elif done.failure:
                reason = done.failure.splitlines()[-1].strip()
                outcomes[ranks, algorithm] = f"failed: {reason}"
    return outcomes


def _add(
    rows: Rows,
    measurement: Measurement,
    ranks: int,
    key: tuple[str, int, str],
    mode: str,
    outcomes: dict[tuple[int, str], str],
) -> None:
    """Adds the row of one key and mode, with torch's better algorithm beside ours."""
    name, nbytes, dtype = key
    figures = {
        label: measurement.figure(ranks, *key, mode, label)
        for label in ("ours", "limit", "torch", *TORCH)
    }
    emulated = measurement.settings.emulated
    expected = mode == "host" if emulated else mode != "host" or nbytes <= HOST_BYTES
    if not expected:
        return
    finished = {label: figures[label] for label in ("torch", *TORCH) if figures[label]}
    best = min(finished, key=lambda label: finished[label].us, default=None)
    more: dict[str, Any] = {}
    if name == "all_reduce":
        missing = {label: outcomes.get((ranks, label)) for label in TORCH if not figures[label]}
        notes = [f"{label} {outcome}" for label, outcome in missing.items() if outcome]
        more = {"peer_algorithm": best, "peer_note": "; ".join(notes)}
        more |= {f"peer_{label}_us": figures[label] and figures[label].us for label in TORCH}
        if figures["ours"] and mode != "host":
            # As nccl-tests has it: GB/s of one rank's bytes, and with the factor of the operation.
            more["algbw"] = nbytes / figures["ours"].us / 1e3
            more["busbw"] = more["algbw"] * 2 * (ranks - 1) / ranks
    limit = {"barrier": "empty_kernel", "all_reduce": "device_copy"}[name]
    rows.add(
        name,
        ranks=ranks,
        nbytes=nbytes,
        dtype=dtype,
        mode=mode,
        ours=figures["ours"],
        peer=("torch_symm_mem", finished.get(best)),
        limit=(limit, figures["limit"]),
        **more,
    )


if __name__ == "__main__":
    sys.exit(measure() if is_rank() else main())
