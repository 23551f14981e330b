"""The driver calls behind a shared allocation, made by hand: the limit of what a creation costs."""

from __future__ import annotations

import array
import ctypes
import socket
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from typing import Any

_POSIX_FD = 1
_MPS_ENABLED = 133


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", c_int)]


class RawDriver:
    """A device's driver calls by name, without a layer in between."""

    def __init__(self, library: str, device: int) -> None:
        """Makes the device's primary context the thread's.

        Args:
            library: What to load, "libcuda.so.1" for example.
            device: The ordinal.
        """
        self._library = ctypes.CDLL(library)
        self._functions: dict[str, Any] = {}
        self.call("cuInit", 0)
        self._device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(self._device), device)
        self.call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self.call("cuCtxSetCurrent", context)
        location = _Location(1, device)
        self._properties = _Properties(1, _POSIX_FD, location)
        self._access = _Access(location, 3)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a driver function.

        Raises:
            RuntimeError: It returned something else than success.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._resolve(name)
        if code := function(*arguments):
            raise RuntimeError(f"{name} returned {code}")

    def mps(self) -> bool:
        """Whether contexts on the device share it under MPS."""
        value = c_int()
        try:
            self.call("cuDeviceGetAttribute", byref(value), _MPS_ENABLED, self._device)
        except RuntimeError:
            return False  # the driver does not know the attribute
        return bool(value.value)

    def granularity(self) -> int:
        """What the sizes of allocations must be multiples of."""
        value = c_size_t()
        self.call("cuMemGetAllocationGranularity", byref(value), byref(self._properties), 0)
        return value.value

    def allocate(self, nbytes: int) -> tuple[c_ulonglong, int]:
        """New memory, and a descriptor that shares it."""
        handle, descriptor = c_ulonglong(), c_int()
        size = c_size_t(nbytes)
        self.call("cuMemCreate", byref(handle), size, byref(self._properties), c_ulonglong(0))
        self.call(
            "cuMemExportToShareableHandle", byref(descriptor), handle, _POSIX_FD, c_ulonglong(0)
        )
        return handle, descriptor.value

    def take_in(self, descriptor: int) -> c_ulonglong:
        """The memory behind a descriptor."""
        handle, value = c_ulonglong(), c_void_p(descriptor)
        self.call("cuMemImportFromShareableHandle", byref(handle), value, _POSIX_FD)
        return handle

    def map(self, handle: c_ulonglong, nbytes: int) -> int:
        """Gives memory an address."""
        address, size, zero = c_ulonglong(), c_size_t(nbytes), c_ulonglong(0)
        self.call("cuMemAddressReserve", byref(address), size, c_size_t(0), zero, zero)
        self.call("cuMemMap", address, size, c_size_t(0), handle, zero)
        self.call("cuMemSetAccess", address, size, byref(self._access), c_size_t(1))
        return address.value

    def unmap(self, address: int, handle: c_ulonglong, nbytes: int) -> None:
        """Undoes `map` and the creation or import."""
        where, size = c_ulonglong(address), c_size_t(nbytes)
        self.call("cuMemUnmap", where, size)
        self.call("cuMemAddressFree", where, size)
        self.call("cuMemRelease", handle)

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Sets bytes, and waits until it is done."""
        self.call("cuMemsetD8_v2", c_ulonglong(address), c_ubyte(value), c_size_t(nbytes))
        self.call("cuCtxSynchronize")

    def read(self, address: int, nbytes: int) -> bytes:
        """Copies bytes to the host."""
        target = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", target, c_ulonglong(address), c_size_t(nbytes))
        return target.raw

    def _resolve(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.restype = c_uint
        return function


class RawExchange:
    """Descriptors from every rank to every rank, in one datagram each."""

    def __init__(self, job: str, rank: int, size: int) -> None:
        """Opens this rank's socket; the others can send to it from then on."""
        self._rank, self._size = rank, size
        self._address = [f"\0{job}-raw-{other}" for other in range(size)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind(self._address[rank])
        self._socket.settimeout(60)

    def all_to_all(self, descriptor: int) -> dict[int, int]:
        """Sends a descriptor to all peers; returns theirs, by rank. All ranks call it."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        for peer in range(self._size):
            if peer != self._rank:
                # socket.send_fds does not pass its address on.
                self._socket.sendmsg([bytes([self._rank])], rights, 0, self._address[peer])
        received = {}
        while len(received) < self._size - 1:
            payload, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
            received[payload[0]] = descriptors[0]
        return received
