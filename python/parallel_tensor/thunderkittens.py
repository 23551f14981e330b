"""TKParallelTensor: ThunderKittens' class, on top of ParallelTensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import ArgumentError
from .group import Group
from .tensor import ParallelTensor, empty, share

if TYPE_CHECKING:
    import torch

__all__ = ["TKParallelTensor"]


class TKParallelTensor:
    """A tensor on every rank with the constructors and attributes of ThunderKittens' class.

    Making one is collective. Dropping one is local: unlike ThunderKittens' it waits for nobody.

    Attributes:
        shape_: The shape of every rank's tensor.
        dtype_: Its type.
        raw_ptrs_: One device address per rank.
        allocated_size_: Bytes of one rank's memory.
        local_rank_: This rank.
        local_world_size_: How many ranks there are.
        multicast_: Whether there is a multicast address.
        multicast_ptr_: That address; 0 when there is none.
        multicast_allocated_size_: Bytes behind it; 0 when there is none.
    """

    def __init__(
        self,
        tensor_or_shape: torch.Tensor | Sequence[int],
        dtype: Any = None,
        local_rank: int = -1,
        local_world_size: int = -1,
        multicast: bool = False,
        *,
        group: Group | None = None,
    ) -> None:
        """Makes a tensor of a shape and dtype, or shares an existing tensor.

        Args:
            tensor_or_shape: A shape (then dtype is needed), or a contiguous device tensor.
            dtype: The type of a new tensor.
            local_rank: This rank.
            local_world_size: How many ranks there are.
            multicast: Whether all ranks must get a multicast address.
            group: The group; without one, the cached group of the job and these two numbers.

        Raises:
            As `empty` and `share`.
        """
        if group is None:
            group = _cached_group(local_rank, local_world_size)
        if hasattr(tensor_or_shape, "data_ptr"):
            self._tensor: ParallelTensor = share(tensor_or_shape, group=group, multicast=multicast)
        else:
            self._tensor = empty(tensor_or_shape, dtype=dtype, group=group, multicast=multicast)
        self.shape_ = self._tensor.shape
        self.dtype_ = self._tensor.dtype
        self.raw_ptrs_ = list(self._tensor.pointers)
        self.allocated_size_ = self._tensor.nbytes
        self.local_rank_ = self._tensor.rank
        self.local_world_size_ = self._tensor.size
        self.multicast_ = bool(self._tensor.multicast_pointer)
        self.multicast_ptr_ = self._tensor.multicast_pointer
        self.multicast_allocated_size_ = self.allocated_size_ if self.multicast_ else 0

    def data(self) -> torch.Tensor:
        """This rank's tensor."""
        return self._tensor.local

    @property
    def data_(self) -> torch.Tensor:
        """This rank's tensor."""
        return self._tensor.local


def _cached_group(local_rank: int, local_world_size: int) -> Group:
    if not 0 <= local_rank < local_world_size:
        raise ArgumentError(
            f"local_rank is {local_rank} and local_world_size {local_world_size}; "
            "pass both, or group="
        )
    return Group._cached(local_rank, local_world_size)
