"""Groups: several in one process, overlapping, of threads, of a torch process group."""

import array
import os
import threading

import parallel_tensor as pt
import pytest
from parallel_tensor import emulator
from parallel_tensor.testing import RanksFailed
from support import PlainMemory, error_of, job, memory, same


def group_of(members: list[int], rank: int) -> pt.Group | None:
    if rank not in members:
        return None
    name = f"{job()}-{'-'.join(map(str, members))}"
    return pt.Group(rank=members.index(rank), size=len(members), name=name)


def check(group: pt.Group, mark: int) -> None:
    with pt.zeros((64,), dtype="uint8", group=group) as x:
        memory(x.pointers[group.rank], 64)[:] = bytes([mark + group.rank]) * 64
        group.barrier()
        for peer, pointer in enumerate(x.pointers):
            same(bytes(memory(pointer, 64)), bytes([mark + peer]) * 64)
        group.barrier()


def overlapping(rank: int) -> None:
    everybody = pt.Group.from_env()
    left, right = group_of([0, 1, 2], rank), group_of([3, 1, 2], rank)
    for round_ in range(5):
        for number, group in enumerate((left, everybody, right)):
            if group is not None:
                check(group, 10 * number + round_)
                pt.barrier(group)
    same(pt.Group.from_env() is everybody, True)
    # One broken group harms no other.
    if left is not None:
        if left.rank == 0:
            left.close()
        else:
            assert isinstance(error_of(left.barrier), pt.PeerError)
    check(everybody, 0)
    if right is not None:
        check(right, 0)


def test_overlapping_groups_are_independent(ranks):
    ranks(4, overlapping)


def barrier_of_another_group(rank: int) -> BaseException | None:
    """Rank 0 waits in one group while rank 1 waits in the other."""
    one, two = group_of([0, 1], rank), group_of([1, 0], rank)
    error = error_of(one.barrier, timeout=0.5) if rank == 0 else None
    two.barrier()
    two.barrier()
    return error


def test_a_barrier_of_one_group_is_none_of_another(ranks):
    error, _ = ranks(2, barrier_of_another_group)
    assert isinstance(error, pt.TimeoutError)
    assert error.missing == (1,)


def one_after_the_other(rank: int) -> None:
    """The ranks change places: memory of the last group would be in the wrong order."""
    for turn in range(20):
        place = (rank + turn) % 2
        group = pt.Group(rank=place, size=2, name=f"{job()}-{turn}")
        emulator.reset_calls()
        x = pt.empty((64,), dtype="uint8", group=group)
        same(emulator.calls()["cuMemCreate"], 2, "the tensor's and the workspace's")
        del x
        group.close()


def test_a_group_does_not_use_the_memory_of_the_last_one_again(ranks):
    ranks(2, one_after_the_other)


def duplicates(rank: int) -> None:
    group = pt.Group(rank=rank, size=2, name=job())
    same(type(error_of(pt.Group, rank=rank, size=2, name=job(), timeout=1.0)), pt.Error)
    for bad in (
        {"rank": 2, "size": 2},
        {"rank": -1, "size": 2},
        {"rank": 0, "size": 0},
        {"name": ""},
        {"timeout": 0.0},
        {"timeout": -1.0},
        {"timeout": float("nan")},
    ):
        arguments = {"rank": 0, "size": 1, "name": "other"} | bad
        same(type(error_of(pt.Group, **arguments)), pt.ArgumentError, str(bad))
    check(group, 0)
    group.close()
    group.close()
    assert group.closed
    assert isinstance(error_of(group.barrier), pt.Error)
    assert isinstance(error_of(pt.empty, (1,), dtype="int8", group=group), pt.Error)


def test_what_a_group_refuses(ranks):
    ranks(2, duplicates)


def all_gather(rank: int) -> None:
    group = pt.Group.from_env()
    read, write = os.pipe()
    os.write(write, bytes([rank]) * 3)
    answers = group.all_gather(b"x" * (rank * 100_000), fds=[read])
    same([len(payload) for payload, _ in answers], [100_000 * r for r in range(group.size)])
    os.close(read)  # the one passed in stayed this rank's
    for r, (_, descriptors) in enumerate(answers):
        same(len(descriptors), 1)
        assert not os.get_inheritable(descriptors[0])
        if r == rank:
            same(os.read(descriptors[0], 3), bytes([rank]) * 3)
        os.close(descriptors[0])
    os.close(write)
    # A descriptor that is none is this rank's error and a clean failure of all.
    error = error_of(group.all_gather, b"", fds=[read] if rank == 1 else [])
    same(type(error), pt.ArgumentError if rank == 1 else pt.PeerError)
    same([payload for payload, _ in group.all_gather(b"")], [b""] * group.size)


def test_all_gather_gives_every_rank_every_ranks_bytes_and_descriptors(ranks):
    ranks(3, all_gather)


def many() -> int:
    group = pt.Group.from_env()
    with pt.zeros((16,), dtype="uint8", group=group) as x:
        memory(x.pointers[group.rank], 1)[0] = group.rank
        group.barrier()
        same([memory(pointer, 1)[0] for pointer in x.pointers], list(range(group.size)))
        group.barrier()
    return group.size


