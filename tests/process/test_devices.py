"""A GPU is known by its identity, whatever ordinal a rank sees it under."""

import parallel_tensor as pt
from support import PlainMemory, error_of, memory, same


def see(rank: int, device: int | None = None) -> tuple[int, str]:
    """Every rank sees every rank's bytes; returns the ordinal and the UUID of the device."""
    group = pt.Group.from_env()
    with pt.zeros((100,), dtype="uint8", group=group, device=device) as x:
        memory(x.pointers[rank], 100)[:] = bytes([rank + 1]) * 100
        group.barrier()
        for peer, pointer in enumerate(x.pointers):
            same(bytes(memory(pointer, 100)), bytes([peer + 1]) * 100)
        group.barrier()
        pt.all_reduce_(pt.zeros((10,), dtype="float32", group=group))
        return x.cuda_device, pt.info()["devices"][x.cuda_device]["uuid"]


def test_each_rank_sees_only_its_own_device(ranks):
    answers = ranks(3, see, env=lambda rank: {"CUDA_VISIBLE_DEVICES": str(2 * rank + 1)})
    assert [ordinal for ordinal, _ in answers] == [0, 0, 0]
    assert len({uuid for _, uuid in answers}) == 3


def test_ranks_see_the_devices_in_another_order(ranks):
    orders = ("0,1,2", "2,0,1", "1,2,0")
    answers = ranks(3, see, 0, env=lambda rank: {"CUDA_VISIBLE_DEVICES": orders[rank]})
    assert [ordinal for ordinal, _ in answers] == [0, 0, 0]
    assert len({uuid for _, uuid in answers}) == 3


def test_a_rank_uses_the_device_of_its_rank_where_nothing_else_is_said(ranks):
    assert [ordinal for ordinal, _ in ranks(3, see)] == [0, 1, 2]
    few = {"PARALLEL_TENSOR_EMULATED_DEVICES": "2"}
    assert [ordinal for ordinal, _ in ranks(3, see, env=few)] == [0, 1, 0]


def test_several_ranks_share_one_device(ranks):
    answers = ranks(4, see, env={"CUDA_VISIBLE_DEVICES": "5"})
    assert len(set(answers)) == 1


def reversed_device(rank: int) -> tuple[int, str]:
    return see(rank, 7 - rank)


def test_a_rank_may_name_its_device(ranks):
    assert [ordinal for ordinal, _ in ranks(2, reversed_device)] == [7, 6]


def another_device_later(rank: int) -> None:
    group = pt.Group.from_env()
    x = pt.empty((4,), dtype="int8", group=group, device=rank)
    error = error_of(pt.empty, (4,), dtype="int8", group=group, device=rank + 4)
    same(type(error), pt.ArgumentError)
    y = pt.empty((4,), dtype="int8", group=group)
    same((x.cuda_device, y.cuda_device), (rank, rank))
    elsewhere = PlainMemory(4096, device=rank + 4)
    same(type(error_of(pt.share, elsewhere, group=group)), pt.ArgumentError)
    pt.share(PlainMemory(4096, device=rank), group=group).close()


def test_a_group_stays_on_its_device(ranks):
    ranks(2, another_device_later)


def no_device() -> BaseException | None:
    return error_of(pt.empty, (4,), dtype="int8")


def test_without_a_visible_device_the_error_says_so(ranks):
    for error in ranks(2, no_device, env={"CUDA_VISIBLE_DEVICES": ""}):
        assert isinstance(error, pt.NotSupportedError)
