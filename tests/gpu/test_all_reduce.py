"""all_reduce_ and barrier on a GPU, with ranks that share it."""

import checks
import parallel_tensor as pt
import pytest
import torch
from support import same

EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}
SAMPLE = 1 << 20  # elements that are compared at each end of a large tensor


def parts(count: int) -> list[slice]:
    if count <= 2 * SAMPLE:
        return [slice(0, count)]
    middle = count // 2
    return [slice(0, SAMPLE), slice(middle, middle + SAMPLE), slice(count - SAMPLE, count)]


def check_sum(x: pt.ParallelTensor, what: str) -> None:
    """Reduces a tensor of random numbers and compares with the sum in float64."""
    dtype, count = x.dtype, x.local.numel()
    torch.manual_seed(1000 * x.rank + count)
    # By pieces: eight ranks that each make 256 MiB of float32 first would take much of the memory.
    for piece in x.local.view(-1).split(8 << 20):
        piece.copy_(torch.randn(piece.numel(), dtype=torch.float32, device=piece.device))
    checks.meet(x.group)
    expected = []
    for part in parts(count):
        inputs = torch.stack([peer.view(-1)[part].double() for peer in x.peers])
        expected.append((inputs.sum(0), x.size * EPSILON[dtype] * inputs.abs().sum(0)))
    checks.meet(x.group)
    assert pt.all_reduce_(x) is x
    checks.meet(x.group)
    for part, (exact, bound) in zip(parts(count), expected, strict=True):
        error = (x.local.view(-1)[part].double() - exact).abs()
        assert (error <= bound).all(), f"{what}: off by {error.max().item()}"
    for rank, peer in enumerate(x.peers):
        assert torch.equal(bits(x.local), bits(peer)), f"{what}: other bits than rank {rank}"
    checks.meet(x.group)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def sums(rank: int) -> None:
    group = pt.Group.from_env()
    for dtype in EPSILON:
        for count in (0, 1, 2, 3, 5, 8, 1000, 4096, 100_003, 1 << 20, (8 << 20) + 1):
            with pt.zeros((count,), dtype=dtype, group=group) as x:
                for _ in range(2):
                    check_sum(x, f"{count} of {dtype}")
        with pt.zeros((64 << 20) // dtype.itemsize, dtype=dtype, group=group) as x:
            check_sum(x, f"64 MiB of {dtype}")
        with pt.zeros((256 << 20) // dtype.itemsize, dtype=dtype, group=group) as x:
            check_sum(x, f"256 MiB of {dtype}")
        with pt.zeros((3000,), dtype=dtype, group=group) as x:
            for start, stop in ((1, 4), (7, 8), (3, 1004), (1, 3000), (5, 5)):
                x.local.fill_(7)
                check_sum(x[start:stop], f"[{start}:{stop}] of {dtype}")
                assert x.local[:start].eq(7).all()
                assert x.local[stop:].eq(7).all()
                checks.meet(group)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_the_sum_is_right_from_one_element_to_256_mib(gpu_ranks, n):
    gpu_ranks(n, sums, timeout=150)


def shared_memory(rank: int) -> None:
    """A view of torch's own memory, at an offset, reduced in place."""
    group = pt.Group.from_env()
    whole = torch.zeros(100_000, dtype=torch.float32, device="cuda")
    whole.fill_(-1)
    view = whole[12_345:99_999]
    with pt.share(view, group=group) as x:
        same(x.flavor, "legacy")
        check_sum(x, "a view")
        assert whole[:12_345].eq(-1).all()
        assert whole[99_999:].eq(-1).all()
        checks.meet(group)


def test_memory_of_torch_is_reduced_in_place(gpu_ranks):
    gpu_ranks(2, shared_memory)


def stream_order(rank: int) -> None:
    """No host waits between what fills the memory, the sum and what reads it, on any stream."""
    group = pt.Group.from_env()
    x = pt.zeros((1 << 20,), dtype=torch.float32, group=group)
    side = torch.cuda.Stream()
    results = []
    checks.meet(group)
    for round_ in range(20):
        stream = side if round_ % 2 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.local.fill_(rank + round_)
            pt.all_reduce_(x)
            results.append(x.local[::1000].clone())
            pt.barrier(group)
        torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    for round_, result in enumerate(results):
        assert result.eq(sum(r + round_ for r in range(group.size))).all(), round_
    x.close()


@pytest.mark.parametrize("n", [2, 4])
def test_it_is_ordered_on_streams_without_a_host_wait(gpu_ranks, n):
    gpu_ranks(n, stream_order)


def barriers(rank: int) -> None:
    group = pt.Group.from_env()
    pt.barrier(group)  # also before there is a tensor
    x = pt.zeros((group.size,), dtype=torch.float32, group=group)
    seen = []
    for round_ in range(50):
        for peer in x.peers:
            peer[rank].fill_(100 * rank + round_)
        pt.barrier(group)
        seen.append(x.local.clone())
        pt.barrier(group)
    for round_, row in enumerate(seen):
        same(row.tolist(), [100.0 * peer + round_ for peer in range(group.size)])
    x.close()


@pytest.mark.parametrize("n", [2, 8])
def test_a_barrier_orders_what_ranks_write(gpu_ranks, n):
    gpu_ranks(n, barriers)


def graph(rank: int) -> None:
    group = pt.Group.from_env()
    x = pt.zeros((100_000,), dtype=torch.bfloat16, group=group)
    source = torch.ones(100_000, dtype=torch.bfloat16, device="cuda")
    pt.all_reduce_(x)
    checks.meet(group)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        x.local.copy_(source)
        pt.all_reduce_(x)
        pt.all_reduce_(x)
        result = x.local.clone()
    for round_ in range(10):
        source.fill_(rank + round_)
        captured.replay()
        total = sum(r + round_ for r in range(group.size)) * group.size
        assert result.eq(total).all(), round_
        pt.all_reduce_(x)  # outside of the graph, between its replays
    checks.meet(group)
    captured.reset()
    checks.meet(group)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_captured_sum_is_right_at_each_replay(gpu_ranks, n):
    gpu_ranks(n, graph)
