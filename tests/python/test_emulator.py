"""The controls of the emulated driver, in this process."""

import parallel_tensor as pt
import pytest
import torch
from parallel_tensor import emulator
from support import error_of, memory


@pytest.fixture(autouse=True)
def on_the_emulated_driver(emulated_gpus):
    emulated_gpus()
    assert pt.driver_name() == "emulated"
    yield
    emulator.clear()


@pytest.fixture(scope="module")
def group():
    pt.use_driver("emulated")
    group = pt.Group(rank=0, size=1, name="test-emulator")
    pt.empty((1,), dtype="int8", group=group).close()
    yield group
    group.close()


@pytest.mark.parametrize(
    "control",
    [
        lambda: emulator.fail("cuMemFly", 2),
        lambda: emulator.fail("cuMemMap", 2, nth=0),
        lambda: emulator.fail("cuMemMap", 2, nth=-2),
        lambda: emulator.fail("cuMemMap", 2, nth="all"),
        lambda: emulator.set_attribute(0, "NO_SUCH_ATTRIBUTE", 1),
        lambda: emulator.set_attribute(99, "MULTICAST_SUPPORTED", 1),
        lambda: emulator.set_granularity(minimum=3),
        lambda: emulator.set_peer_access(0, 99, False),
        lambda: emulator.set_memory(99, 1 << 20),
    ],
)
def test_an_unknown_name_or_value_is_a_value_error(control):
    with pytest.raises(ValueError):  # noqa: PT011
        control()


def test_the_nth_next_call_fails_and_only_it(group):
    emulator.fail("cuMemCreate", code=2, nth=2)
    pt.empty((1,), dtype="int8", group=group).close()
    with pytest.raises(pt.OutOfMemoryError) as caught:
        pt.empty((1,), dtype="int8", group=group)
    assert caught.value.call == "cuMemCreate"
    assert caught.value.code == 2
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    pt.empty((1,), dtype="int8", group=group).close()


def test_a_star_fails_every_call_until_clear(group):
    emulator.fail("cuMemMap", code=999, nth="*")
    for _ in range(3):
        error = error_of(pt.empty, (1,), dtype="int8", group=group)
        assert isinstance(error, pt.DriverError)
        assert (error.call, error.code) == ("cuMemMap", 999)
    emulator.clear()
    pt.empty((1,), dtype="int8", group=group).close()


def test_a_fault_of_another_rank_is_not_mine(group):
    emulator.fail("cuMemCreate", code=2, nth="*", rank=1)
    pt.empty((1,), dtype="int8", group=group).close()


def test_failing_ends_with_its_block(group, failing):
    with failing("cuMemCreate", nth="*"), pytest.raises(pt.OutOfMemoryError):
        pt.empty((1,), dtype="int8", group=group)
    pt.empty((1,), dtype="int8", group=group).close()


def test_calls_are_counted(group):
    emulator.reset_calls()
    assert "cuMemCreate" not in {name for name, count in emulator.calls().items() if count}
    pt.empty((1,), dtype="int8", group=group).close()
    assert emulator.calls()["cuMemCreate"] == 1


def test_live_counts_what_a_tensor_holds(group):
    pt.reclaim()
    before = emulator.live()
    x = pt.empty((1,), dtype="int8", group=group)
    during = emulator.live()
    assert during["allocations"] == before["allocations"] + 1
    assert during["mappings"] == before["mappings"] + 1
    assert during["reservations"] == before["reservations"] + 1
    x.close()
    assert emulator.live() == before


def test_a_device_without_room_is_out_of_memory(group):
    emulator.set_memory(0, 64 << 20)
    try:
        with pytest.raises(pt.OutOfMemoryError):
            pt.empty((128 << 20,), dtype="int8", group=group)
        pt.empty((8 << 20,), dtype="int8", group=group).close()
    finally:
        emulator.set_memory(0, 16 << 30)


def test_an_attribute_holds_until_it_is_set_again():
    name = "MULTIPROCESSOR_COUNT"
    before = pt.info()["devices"][1]["multiprocessors"]
    emulator.set_attribute(1, name, 7)
    assert pt.info()["devices"][1]["multiprocessors"] == 7
    emulator.set_attribute(1, name, before)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("shape", [(), (0,), 5, (3, 4)])
def test_plain_device_memory_is_a_tensor_over_the_devices_bytes(shape):
    x = emulator.empty(shape, torch.bfloat16)
    assert x.shape == torch.Size((shape,) if isinstance(shape, int) else shape)
    assert x.dtype == torch.bfloat16
    x.fill_(1.5)
    if x.numel():
        assert bytes(memory(x.data_ptr(), 2)) == b"\xc0\x3f"