def test_72_ranks(ranks):
    assert ranks(72, many, timeout=120) == [72] * 72


def from_process_group(rank: int, store: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    group = pt.Group.from_process_group()
    same((group.rank, group.size), (rank, 3))
    check(group, 0)
    pair = dist.new_group([0, 2])
    if rank != 1:
        small = pt.Group.from_process_group(pair, timeout=20)
        same((small.rank, small.size, small.timeout), (rank // 2, 2, 20.0))
        check(small, 7)
        assert small.name != group.name
    check(pt.Group.from_process_group(), 3)  # another group each time
    dist.barrier()
    os.environ["PARALLEL_TENSOR_BOOT_ID"] = f"host-{rank // 2}"
    error = error_of(pt.Group.from_process_group)
    same(type(error), pt.NotSupportedError)
    assert "hosts" in str(error)
    dist.barrier()
    dist.destroy_process_group()


def test_a_group_from_a_torch_process_group(ranks, tmp_path):
    ranks(3, from_process_group, str(tmp_path / "store"))


def without_a_launcher() -> BaseException | None:
    return error_of(pt.Group.from_env)


def test_without_a_launcher_the_error_names_the_variables(ranks):
    for names in (["LOCAL_RANK", "LOCAL_WORLD_SIZE"], ["PARALLEL_TENSOR_JOB"]):
        (error,) = ranks(1, without_a_launcher, env=dict.fromkeys(names))
        assert isinstance(error, pt.NotSupportedError)
        assert names[0] in str(error)


@pytest.mark.parametrize("name", ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "PARALLEL_TENSOR_TIMEOUT"])
@pytest.mark.parametrize("value", ["one", "-1", "1x"])
def test_a_variable_that_makes_no_sense_is_an_argument_error_that_names_it(ranks, name, value):
    (error,) = ranks(1, without_a_launcher, env={name: value})
    assert isinstance(error, pt.ArgumentError)
    assert name in str(error) or value in str(error)


def warm_up(group: pt.Group) -> None:
    with pt.zeros((4,), dtype="float32", group=group, device=group.rank) as x:
        pt.all_reduce_(x)


@pytest.fixture
def in_this_process(emulated_gpus, thread_ranks):
    """The emulated driver, with what a process makes once."""
    emulated_gpus()
    thread_ranks(4, warm_up)
    yield
    emulator.clear()


def as_threads(group: pt.Group) -> tuple[int, ...]:
    for number in range(10):
        check_here(group, number)
    plain = PlainMemory(4096, device=group.rank)
    memory(plain.data_ptr(), 1)[0] = 50 + group.rank
    x = pt.share(plain, group=group, device=group.rank)
    group.barrier()
    same([memory(pointer, 1)[0] for pointer in x.pointers], [50 + r for r in range(group.size)])
    y = pt.zeros((1000,), dtype="float32", group=group, device=group.rank)
    memory(y.pointers[group.rank], 4000).cast("f")[:] = array.array("f", [group.rank + 1.0]) * 1000
    pt.all_reduce_(y)
    total = float(sum(range(1, group.size + 1)))
    same(set(memory(y.pointers[group.rank], 4000).cast("f")), {total})
    pt.barrier(group)
    x.close()
    y.close()
    return x.group.pid(0), threading.get_ident()


def check_here(group: pt.Group, mark: int) -> None:
    with pt.zeros((64,), dtype="uint8", group=group, device=group.rank) as x:
        memory(x.pointers[group.rank], 64)[:] = bytes([mark + group.rank]) * 64
        group.barrier()
        for peer, pointer in enumerate(x.pointers):
            same(bytes(memory(pointer, 64)), bytes([mark + peer]) * 64)
        group.barrier()


@pytest.mark.parametrize("n", [2, 4])
def test_ranks_may_be_threads_of_one_process(in_this_process, no_leaks, thread_ranks, n):
    answers = thread_ranks(n, as_threads)
    assert {pid for pid, _ in answers} == {os.getpid()}
    assert len({thread for _, thread in answers}) == n


def failing_thread(group: pt.Group) -> None:
    pt.zeros((1,), dtype="int8", group=group, device=group.rank).close()
    emulator.fail("cuMemCreate", code=2, nth=1, rank=1)
    error = error_of(pt.zeros, (1,), dtype="int8", group=group)
    same(type(error), pt.OutOfMemoryError if group.rank == 1 else pt.PeerError)
    pt.zeros((1,), dtype="int8", group=group).close()


def test_a_fault_of_one_thread_is_an_error_on_all(in_this_process, no_leaks, thread_ranks):
    thread_ranks(3, failing_thread)


def raising_thread(group: pt.Group) -> None:
    x = pt.zeros((1,), dtype="int8", group=group, device=group.rank)
    if group.rank == 0:
        raise KeyError("k")
    pt.all_reduce_(x)


def test_a_thread_that_raises_breaks_its_group(in_this_process, no_leaks, thread_ranks):
    with pytest.raises(RanksFailed) as caught:
        thread_ranks(3, raising_thread)
    kinds = [type(outcome.error) for outcome in caught.value.outcomes]
    assert kinds[0] is KeyError
    assert all(issubclass(kind, pt.Error) for kind in kinds[1:])
