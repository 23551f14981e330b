import re

import numpy
import parallel_tensor as pt
import pytest
import torch
from parallel_tensor import _dtype

# Not the quantised ones, nor those of a part of a byte.
PLAIN = re.compile(r"bool|u?int(8|16|32|64)|b?float\d+|float8_\w+|complex\d+")
TORCH_DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and PLAIN.fullmatch(str(d)[6:])},
    key=str,
)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_plain_dtype_of_torch_is_known_with_its_size(dtype):
    name = _dtype.name_of(dtype)
    assert name == str(dtype).removeprefix("torch.")
    assert _dtype.size_of(name) == dtype.itemsize
    assert _dtype.public(name) is dtype


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float32", "float32"),
        ("torch.bfloat16", "bfloat16"),
        (numpy.float32, "float32"),
        (numpy.dtype("complex128"), "complex128"),
        (numpy.uint16, "uint16"),
    ],
)
def test_a_dtype_may_be_numpys_or_a_name(given, name):
    assert _dtype.name_of(given) == name


@pytest.mark.parametrize(
    "given", ["float31", "", "object", None, 3, numpy.dtype("U4"), object(), []]
)
def test_what_is_no_dtype_is_an_argument_error_that_shows_it(given):
    with pytest.raises(pt.ArgumentError, match="dtype"):
        _dtype.name_of(given)
