"""What a ParallelTensor is, on a group of one rank in this process."""

import gc

import numpy
import parallel_tensor as pt
import pytest
import torch

pytestmark = pytest.mark.usefixtures("group")


@pytest.fixture(scope="module")
def group():
    pt.use_driver("emulated")
    group = pt.Group(rank=0, size=1, name="test-tensor")
    pt.empty((1,), dtype="int8", group=group).close()
    yield group
    group.close()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), ()),
        (5, (5,)),
        ([2, 3], (2, 3)),
        (torch.Size((2, 3)), (2, 3)),
        (numpy.array([2, 3]), (2, 3)),
        ((0,), (0,)),
        ((3, 0, 2), (3, 0, 2)),
        ((1,) * 12, (1,) * 12),
    ],
)
def test_any_shape(group, shape, expected):
    with pt.zeros(shape, dtype=torch.float32, group=group) as x:
        assert x.shape == expected
        assert x.local.shape == torch.Size(expected)
        assert x.nbytes == 4 * x.local.numel()
        assert x.local.eq(0).all()
        if x.nbytes == 0:
            assert x.pointers == (0,)


@pytest.mark.parametrize("shape", [(-1,), (3, -2), -1, "ab", (1.5,), None, (None,), ("3",)])
def test_what_is_no_shape_is_an_argument_error(group, shape):
    with pytest.raises(pt.ArgumentError, match="shape"):
        pt.empty(shape, dtype=torch.float32, group=group)
    pt.empty((1,), dtype=torch.float32, group=group).close()


@pytest.mark.parametrize("shape", [(1 << 63,), (1 << 32, 1 << 31), (1 << 62, 4), (1 << 100,)])
def test_a_shape_that_overflows_is_an_argument_error(group, shape):
    with pytest.raises(pt.ArgumentError, match="bytes"):
        pt.empty(shape, dtype=torch.int8, group=group)


def test_more_than_the_device_has_is_out_of_memory(group):
    with pytest.raises(pt.OutOfMemoryError) as caught:
        pt.empty((1 << 50,), dtype=torch.int8, group=group)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.code == 2


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "meta", 2.5, True])
def test_what_is_no_device_is_an_argument_error(group, device):
    with pytest.raises(pt.ArgumentError, match="device"):
        pt.empty((1,), dtype=torch.int8, group=group, device=device)


@pytest.mark.parametrize("multicast", [2, "yes", None, 0.0])
def test_what_is_no_multicast_policy_is_an_argument_error(group, multicast):
    with pytest.raises(pt.ArgumentError, match="multicast"):
        pt.empty((1,), dtype=torch.int8, group=group, multicast=multicast)


def test_what_is_no_group_is_a_type_error():
    with pytest.raises(TypeError, match="Group"):
        pt.empty((1,), dtype=torch.int8, group="world")


def test_every_attribute(group):
    x = pt.full((2, 3), 7, dtype=torch.int32, group=group)
    assert (x.rank, x.size, x.group) == (0, 1, group)
    assert (x.dtype, x.nbytes, len(x)) == (torch.int32, 24, 2)
    assert x.device == torch.device("cpu")
    assert x.cuda_device == 0
    assert x.flavor == "fd"
    assert x.multicast_pointer == 0
    assert x.multicast_reason
    assert x.pointer_table.tolist() == list(x.pointers) == [x.local.data_ptr()]
    assert x.pointer_table.dtype == torch.int64
    assert {"allocate", "exchange", "map"} <= set(x.timings)
    assert all(us >= 0 for us in x.timings.values())
    assert x.local.tolist() == [[7] * 3] * 2
    assert x.local is x.peer(0) is x.peers[0]
    assert "shape=(2, 3)" in repr(x)
    assert not x.closed
    x.close()


@pytest.mark.parametrize("rank", [1, -1, 99, 1 << 40])
def test_a_rank_outside_the_group_is_an_argument_error(group, rank):
    with (
        pt.empty((1,), dtype=torch.int8, group=group) as x,
        pytest.raises((pt.ArgumentError, OverflowError)),
    ):
        x.peer(rank)


def test_a_rank_is_an_integer(group):
    with pt.empty((1,), dtype=torch.int8, group=group) as x:
        assert x.peer(numpy.int64(0)) is x.local
        with pytest.raises(TypeError):
            x.peer("0")


def test_a_slice_is_a_tensor_over_the_same_memory(group):
    with pt.zeros((6, 2), dtype=torch.int16, group=group) as x:
        part = x[2:4]
        assert (part.shape, part.nbytes) == ((2, 2), 8)
        assert part.pointers == (x.pointers[0] + 8,)
        part.local.fill_(5)
        part[1:].local.fill_(6)
        assert x.local.tolist() == [[0, 0], [0, 0], [5, 5], [6, 6], [0, 0], [0, 0]]
        assert x[-1:].pointers == (x.pointers[0] + 20,)
        assert x[:].shape == (6, 2)
        assert x[4:2].shape == (0, 2)
        assert x[4:2].local.shape == (0, 2)
        assert x[9:].shape == (0, 2)
        assert len(part) == 2


def test_what_is_no_slice_of_the_first_dimension_is_refused(group):
    with pt.zeros((6, 2), dtype=torch.int16, group=group) as x:
        for key in (1, (0, 1), None, ..., (slice(1), slice(1))):
            with pytest.raises(TypeError):
                x[key]
        with pytest.raises(pt.ArgumentError, match="step"):
            x[::2]
    with pt.zeros((), dtype=torch.int16, group=group) as x:
        with pytest.raises(TypeError):
            x[:1]
        with pytest.raises(TypeError):
            len(x)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bool", True),
        ("int8", -3),
        ("uint64", 1 << 40),
        ("float16", 0.5),
        ("bfloat16", -1.5),
        ("float64", 1e300),
        ("complex64", 1 - 2j),
        ("float8_e4m3fn", 1.5),
        ("float32", float("inf")),
        ("float32", -0.0),
    ],
)
def test_full_fills_with_the_value_in_that_type(group, dtype, value):
    wanted = torch.full((1000,), value, dtype=getattr(torch, dtype))
    with pt.full((1000,), value, dtype=dtype, group=group) as x:
        assert torch.equal(x.local.view(torch.uint8), wanted.view(torch.uint8))


def test_closed_means_no_access_and_no_second_close(group):
    x = pt.full((4,), 3, dtype=torch.int32, group=group)
    kept = x.local
    x.close()
    x.close()
    assert x.closed
    for access in ("local", "peers", "pointers", "pointer_table"):
        with pytest.raises(pt.Error, match="closed"):
            getattr(x, access)
    with pytest.raises(pt.Error, match="closed"):
        x.peer(0)
    assert kept.tolist() == [3] * 4
    assert "closed" in repr(x)


@pytest.mark.usefixtures("no_leaks")
def test_a_tensor_taken_from_it_outlives_it(group):
    x = pt.full((4,), 3, dtype=torch.int32, group=group)
    kept = x.local[1:]
    del x
    gc.collect()
    pt.reclaim()
    assert kept.tolist() == [3] * 3


def test_a_with_left_by_an_exception_breaks_its_group():
    group = pt.Group(rank=0, size=1, name="test-tensor-with")

    def fail():
        with pt.empty((4,), dtype=torch.int32, group=group):
            raise KeyError("k")

    with pytest.raises(KeyError):
        fail()
    assert group.broken
    with pytest.raises(pt.Error, match="KeyError"):
        pt.empty((4,), dtype=torch.int32, group=group)
    group.close()
