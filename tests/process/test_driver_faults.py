"""Every driver call of a creation fails once on each rank: nobody hangs, nothing is left."""

import json
from typing import Any

import parallel_tensor as pt
import pytest
from parallel_tensor import emulator
from parallel_tensor.testing import counts
from support import PlainMemory, job, same

SIZE = 3
CODE = 999  # CUDA_ERROR_UNKNOWN

# What one of these does not release stays.
RELEASING = {
    "cuEventDestroy",
    "cuIpcCloseMemHandle",
    "cuMemAddressFree",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemRelease",
    "cuMemUnmap",
    "cuStreamDestroy",
}

# Of these at least the failure must reach the caller.
ESSENTIAL = {
    "create": {
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemSetAccess",
    },
    "share": {"cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuPointerGetAttribute"},
}


def operate(operation: str, group: pt.Group, memory: PlainMemory) -> pt.ParallelTensor:
    if operation == "share":
        return pt.share(memory, group=group)
    return pt.zeros((1000,), dtype="float32", group=group)


def answers(group: pt.Group, mine: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload, _ in group.all_gather(json.dumps(mine).encode())]


def attempt(operation: str, group: pt.Group, memory: PlainMemory) -> dict[str, Any]:
    """What the operation raises, in a form that can be sent; what it makes is closed again."""
    try:
        x = operate(operation, group, memory)
    except pt.Error as error:
        fields = {name: getattr(error, name, None) for name in ("call", "code", "rank")}
        return {"kind": type(error).__name__, "text": str(error), **fields}
    emulator.clear()
    x.close()
    return {"kind": ""}


def sweep(operation: str, first: bool) -> list[tuple[int, str, int, bool]]:
    """Fails each driver call of the operation on each rank in turn.

    With `first` it is the first of a new group each time, which brings the workspace along.
    Returns (rank, call, which, whether it made the operation fail) of every case.
    """
    base = pt.Group.from_env()
    memory = PlainMemory(1 << 20, device=base.rank)
    names = (f"{job()}-{number}" for number in range(1 << 30))

    def new_group() -> pt.Group:
        return pt.Group(rank=base.rank, size=base.size, name=next(names)) if first else base

    operate(operation, base, memory).close()  # what is made once is there
    group = new_group()
    counts()
    emulator.reset_calls()
    x = operate(operation, group, memory)
    calls = answers(base, emulator.calls())
    x.close()
    if first:
        group.close()
    del x, group

    cases = []
    for odd, made in enumerate(calls):
        for call, nth in ((c, i + 1) for c, count in sorted(made.items()) for i in range(count)):
            where = f"{call} number {nth} on rank {odd}"
            before = counts()
            group = new_group()
            if group.rank == odd:
                emulator.fail(call, code=CODE, nth=nth)
            mine = attempt(operation, group, memory)
            emulator.clear()
            same(group.broken, False, where)
            cases.append((odd, call, nth, judge(answers(base, mine), odd, call, where)))
            same(attempt(operation, group, memory), {"kind": ""}, where)
            if first:
                group.close()
            del group
            if call not in RELEASING:
                same(counts(), before, where)
    return cases


def judge(outcome: list[dict[str, Any]], odd: int, call: str, where: str) -> bool:
    """All succeeded, or the rank with the fault raised it and the others an error that names it."""
    if not any(answer["kind"] for answer in outcome):
        return False
    for rank, answer in enumerate(outcome):
        if rank == odd:
            same(
                (answer["kind"], answer["call"], answer["code"]), ("DriverError", call, CODE), where
            )
        else:
            same((answer["kind"], answer["rank"]), ("PeerError", odd), f"{where}: {answer}")
            assert call in answer["text"], f"{where}: {answer}"
    return True


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("operation", ["create", "share"])
def test_every_driver_call_of_an_operation_may_fail_on_each_rank(ranks, operation, first):
    cases = ranks(SIZE, sweep, operation, first, timeout=120)[0]
    for rank in range(SIZE):
        assert {c for r, c, _, failed in cases if r == rank and failed} >= ESSENTIAL[operation]
