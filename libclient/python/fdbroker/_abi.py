"""The C ABI as fdbroker.h declares it, for ctypes. Every call releases the GIL.

Must never keep a Python callback in the library for its own threads: these would need an interpreter that may be gone.
"""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from . import _native

HANDLE_BYTES = 64

KIND_NAMES = {1: "dma-buf", 2: "cuda-vmm", 3: "memfd"}
KIND_DMA_BUF, KIND_CUDA_VMM = 1, 2
SHARE = {"uid": 0, "gid": 1, "any": 2}
HOST_MEMORY = {"arena": 0, "udmabuf": 1, "isolated": 2, "dma-heap": 3}
DRIVERS = {"cuda": 1, "level-zero": 2}
IMPORT_READ, IMPORT_WRITE, IMPORT_NO_CACHE = 0, 1, 2
OPEN_NOTICES, OPEN_START = 8, 16
OWNERS_DEVICE = 0xFFFFFFFF
OK, AGAIN = 0, 7


class Handle(Structure):
    _fields_ = [("bytes", c_uint8 * HANDLE_BYTES)]


class HandleInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint64), ("version", c_uint32), ("kind", c_uint32), ("node", c_uint64), ("slot", c_uint32),
        ("generation", c_uint32), ("size_bytes", c_uint64), ("offset_bytes", c_uint64), ("owner_allocation_id", c_uint64),
        ("device", c_uint32), ("reserved", c_uint32),
    ]  # fmt: skip


class Options(Structure):
    _fields_ = [
        ("struct_size", c_uint64), ("socket", c_char_p), ("name", c_char_p), ("flags", c_uint32), ("own_fds", c_uint32),
        ("arena_bytes", c_uint64), ("cache_max_entries", c_int64), ("cache_max_bytes", c_int64), ("leave_pinned", c_int32),
        ("empty_cache", c_int32), ("print_stats", c_int32), ("cache_strict", c_int32), ("max_held_fds", c_int64),
        ("connect_timeout_ms", c_int64),
    ]  # fmt: skip


class Import(Structure):
    _fields_ = [
        ("ptr", c_void_p), ("size_bytes", c_uint64), ("pin", c_uint64), ("slot", c_uint32), ("generation", c_uint32),
    ]  # fmt: skip


class Notice(Structure):
    _fields_ = [
        ("struct_size", c_uint64), ("kind", c_uint32), ("code", c_uint32), ("slot", c_uint32), ("generation", c_uint32),
        ("lease", c_uint64), ("owner_allocation_id", c_uint64), ("base", c_uint64),
    ]  # fmt: skip


STATS = (
    "hits misses stale evicted entries pinned bytes max_entries max_bytes registrations host_bytes host_bytes_used leases "
    "host_bytes_held_back"
).split()


class Stats(Structure):
    _fields_ = [("struct_size", c_uint64)] + [(name, c_uint64) for name in STATS]


#: Whether a call that waits is to end.
Interrupt = ctypes.CFUNCTYPE(c_int32, c_void_p)

