"""Every rank's tensor addressable by every other rank of a host.

    group = parallel_tensor.Group.from_env()
    x = parallel_tensor.empty((4096, 4096), dtype=torch.bfloat16, group=group)
    x.peer(1)                       # rank 1's memory, as a tensor
    parallel_tensor.all_reduce_(x)

Importing this package loads no driver and does not import torch.
"""

from ._core import __version__, driver_name, use_driver
from .collectives import all_reduce_, barrier
from .errors import (
    ArgumentError,
    DriverError,
    Error,
    ExchangeError,
    MismatchError,
    NotSupportedError,
    OutOfMemoryError,
    PeerError,
    TimeoutError,
)
from .group import Group
from .info import info
from .paths import get_cmake_dir, get_include
from .reclaim import reclaim
from .tensor import ParallelTensor, empty, full, share, zeros
from .thunderkittens import TKParallelTensor

__all__ = [
    "ArgumentError",
    "DriverError",
    "Error",
    "ExchangeError",
    "Group",
    "MismatchError",
    "NotSupportedError",
    "OutOfMemoryError",
    "ParallelTensor",
    "PeerError",
    "TKParallelTensor",
    "TimeoutError",
    "__version__",
    "all_reduce_",
    "barrier",
    "driver_name",
    "empty",
    "full",
    "get_cmake_dir",
    "get_include",
    "info",
    "reclaim",
    "share",
    "use_driver",
    "zeros",
]
