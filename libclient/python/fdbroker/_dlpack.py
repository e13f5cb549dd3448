"""DLPack by ctypes: memory handed to another library without a copy, host and GPU, numpy or not.

Must never free what the consumer still has: the tensor's deleter does that, once, on any thread.
"""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Optional, Tuple

from ._types import DType, Shape

#: DLDeviceType of dlpack.h.
CPU, CUDA, ONE_API = 1, 2, 14
_READ_ONLY = 1


class _Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class _DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device", _Device), ("ndim", c_int32), ("dtype", _DataType), ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _Managed(Structure):
    """DLManagedTensor, of before DLPack 1.0."""

    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]


class _Version(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32)]


class _Versioned(Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("version", _Version), ("context", c_void_p), ("deleter", _Deleter), ("flags", c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


# What consumers have, by the tensor's address; what is taken out is freed. One step of a dict each, which needs no lock: garbage
# collection can call the deleter in the middle of any step of Python here.
_lent: Dict[int, Tuple[Any, ...]] = {}


def _delete(pointer: int) -> None:
    _lent.pop(pointer, None)


_deleter = _Deleter(_delete)


_api = ctypes.pythonapi
_Destructor = ctypes.CFUNCTYPE(None, c_void_p)
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [c_void_p, c_char_p, _Destructor]
# With plain pointers: a capsule that is being destroyed must not get a new reference.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))
_NAME, _NAME_VERSIONED = b"dltensor", b"dltensor_versioned"


def _destroy(capsule: int) -> None:
    """A capsule that nobody consumed; one that was consumed has another name."""
    if _is_valid(capsule, _NAME):
        _delete(_pointer_of(capsule, _NAME))
    elif _is_valid(capsule, _NAME_VERSIONED):
        _delete(_pointer_of(capsule, _NAME_VERSIONED))


# Called with the GIL held, inside the capsule's deallocation.
_destructor = ctypes.PYFUNCTYPE(None, c_void_p)(_destroy)
_api.PyCapsule_New.argtypes = [c_void_p, c_char_p, type(_destructor)]


def capsule(
    keeper: Any, pointer: int, shape: Shape, dtype: DType, device: Tuple[int, int], is_read_only: bool,
    max_version: Optional[Tuple[int, int]],
) -> Any:  # fmt: skip
    """A capsule for ``__dlpack__``. ``keeper`` lives until the consumer is done.

    BufferError: memory opened for reading, and a consumer that knows DLPack before 1.0, which cannot say so.
    """
    if dtype.dlpack < 0:
        raise BufferError(f"DLPack has no element type {dtype.name}; take the memory's bytes, or numpy()")
    is_versioned = max_version is not None and max_version[0] >= 1
    if is_read_only and not is_versioned:
        raise BufferError("this memory is open for reading, which DLPack before 1.0 cannot say; open it with writable=True")
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis], step = step, step * shape[axis]
    shape_c, strides_c = (c_int64 * len(shape))(*shape), (c_int64 * len(shape))(*strides)
    tensor = _Tensor(
        pointer, _Device(*device), len(shape), _DataType(dtype.dlpack, dtype.itemsize * 8, 1),
        ctypes.cast(shape_c, POINTER(c_int64)), ctypes.cast(strides_c, POINTER(c_int64)), 0,
    )  # fmt: skip
    if is_versioned:
        managed: Structure = _Versioned(_Version(1, 0), None, _deleter, _READ_ONLY * is_read_only, tensor)
    else:
        managed = _Managed(tensor, None, _deleter)
    address = ctypes.addressof(managed)
    _lent[address] = (keeper, managed, shape_c, strides_c)
    return _api.PyCapsule_New(address, _NAME_VERSIONED if is_versioned else _NAME, _destructor)


def lent() -> int:
    """How many tensors consumers have now."""
    return len(_lent)
