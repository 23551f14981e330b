"""all_reduce_ and barrier against sums in float64; without torch, so that ranks start quickly."""

import hashlib

import numpy
import parallel_tensor as pt
import pytest
from support import error_of, memory, same

COUNTS = (0, 1, 3, 5, 1000, 100_003)
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7}


def to_bits(values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Float32 values as the elements of a type; bfloat16 ones, as uint16, must be exact."""
    if dtype == "float32":
        return values.astype(numpy.float32)
    return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)


def to_values(bits: numpy.ndarray) -> numpy.ndarray:
    if bits.dtype == numpy.uint16:
        bits = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
    return bits.astype(numpy.float64)


def inputs(rank: int, count: int, dtype: str, seed: int) -> numpy.ndarray:
    values = numpy.random.default_rng([seed, rank, count]).standard_normal(count) * 100
    return to_bits(values, dtype)


def array(x: pt.ParallelTensor, rank: int | None = None) -> numpy.ndarray:
    """A rank's elements as they are in memory."""
    element = numpy.float32 if x._dtype == "float32" else numpy.uint16
    if x.nbytes == 0:
        return numpy.empty(0, element)
    pointer = x.pointers[x.rank if rank is None else rank]
    return numpy.frombuffer(memory(pointer, x.nbytes), dtype=element)


def check_sum(x: pt.ParallelTensor, seed: int, what: str) -> None:
    """Fills a tensor or a slice of one, reduces it and compares."""
    count, dtype, group = x.shape[0], x._dtype, x.group
    array(x)[:] = inputs(x.rank, count, dtype, seed)
    assert pt.all_reduce_(x) is x
    everybody = [to_values(inputs(rank, count, dtype, seed)) for rank in range(x.size)]
    exact = sum(everybody)
    bound = x.size * EPSILON[dtype] * sum(map(abs, everybody))
    result = array(x)
    assert (abs(to_values(result) - exact) <= bound).all(), what
    digests = group.all_gather(hashlib.sha256(result.tobytes()).digest())
    same(len({digest for digest, _ in digests}), 1, f"{what}: results that are the same bits")


def sums() -> None:
    group = pt.Group.from_env()
    for dtype in EPSILON:
        for seed, count in enumerate(COUNTS):
            with pt.zeros((count,), dtype=dtype, group=group) as x:
                for round_ in range(3):
                    check_sum(x, 10 * seed + round_, f"{count} of {dtype}")
        with pt.zeros((3000,), dtype=dtype, group=group) as x:
            for start, stop in ((1, 4), (1, 1), (7, 8), (3, 1004), (0, 3000), (2999, 3000)):
                array(x)[:] = 1
                before = array(x).copy()
                check_sum(x[start:stop], start, f"[{start}:{stop}] of {dtype}")
                for outside in (slice(0, start), slice(stop, None)):
                    assert (array(x)[outside] == before[outside]).all(), "written outside the slice"
                group.barrier()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_the_sum_is_right_and_bitwise_equal_on_all_ranks(ranks, n):
    ranks(n, sums, timeout=120)


def special_values(rank: int) -> None:
    group = pt.Group.from_env()
    with pt.zeros((6,), dtype="float32", group=group) as x:
        mine = (
            [numpy.inf, numpy.inf, 1.0, -0.0, 3.0e38, 1e-45],
            [1.0, -numpy.inf, numpy.nan, -0.0, 3.0e38, 1e-45],
        )
        array(x)[:] = mine[rank]
        pt.all_reduce_(x)
        result = array(x)
        assert result[0] == numpy.inf
        assert numpy.isnan(result[1])
        assert numpy.isnan(result[2])
        assert result[3] == 0
        assert result[4] == numpy.inf
        assert 0 < result[5] < 1e-44


def test_infinities_and_nan_are_what_a_sum_makes_of_them(ranks):
    ranks(2, special_values)


def many_calls() -> None:
    group = pt.Group.from_env()
    x = pt.zeros((1000,), dtype="float32", group=group)
    y = pt.zeros((4,), dtype="bfloat16", group=group)
    array(x)[:] = 1.0
    for round_ in range(200):
        pt.all_reduce_(x)
        same(set(array(x)), {float(group.size)}, f"round {round_}")
        array(x)[:] = 1.0
        pt.barrier(group)
        pt.all_reduce_(y)
    x.close()
    y.close()


def test_many_calls_in_a_row(ranks):
    ranks(3, many_calls)


def mismatches(rank: int) -> None:
    group = pt.Group.from_env()
    odd = rank == 1
    x = pt.zeros((100,), dtype="float32", group=group)
    y = pt.zeros((100,), dtype="bfloat16", group=group)
    array(x)[:] = rank
    calls = {
        "count": lambda: pt.all_reduce_(x[: 50 + odd]),
        "dtype": lambda: pt.all_reduce_(y if odd else x),
        "algorithm": lambda: pt.all_reduce_(x, algorithm="two_shot" if odd else "auto"),
        "call": lambda: pt.barrier(group) if odd else pt.all_reduce_(x),
        "host and device": lambda: group.barrier() if odd else pt.all_reduce_(x),
    }
    for name, call in calls.items():
        error = error_of(call)
        same(type(error), pt.MismatchError, name)
        assert not group.broken
        same(set(array(x)), {float(rank)}, "the memory is as it was")
    pt.all_reduce_(x)
    same(set(array(x)), {0.0 + 1 + 2})


def test_arguments_that_differ_are_a_mismatch_on_all_and_the_next_call_works(ranks):
    ranks(3, mismatches)


def refusals(rank: int) -> None:
    group = pt.Group.from_env()
    x = pt.zeros((100,), dtype="float32", group=group)
    i = pt.zeros((100,), dtype="int32", group=group)
    refused = (pt.ArgumentError, pt.NotSupportedError)
    calls = (
        lambda: pt.all_reduce_(x, op="xor"),
        lambda: pt.all_reduce_(x, op=""),
        lambda: pt.all_reduce_(x, algorithm="best"),
        lambda: pt.all_reduce_(i),
        lambda: pt.all_reduce_(x, op="max"),
    )
    for number, call in enumerate(calls):
        error = error_of(call)  # on all ranks
        assert isinstance(error, refused), f"{number}: {error!r}"
        error = error_of(call if rank == 1 else lambda: pt.all_reduce_(x))
        if rank == 1:
            assert isinstance(error, refused), f"{number}: {error!r}"
        else:
            assert isinstance(error, pt.PeerError | pt.MismatchError), f"{number}: {error!r}"
        assert not group.broken
        pt.all_reduce_(x)
    x.close()
    assert isinstance(error_of(pt.all_reduce_, x), pt.Error)


def test_what_has_no_kernel_is_refused_on_all_and_the_next_call_works(ranks):
    ranks(3, refusals)


def ordered(rank: int) -> None:
    """What a rank wrote before the barrier is there for all after it."""
    group = pt.Group.from_env()
    pt.barrier(group)  # also before there is a tensor
    with pt.zeros((group.size,), dtype="float32", group=group) as x:
        for round_ in range(100):
            for peer in range(group.size):
                array(x, peer)[rank] = 1000 * rank + round_
            pt.barrier(group)
            same(array(x).tolist(), [1000.0 * peer + round_ for peer in range(group.size)])
            pt.barrier(group)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_barrier_orders_what_ranks_write(ranks, n):
    ranks(n, ordered)
