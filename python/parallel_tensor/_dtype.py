"""Element types by name, as torch and numpy spell them."""

from __future__ import annotations

import sys
from typing import Any

from . import _core


def name_of(dtype: Any) -> str:
    """The name of a type given as a torch dtype, a numpy dtype or a name.

    Raises:
        ArgumentError: It is none of the types that a tensor can have.
    """
    if isinstance(dtype, type):  # numpy.float32, and Python's float, bool, int
        dtype = getattr(dtype, "__name__", dtype)
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    _core.dtype_size(name)
    return name


def size_of(name: str) -> int:
    """Bytes of one element of the type with this name."""
    return int(_core.dtype_size(name))


def public(name: str) -> Any:
    """The torch dtype of this name; the name itself where torch is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return name
    return getattr(torch, name)


def loaded_torch() -> Any:
    """The torch module if the program has imported it, else None."""
    return sys.modules.get("torch")