_CONTEXT = c_void_p
_DEADLINE = c_uint32
# Name, result, arguments. A call that answers a code is checked by its caller (_errors.check).
_FUNCTIONS = [
    ("fdbroker_error_name", c_char_p, [c_int32]),
    ("fdbroker_strerror", c_char_p, [c_int32]),
    ("fdbroker_last_error", c_char_p, []),
    ("fdbroker_version", c_char_p, []),
    ("fdbroker_options_init_sized", None, [POINTER(Options), c_size_t]),
    ("fdbroker_open", c_int32, [POINTER(Options), POINTER(c_void_p)]),
    ("fdbroker_close", c_int32, [_CONTEXT]),
    ("fdbroker_socket", c_char_p, [_CONTEXT]),
    ("fdbroker_is_connected", c_int32, [_CONTEXT]),
    ("fdbroker_set_interrupt", c_int32, [Interrupt, c_void_p]),
    ("fdbroker_due_open", c_int32, [POINTER(c_void_p)]),
    ("fdbroker_due_fd", c_int, [c_void_p]),
    ("fdbroker_due_take", c_int32, [c_void_p, POINTER(c_uint64)]),
    ("fdbroker_due_tell", c_int32, [c_void_p, c_uint64]),
    ("fdbroker_due_close", c_int32, [c_void_p]),
    ("fdbroker_notice_next", c_int32, [_CONTEXT, POINTER(Notice)]),
    ("fdbroker_notice_tell", c_int32, [_CONTEXT, c_void_p, c_uint64]),
    ("fdbroker_import_start", c_int32, [_CONTEXT, c_size_t, POINTER(Handle), c_uint32, _DEADLINE, POINTER(c_void_p)]),
    ("fdbroker_import_test", c_int32, [c_void_p, POINTER(Import), POINTER(c_int32)]),
    ("fdbroker_request_tell", c_int32, [c_void_p, c_void_p, c_uint64]),
    ("fdbroker_request_due_ms", c_uint32, [c_void_p]),
    ("fdbroker_request_cancel", c_int32, [c_void_p]),
    ("fdbroker_flush", c_int32, [_CONTEXT, _DEADLINE]),
    ("fdbroker_stats", c_int32, [_CONTEXT, POINTER(Stats)]),
    ("fdbroker_handle_parse", c_int32, [POINTER(Handle), POINTER(HandleInfo)]),
    ("fdbroker_handle_same", c_int32, [POINTER(Handle), POINTER(Handle)]),
    ("fdbroker_host_alloc", c_int32, [_CONTEXT, c_uint32, c_uint64, _DEADLINE, POINTER(c_void_p), POINTER(Handle)]),
    ("fdbroker_host_free", c_int32, [_CONTEXT, c_void_p]),
    ("fdbroker_get_handle", c_int32, [_CONTEXT, c_void_p, c_uint32, _DEADLINE, POINTER(Handle)]),
    ("fdbroker_unregister_within", c_int32, [_CONTEXT, POINTER(Handle), _DEADLINE, POINTER(c_int32)]),
    ("fdbroker_retire", c_int32, [_CONTEXT, POINTER(Handle), _DEADLINE]),
    ("fdbroker_import", c_int32, [_CONTEXT, POINTER(Handle), c_uint32, _DEADLINE, POINTER(Import)]),
    ("fdbroker_import_is_current", c_int32, [_CONTEXT, POINTER(Import)]),
    ("fdbroker_import_is_final", c_int32, [_CONTEXT, POINTER(Import)]),
    ("fdbroker_import_release", c_int32, [_CONTEXT, POINTER(Import)]),
    ("fdbroker_empty_cache", c_int32, [_CONTEXT, POINTER(c_uint64)]),
    ("fdbroker_suspend", c_int32, [_CONTEXT, _DEADLINE, c_size_t, POINTER(Handle), POINTER(c_size_t)]),
    ("fdbroker_resume", c_int32, [_CONTEXT, _DEADLINE, c_size_t, POINTER(Handle), POINTER(c_int32), POINTER(c_size_t)]),
    ("fdbroker_gpu_count", c_int32, [c_uint32, POINTER(c_uint32)]),
    ("fdbroker_gpu_alloc", c_int32,
     [_CONTEXT, c_uint32, c_uint32, c_uint64, c_uint32, _DEADLINE, POINTER(c_void_p), POINTER(Handle)]),
    ("fdbroker_gpu_free", c_int32, [_CONTEXT, c_void_p]),
    ("fdbroker_gpu_register", c_int32,
     [_CONTEXT, c_uint32, c_uint32, c_void_p, c_uint32, _DEADLINE, POINTER(Handle)]),
    ("fdbroker_gpu_retire", c_int32, [_CONTEXT, c_uint32, c_uint32, c_void_p]),
    ("fdbroker_set_gpu_opener", c_int32, [_CONTEXT, c_uint32, c_uint32, c_uint32]),
    ("fdbroker_import_device", c_int32, [_CONTEXT, POINTER(Import), POINTER(c_uint32), POINTER(c_uint32)]),
    ("fdbroker_pool_set", c_int32, [_CONTEXT]),
    ("fdbroker_pool_alloc", c_void_p, [c_size_t, c_int, c_void_p]),
    ("fdbroker_pool_free", None, [c_void_p, c_size_t, c_int, c_void_p]),
]  # fmt: skip


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, result, arguments in _FUNCTIONS:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _declare(_native.load())
