"""The handle: 64 bytes, by value. Must never claim that a handle is good: only the broker can tell."""

import ctypes
from typing import Any, Tuple, Union

from . import _abi
from ._errors import check


class Handle(bytes):
    """64 bytes that name an allocation of this node, and a place in it.

    Plain ``bytes``: send them through MPI, a pipe, a file, pickle. The properties are hints of the owner, for printing; two
    handles of one allocation may differ in them, so compare with :meth:`same`.

    Errors: :class:`~fdbroker.BadHandle` when these bytes are no handle.
    """

    __slots__ = ()

    def __new__(cls, value: Union[bytes, bytearray, memoryview]) -> "Handle":
        self = super().__new__(cls, value)
        self._info()
        return self

    def _info(self) -> _abi.HandleInfo:
        info = _abi.HandleInfo(struct_size=ctypes.sizeof(_abi.HandleInfo))
        check(_abi.lib.fdbroker_handle_parse(ctypes.byref(to_c(self)), ctypes.byref(info)))
        return info

    def same(self, other: bytes) -> bool:
        """Whether both name the same allocation, whatever their offsets."""
        return bool(_abi.lib.fdbroker_handle_same(ctypes.byref(to_c(self)), ctypes.byref(to_c(other))))

    @property
    def size(self) -> int:
        """Bytes of the allocation."""
        return int(self._info().size_bytes)

    @property
    def offset(self) -> int:
        """Where in the allocation the memory begins, in bytes."""
        return int(self._info().offset_bytes)

    @property
    def kind(self) -> str:
        """``memfd``, ``dma-buf`` or ``cuda-vmm``."""
        kind = self._info().kind
        return _abi.KIND_NAMES.get(kind, str(kind))

    @property
    def device(self) -> int:
        """The owner's own number of the device: a hint that nothing uses, since each process counts its devices anew."""
        return int(self._info().device)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Handle, (bytes(self),)

    def __repr__(self) -> str:
        info = self._info()
        return f"<fdbroker.Handle {info.slot}.{info.generation} {self.kind} {info.size_bytes:,} bytes at {info.offset_bytes}>"


def to_c(handle: Union[bytes, bytearray, memoryview]) -> _abi.Handle:
    """For a call. ValueError for another length."""
    if len(handle) != _abi.HANDLE_BYTES:
        from ._errors import BadHandle

        raise BadHandle(f"a handle has {_abi.HANDLE_BYTES} bytes, these are {len(handle)}")
    return _abi.Handle.from_buffer_copy(handle)


def from_c(handle: _abi.Handle) -> Handle:
    """From a call's result."""
    return Handle(bytes(handle.bytes))
