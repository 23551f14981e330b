"""ParallelTensor: a tensor on every rank, all of them addressable from every rank."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core, _dtype
from .errors import ArgumentError
from .group import Group, resolve, taking_part

if TYPE_CHECKING:
    import torch

__all__ = ["ParallelTensor", "empty", "full", "share", "zeros"]

_POLICIES = {
    False: _core.MulticastPolicy.off,
    True: _core.MulticastPolicy.required,
    "auto": _core.MulticastPolicy.automatic,
}


class ParallelTensor:
    """This rank's tensor and every peer's, mapped here.

    Made by `empty`, `zeros`, `full` and `share`. Tensors that were taken from it (`local`, `peer`)
    keep their memory when it is closed or dropped. Dropping it is local and waits for nobody.

    Attributes:
        shape: The shape of every rank's tensor.
        group: The group that it belongs to.
    """

    def __init__(
        self, buffer: _core.ParallelBuffer, shape: tuple[int, ...], dtype: str, offset: int = 0
    ) -> None:
        """For this package; users call `empty`, `zeros`, `full` or `share`."""
        self._buffer = buffer
        self._dtype = dtype
        self._offset = offset
        self._count = math.prod(shape)
        self._tensors: dict[int, torch.Tensor] = {}
        self._table: torch.Tensor | None = None
        self.shape = shape
        self.group: Group = buffer.group

    @property
    def local(self) -> torch.Tensor:
        """This rank's tensor: on cuda:N, or on the CPU with the emulated driver."""
        return self.peer(self.rank)

    def peer(self, rank: int) -> torch.Tensor:
        """A rank's tensor, over that rank's memory.

        Raises:
            ArgumentError: The rank is outside the group.
            Error: The tensor is closed.
        """
        rank = operator.index(rank)
        if not 0 <= rank < self.size:
            raise ArgumentError(f"rank {rank} is outside the group of {self.size} ranks")
        pointer = self._pointer(rank)
        if rank not in self._tensors:
            self._tensors[rank] = self._tensor_over(rank, pointer)
        return self._tensors[rank]

    @property
    def peers(self) -> tuple[torch.Tensor, ...]:
        """Every rank's tensor, in rank order."""
        return tuple(self.peer(rank) for rank in range(self.size))

    @property
    def pointers(self) -> tuple[int, ...]:
        """Every rank's device address, in rank order; 0 for a tensor without elements."""
        return tuple(self._pointer(rank) for rank in range(self.size))

    @property
    def pointer_table(self) -> torch.Tensor:
        """The addresses of `pointers` as an int64 tensor in device memory, for kernels."""
        import torch

        pointers = self.pointers
        if self._table is None:
            self._table = torch.tensor(pointers, dtype=torch.int64, device=self.device)
        return self._table

    @property
    def dtype(self) -> Any:
        """The element type: a torch.dtype, or its name where torch is not installed."""
        return _dtype.public(self._dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's tensor."""
        return self._count * _dtype.size_of(self._dtype)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._buffer.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._buffer.size

    @property
    def device(self) -> torch.device:
        """The torch device of `local`: cuda:N, or cpu with the emulated driver."""
        import torch

        if _core.driver_name() == "emulated":
            return torch.device("cpu")
        return torch.device("cuda", self.cuda_device)

    @property
    def cuda_device(self) -> int:
        """The ordinal of this rank's device, of the emulated one too."""
        return self._buffer.device

    @property
    def flavor(self) -> str:
        """How the memory crosses between ranks: "fd" (virtual memory) or "legacy" (cudaMalloc)."""
        return self._buffer.flavor

    @property
    def multicast_pointer(self) -> int:
        """The address that reaches all ranks' memory at once; 0 when there is none."""
        return self._buffer.multicast_pointer

    @property
    def multicast_reason(self) -> str:
        """Why there is no multicast address; empty when there is one."""
        return self._buffer.multicast_reason

    @property
    def timings(self) -> dict[str, float]:
        """Microseconds of each step of the creation on this rank."""
        return self._buffer.timings

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._buffer.closed

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-d tensor has no length")
        return self.shape[0]

    def __getitem__(self, key: slice) -> ParallelTensor:
        """A slice along the first dimension, over the same memory on every rank."""
        if not isinstance(key, slice) or not self.shape:
            raise TypeError("a ParallelTensor takes a slice along its first dimension: x[1:3]")
        start, stop, step = key.indices(self.shape[0])
        if step != 1:
            raise ArgumentError(f"the step of a slice is {step}; only 1 keeps it contiguous")
        rows = max(stop - start, 0)
        row_bytes = math.prod(self.shape[1:]) * _dtype.size_of(self._dtype)
        return ParallelTensor(
            self._buffer, (rows, *self.shape[1:]), self._dtype, self._offset + start * row_bytes
        )

    def close(self) -> None:
        """Gives this rank's part up and waits until all ranks have done so.

        Collective and bounded by the group's timeout; this rank's part is released whatever
        happens. Tensors that were taken earlier stay valid. A second call does nothing.

        Raises:
            PeerError: Another rank died or failed.
            TimeoutError: Not all ranks followed.
        """
        self._drop_tensors()
        self._buffer.close()

    def __enter__(self) -> ParallelTensor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes; after an exception it releases locally, breaks the group and waits for nobody."""
        if error is None:
            self.close()
            return
        self._drop_tensors()
        self._buffer.release()
        self.group._fail(f"rank {self.rank} left a `with` block by {type(error).__name__}: {error}")

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"ParallelTensor(shape={self.shape}, dtype={self._dtype}, rank={self.rank}, "
            f"size={self.size}, cuda_device={self.cuda_device}, flavor={self.flavor!r}{state})"
        )

    def _drop_tensors(self) -> None:
        self._tensors.clear()
        self._table = None

    def _pointer(self, rank: int) -> int:
        pointer = self._buffer.pointer(rank)
        return pointer + self._offset if pointer else 0

    def _tensor_over(self, rank: int, pointer: int) -> torch.Tensor:
        import torch

        if self.nbytes == 0 or not pointer:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        # DLPack does not know every type of torch, bytes it does.
        capsule = self._buffer.dlpack(rank, self._offset, "uint8", [self.nbytes])
        storage = torch.utils.dlpack.from_dlpack(capsule).untyped_storage()
        strides = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        tensor = torch.empty(0, dtype=self.dtype, device=self.device)
        return tensor.set_(storage, 0, self.shape, strides)


def empty(
    shape: int | Sequence[int],
    *,
    dtype: Any,
    group: Group | None = None,
    device: Any = None,
    multicast: bool | str = "auto",
) -> ParallelTensor:
    """A new tensor on every rank; collective.

    Its contents are undefined: zeros where the driver gave new memory, else what was there before.
    Memory that all ranks have dropped is used again, without a call of the driver.

    Args:
        shape: Of every rank's tensor; zero-size and 0-d are fine.
        dtype: A torch dtype, a numpy dtype or a name.
        group: None is Group.from_env().
        device: An int, "cuda:1" or a torch.device; None is torch's current CUDA device if torch
            uses CUDA, else the current context's, else LOCAL_RANK modulo the visible devices.
        multicast: False, True (all ranks get a multicast address or all raise) or "auto".

    Raises:
        ArgumentError, OutOfMemoryError, DriverError: This rank's own failure.
        PeerError: Another rank failed; holds its error.
        MismatchError: The ranks asked for different tensors.
        TimeoutError: Not all ranks came within the group's timeout.
    """
    return _create(shape, dtype, group, device, multicast, None)


def zeros(
    shape: int | Sequence[int],
    *,
    dtype: Any,
    group: Group | None = None,
    device: Any = None,
    multicast: bool | str = "auto",
) -> ParallelTensor:
    """As `empty`, filled with zeros before any peer can see it."""
    return _create(shape, dtype, group, device, multicast, 0)


def full(
    shape: int | Sequence[int],
    fill_value: float | complex | bool,
    *,
    dtype: Any,
    group: Group | None = None,
    device: Any = None,
    multicast: bool | str = "auto",
) -> ParallelTensor:
    """As `empty`, filled with a value before any peer can see it. Needs torch for the value."""
    return _create(shape, dtype, group, device, multicast, fill_value)


def share(
    tensor: torch.Tensor | Iterable[torch.Tensor],
    *,
    group: Group | None = None,
    device: Any = None,
    multicast: bool | str = "auto",
) -> ParallelTensor | tuple[ParallelTensor, ...]:
    """Existing tensors of every rank, made addressable for all; collective, one exchange.

    The memory must come from cudaMalloc (torch's allocator) or be virtual memory that can be
    exported, and a tensor must be contiguous. Views are fine: their offset is kept. Each tensor
    stays alive until this rank has let go of the result and the device has finished with it.

    Args:
        tensor: One tensor, or a list of tensors in the same order on every rank.
        group: None is Group.from_env().
        device: As for `empty`; None is the tensors' device.
        multicast: False or "auto"; memory that exists already has no multicast address.

    Returns:
        One ParallelTensor, or a tuple of them for a list.

    Raises:
        ArgumentError: It is not a contiguous device tensor.
        NotSupportedError: The driver cannot share this kind of memory; names the kind.
        As `empty` otherwise.
    """
    group = resolve(group)
    with taking_part(group, "share"):
        single = hasattr(tensor, "data_ptr")
        tensors = [tensor] if single else list(tensor)
        memories = [(t.data_ptr(), _shareable_bytes(t), t) for t in tensors]
        names = [_dtype.name_of(t.dtype) for t in tensors]
        shapes = [tuple(t.shape) for t in tensors]
        policy = _policy(multicast)
        if policy == _core.MulticastPolicy.required:
            raise ArgumentError("share: memory that exists already has no multicast address")
        ordinal = _ordinal(device if device is not None else _device_of(tensors))
        signature = ", ".join(f"{shape} {name}" for shape, name in zip(shapes, names, strict=True))
    buffers = _core.ParallelBuffer.share(group, memories, policy, ordinal, signature)
    shared = tuple(map(ParallelTensor, buffers, shapes, names))
    return shared[0] if single else shared


def _create(
    shape: int | Sequence[int],
    dtype: Any,
    group: Group | None,
    device: Any,
    multicast: bool | str,
    fill_value: Any,
) -> ParallelTensor:
    group = resolve(group)
    with taking_part(group, "create"):
        name = _dtype.name_of(dtype)
        dimensions = _shape(shape)
        nbytes = math.prod(dimensions) * _dtype.size_of(name)
        if nbytes >= 1 << 63:
            raise ArgumentError(
                f"a tensor of shape {dimensions} and {name} has {nbytes} bytes: too many"
            )
        policy, ordinal = _policy(multicast), _ordinal(device)
        pattern = b"" if fill_value is None or nbytes == 0 else _element(fill_value, name)
    signature = f"{dimensions} {name}" + ("" if fill_value is None else " filled")
    buffer = _core.ParallelBuffer.create(group, nbytes, policy, ordinal, signature, pattern)
    return ParallelTensor(buffer, dimensions, name)


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        dimensions = (shape,) if isinstance(shape, int) else tuple(operator.index(n) for n in shape)
    except TypeError:
        raise ArgumentError(f"shape is {shape!r}; expected an int or a sequence of ints") from None
    if any(n < 0 for n in dimensions):
        raise ArgumentError(f"shape is {dimensions}; a dimension is below zero")
    return dimensions


def _policy(multicast: bool | str) -> _core.MulticastPolicy:
    if isinstance(multicast, bool | str) and multicast in _POLICIES:
        return _POLICIES[multicast]
    raise ArgumentError(f'multicast is {multicast!r}; expected False, True or "auto"')


def _element(value: Any, name: str) -> bytes:
    if isinstance(value, int) and value == 0:  # not -0.0
        return bytes(1)
    import torch

    element = torch.full((1,), value, dtype=_dtype.public(name))
    return bytes(element.view(torch.uint8).tolist())


def _ordinal(device: Any) -> int | None:
    """The ordinal that a device argument names; None leaves the choice to the current context."""
    if device is None:
        torch = _dtype.loaded_torch()
        uses_cuda = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        if uses_cuda and _core.driver_name() != "emulated":
            return int(torch.cuda.current_device())
        return None
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    kind, _, index = str(device).partition(":")
    if kind == "cuda" and (index.isdigit() or not index):
        return int(index) if index else None
    raise ArgumentError(
        f'device is {device!r}; expected an int, "cuda:1" or a torch.device of cuda'
    )


def _device_of(tensors: Sequence[torch.Tensor]) -> int | None:
    ordinals = {t.device.index for t in tensors if t.device.type == "cuda"}
    if len(ordinals) > 1:
        raise ArgumentError(f"share: the tensors are on several devices, {sorted(ordinals)}")
    return ordinals.pop() if ordinals else None


def _shareable_bytes(tensor: torch.Tensor) -> int:
    if _core.driver_name() != "emulated" and tensor.device.type != "cuda":
        raise ArgumentError(
            f"share: the tensor is on {tensor.device}; only device memory can be shared"
        )
    if not tensor.is_contiguous():
        raise ArgumentError(
            f"share: a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not "
            "contiguous; pass tensor.contiguous()"
        )
    return int(tensor.nbytes)
