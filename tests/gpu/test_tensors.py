"""Created and shared tensors on a GPU; the checks are in tests/checks."""

import gc
import os
from pathlib import Path

import checks
import parallel_tensor as pt
import pytest
import torch
from parallel_tensor.testing import counts
from support import error_of, same


def created_and_shared() -> list[str]:
    same(pt.driver_name(), "cuda")
    return checks.run("create", "share")


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_created_and_shared_tensors(gpu_ranks, n):
    done = gpu_ranks(n, created_and_shared)
    assert len(done[0]) > 20
    assert done == [done[0]] * n


def cycles() -> tuple[list[int], int]:
    """Descriptors and free memory after each ten of 100 creations, half closed and half dropped."""
    group = pt.Group.from_env()
    plain = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")

    def cycle() -> None:
        x = pt.zeros((4 << 20,), dtype=torch.uint8, group=group)
        y = pt.share(plain, group=group)
        x.peers[-1].add_(1)
        x.close()
        y.close()
        pt.zeros((4 << 20,), dtype=torch.uint8, group=group)
        pt.share(plain, group=group)

    descriptors, free = [], []
    for number in range(55):
        cycle()
        if number % 5 == 4:
            gc.collect()
            checks.meet(group)
            descriptors.append(counts()["descriptors"])
            checks.meet(group)
            free.append(torch.cuda.mem_get_info()[0])
            checks.meet(group)
    return descriptors[1:], max(free[1:]) - min(free[1:])


def test_cycles_leave_no_descriptor_and_no_memory(gpu_ranks):
    for descriptors, memory in gpu_ranks(4, cycles):
        assert len(set(descriptors)) == 1, descriptors
        assert memory <= 8 << 20


def drop_while_a_kernel_runs() -> None:
    """Kernels on a side stream use own and peer memory; both are dropped at once."""
    group = pt.Group.from_env()
    keep = pt.zeros((1 << 20,), dtype=torch.float32, group=group)
    plain = torch.zeros(1 << 20, dtype=torch.float32, device="cuda")
    side = torch.cuda.Stream()
    # torch loads its kernels at their first use, and that waits for the device.
    plain.add_(1).mul_(1)
    torch.cuda.synchronize()
    for round_ in range(3):
        x = pt.zeros((1 << 20,), dtype=torch.float32, group=group)
        y = pt.share(plain, group=group)
        checks.meet(group)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000_000)
            for tensor in (x, y):
                tensor.local.add_(1)
                tensor.peers[(group.rank + 1) % group.size].mul_(1)
            keep.local.add_(1)
            done = side.record_event()
        del x, y, tensor
        gc.collect()
        pt.reclaim()
        assert not done.query() or round_, "the kernels were to run still"
        pt.zeros((1 << 20,), dtype=torch.float32, group=group).close()
    torch.cuda.synchronize()
    same(keep.local[-1].item(), 3.0)
    same(pt.reclaim(patience=5.0), 0)


def test_memory_may_be_dropped_while_kernels_use_it(gpu_ranks):
    gpu_ranks(2, drop_while_a_kernel_runs)


def masked_identity() -> tuple[str, str]:
    with pt.zeros((4,), dtype=torch.float32) as x:
        assert x.device == torch.device("cuda", x.cuda_device)
        assert x.local.is_cuda
        info = pt.info()
        return info["devices"][x.cuda_device]["uuid"], str(info["driver"])


def test_info_and_device_are_the_gpus(gpu_ranks):
    answers = gpu_ranks(2, masked_identity)
    assert answers[0] == answers[1]
    assert answers[0][1] == "cuda"


kept = []


def leave_with_live_tensors(rank: int) -> None:
    x = pt.zeros((1000,), dtype=torch.float32)
    y = pt.share(torch.zeros(1000, device="cuda"), group=x.group)
    pt.all_reduce_(x)
    kept.extend([x, y, x.peers, y.local])
    kept.append(kept)


def test_a_process_ends_quietly_with_live_tensors(rank_outcomes):
    for outcome in rank_outcomes(2, leave_with_live_tensors, driver=None):
        assert outcome.ok, outcome.report()
        assert outcome.stderr == ""


def out_of_memory(rank: int) -> None:
    group = pt.Group.from_env()
    size = torch.cuda.mem_get_info()[1] * 2
    error = error_of(pt.empty, (size,), dtype=torch.uint8, group=group)
    same(type(error), pt.OutOfMemoryError)
    same((error.call, error.code), ("cuMemCreate", 2))
    pt.zeros((4,), dtype=torch.float32, group=group).close()
    torch.zeros(4, device="cuda").add_(1).cpu()  # and torch sees no error of ours


def test_more_than_the_gpu_has_is_out_of_memory_and_the_next_call_works(gpu_ranks):
    gpu_ranks(2, out_of_memory)


def expandable_segments(rank: int) -> str:
    group = pt.Group.from_env()
    t = torch.zeros(1 << 20, device="cuda")
    error = error_of(pt.share, t, group=group)
    pt.zeros((4,), dtype=torch.float32, group=group).close()
    return "" if error is None else str(error)


def test_expandable_segments_are_shared_or_refused_on_all_by_name(ranks):
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    texts = ranks(2, expandable_segments, env=env, driver=None)
    assert all(texts) or not any(texts)
    if texts[0]:
        assert "expandable_segments" in texts[0]


def no_child_inherits(rank: int) -> None:
    pt.zeros((4,), dtype=torch.float32)
    for name in os.listdir("/proc/self/fd"):
        path = Path(f"/proc/self/fdinfo/{name}")
        target = os.readlink(f"/proc/self/fd/{name}") if path.exists() else ""
        if target.startswith("socket:"):
            assert not os.get_inheritable(int(name))


def test_sockets_are_closed_on_exec(gpu_ranks):
    gpu_ranks(2, no_child_inherits)
