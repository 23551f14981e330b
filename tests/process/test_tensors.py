"""Created and shared tensors at each size of group; the checks are in tests/checks."""

import checks
import pytest


def created_and_shared() -> list[str]:
    return checks.run("create", "share")


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_created_and_shared_tensors(ranks, n):
    done = ranks(n, created_and_shared, timeout=120)
    assert len(done[0]) > 20
    assert done == [done[0]] * n
