import builtins
import pickle

import parallel_tensor as pt
import pytest
from parallel_tensor import errors

EXAMPLES = [
    pt.Error("m"),
    pt.ArgumentError("m"),
    pt.NotSupportedError("m"),
    pt.DriverError("m", "cuMemMap", 1, "CUDA_ERROR_INVALID_VALUE"),
    pt.OutOfMemoryError("m", "cuMemCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
    pt.ExchangeError("m", "join"),
    pt.PeerError("m", 3, 4711, "create"),
    pt.TimeoutError("m", "barrier", [1, 2]),
    pt.MismatchError("m", "create"),
]


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (pt.Error, RuntimeError),
        (pt.ArgumentError, ValueError),
        (pt.OutOfMemoryError, MemoryError),
        (pt.OutOfMemoryError, pt.DriverError),
        (pt.PeerError, pt.ExchangeError),
        (pt.TimeoutError, pt.ExchangeError),
        (pt.TimeoutError, builtins.TimeoutError),
        (pt.MismatchError, pt.ExchangeError),
    ],
)
def test_an_error_is_also_what_a_caller_would_catch(kind, base):
    assert issubclass(kind, base)


def test_every_error_of_the_package_is_an_error():
    assert {type(example).__name__ for example in EXAMPLES} == set(errors.__all__)
    assert all(isinstance(example, pt.Error) for example in EXAMPLES)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_type_text_and_fields_through_pickle(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) == "m"
    assert vars(copy) == vars(error)


def test_fields_say_what_the_text_says():
    driver, peer, late = EXAMPLES[3], EXAMPLES[6], EXAMPLES[7]
    assert (driver.call, driver.code, driver.name) == ("cuMemMap", 1, "CUDA_ERROR_INVALID_VALUE")
    assert (peer.rank, peer.pid, peer.phase) == (3, 4711, "create")
    assert (late.phase, late.missing) == ("barrier", (1, 2))
