"""What must hold on every driver: tests/process runs it on the emulated one, tests/gpu on a GPU.

A check is a function of a group that every rank calls.
"""

from __future__ import annotations

import gc
import importlib
import warnings

import parallel_tensor as pt
import torch
from parallel_tensor.testing import no_leaks


def on_gpu() -> bool:
    """Whether the driver is a real one."""
    return pt.driver_name() != "emulated"


def device() -> torch.device:
    """Where this rank's tensors are."""
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu() else torch.device("cpu")


def plain(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Device memory that is not ours: as torch, or cudaMalloc, gives it."""
    if on_gpu():
        return torch.empty(shape, dtype=dtype, device=device())
    from parallel_tensor import emulator

    return emulator.empty(shape, dtype)


def meet(group: pt.Group) -> None:
    """Returns when what every rank has asked its device to do is done."""
    if on_gpu():
        torch.cuda.synchronize()
    group.barrier()


def run(*modules: str) -> list[str]:
    """Runs every check of these modules of this folder as one rank; returns their names.

    Each must leave as many descriptors and driver objects as it found.
    """
    warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
    group = pt.Group.from_env()
    x = pt.empty((1,), dtype=torch.int8, group=group)
    x.peers[-1].fill_(0)  # torch starts to use the device
    x.close()
    done = []
    for module in modules:
        for check in importlib.import_module(f"checks.{module}").CHECKS:
            try:
                with no_leaks():
                    check(group)
                    # Shared memory is freed when all ranks have said that they gave it up, which
                    # they do at an exchange of memory.
                    gc.collect()
                    pt.reclaim(patience=10.0)
                    pt.empty((1,), dtype=torch.int8, group=group).close()
                    meet(group)
            except Exception as error:
                raise AssertionError(f"{module}.{check.__name__}: {error}") from error
            done.append(f"{module}.{check.__name__}")
    return done
