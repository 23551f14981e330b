"""Where the C++ part of the installed package lies."""

from __future__ import annotations

from pathlib import Path

__all__ = ["get_cmake_dir", "get_include"]

_PACKAGE = Path(__file__).parent


def get_include() -> str:
    """The folder to add to a compiler's include path."""
    return str(_PACKAGE / "include")


def get_cmake_dir() -> str:
    """The folder for CMake's `ParallelTensor_DIR`."""
    return str(_PACKAGE / "lib" / "cmake" / "ParallelTensor")
