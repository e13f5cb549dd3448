"""Named objects: sealed memory that has a name, and can outlive its maker. Must never show bytes before they are sealed."""

import ctypes
import functools
import json
import math
import numbers
import sys
import warnings
from ctypes import POINTER, Structure, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _abi, _aio
from ._context import Context, Lease, ms, releasing
from ._errors import Error, NotFound, NotSupported, VersionChanged, check
from ._memory import Memory
from ._types import DType, Shape, bytes_of, count_of, dtype_of, shape_of
from ._waits import wait

if TYPE_CHECKING:
    from ._broker import Broker

CACHED = 64
JOB, REPLACE, KEEP, PIN, UNPIN, EVICTABLE, NO_KEEP, NO_PIN = 1, 2, 4, 8, 16, 32, 128, 2048
_ENDS_WITH_BROKER = 1024
_FINAL = 2048
_EXPECT = 1
#: Objects of one group, and of one message.
MOST = 253
_SEALED = 2
_FOREVER = (1 << 64) - 1
#: Longest time that the broker is told; it allows less. A number beyond 64 bits would be cut to a short one.
_LONGEST_KEEP_S = 1 << 40
#: Bytes that an event loop copies itself: to write them takes it some 50 us, and to have a thread do it some 200 more.
_COPIED_BY_LOOP = 64 << 10


class _New(Structure):
    _fields_ = [
        ("struct_size", c_uint64), ("name", c_char_p), ("size_bytes", c_uint64), ("bytes", c_void_p), ("metadata", c_void_p),
        ("metadata_bytes", c_uint64), ("expect", c_uint64), ("offset", c_uint64), ("flags", c_uint32), ("reserved", c_uint32),
    ]  # fmt: skip


class _Options(Structure):
    _fields_ = [
        ("struct_size", c_uint64), ("flags", c_uint32), ("place", c_uint32), ("device", c_uint32), ("fd", c_int32),
        ("ttl_ms", c_uint64), ("room_bytes", c_uint64), ("memory", c_void_p),
    ]  # fmt: skip


class _Object(Structure):
    _fields_ = [
        ("struct_size", c_uint64), ("ptr", c_void_p), ("size_bytes", c_uint64), ("version", c_uint64), ("metadata", c_void_p),
        ("metadata_bytes", c_uint64), ("device_ptr", c_uint64), ("object", c_uint64), ("kind", c_uint32), ("slot", c_uint32),
        ("generation", c_uint32), ("device", c_uint32), ("flags", c_uint32), ("reserved", c_uint32),
    ]  # fmt: skip


class _Info(Structure):
    _fields_ = [
        ("struct_size", c_uint64), ("name", c_char * 256), ("version", c_uint64), ("size_bytes", c_uint64), ("offset", c_uint64),
        ("group", c_uint64), ("group_bytes", c_uint64), ("age_ms", c_uint64), ("ttl_left_ms", c_uint64), ("state", c_uint32),
        ("flags", c_uint32), ("kind", c_uint32), ("metadata_bytes", c_uint32), ("group_names", c_uint32), ("leases", c_uint32),
        ("creator_pid", c_uint32), ("slot", c_uint32), ("generation", c_uint32), ("reserved", c_uint32),
    ]  # fmt: skip


class _Event(Structure):
    _fields_ = [("struct_size", c_uint64), ("name", c_char * 256), ("version", c_uint64), ("event", c_uint32), ("reserved", c_uint32)]


#: The arguments of fdbroker_object_NAME().
FUNCTIONS = {
    "put": [c_void_p, c_size_t, POINTER(_New), POINTER(_Options), c_uint32, POINTER(c_uint64)],
    "put_start": [c_void_p, c_size_t, POINTER(_New), POINTER(_Options), c_uint32, POINTER(c_void_p)],
    "put_test": [c_void_p, POINTER(c_uint64)],
    "get": [c_void_p, c_size_t, POINTER(c_char_p), POINTER(_Options), c_uint32, POINTER(_Object)],
    "get_start": [c_void_p, c_size_t, POINTER(c_char_p), POINTER(_Options), c_uint32, POINTER(c_void_p)],
    "get_test": [c_void_p, POINTER(_Object)],
    "watch": [c_void_p, c_char_p, c_uint32, c_uint32, POINTER(c_void_p)],
    "watch_next": [c_void_p, c_uint32, POINTER(_Event)],
    "watch_tell": [c_void_p, c_void_p, c_uint64],
    "watch_close": [c_void_p],
    "release": [c_void_p, POINTER(_Object)],
    "is_current": [c_void_p, POINTER(_Object)],
    "delete": [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_uint64), c_uint32, c_uint32, POINTER(c_int32)],
    "touch": [c_void_p, c_size_t, POINTER(c_char_p), POINTER(_Options), c_uint32, POINTER(c_int32)],
    "stat": [c_void_p, c_size_t, POINTER(c_char_p), c_uint32, c_uint32, POINTER(_Info)],
    "list": [c_void_p, c_char_p, c_uint32, c_uint32, POINTER(c_void_p)],
    "list_next": [c_void_p, POINTER(_Info), POINTER(c_int32)],
    "list_close": [c_void_p],
    "create": [c_void_p, c_size_t, POINTER(_New), POINTER(_Options), c_uint32, POINTER(c_void_p)],
    "create_start": [c_void_p, c_size_t, POINTER(_New), POINTER(_Options), c_uint32, POINTER(c_void_p)],
    "create_test": [c_void_p, POINTER(c_void_p)],
    "data": [c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_uint64)],
    "device_ptr": [c_void_p, c_size_t, POINTER(c_uint64)],
    "write": [c_void_p, c_size_t, c_uint64, c_void_p, c_size_t],
    "seal": [c_void_p, c_uint32, POINTER(c_uint64)],
    "seal_after": [c_void_p, c_uint32, c_void_p, c_uint32, POINTER(c_uint64)],
    "seal_start": [c_void_p, c_uint32, c_void_p, c_uint32, POINTER(c_void_p)],
    "seal_test": [c_void_p, POINTER(c_uint64)],
    "close": [c_void_p],
}


def _declared(name: str) -> Any:
    found = getattr(_abi.lib, f"fdbroker_object_{name}", None)
    if found is not None:
        found.restype, found.argtypes = c_int32, FUNCTIONS[name]
    return found


# All at once, before another thread can call one.
_declarations = {name: _declared(name) for name in FUNCTIONS}


def function(name: str) -> Any:
    """A function of the library; NotSupported where the library is older."""
    found = _declarations[name]
    if found is None:
        raise NotSupported(f"this libfdbroker has no fdbroker_object_{name}(): it is older than named objects")
    return found


class ObjectInfo(NamedTuple):
    """What is known of a name."""

    name: str
    #: 0 while it is being made.
    version: int
    #: Bytes.
    size: int
    #: Whether it can be had.
    sealed: bool
    #: ``memfd``, ``cuda-vmm`` and so on.
    kind: str
    #: Seconds since it was sealed, or begun.
    age: float
    #: Seconds that are left if nobody uses it; None: no end by time.
    ttl: Optional[float]
    kept: bool
    pinned: bool
    #: Leases of its group now.
    leases: int
    #: Its maker's process.
    creator_pid: int
    #: It is kept, and ends with the broker all the same: a private broker, or a service without an fd store.
    ends_with_broker: bool = False


# --- metadata: the shape and type in a first line, then the program's own ---


def _metadata(shape: Shape, dtype: DType, own: bytes) -> bytes:
    return json.dumps({"dtype": dtype.name, "shape": shape}, separators=(",", ":")).encode() + b"\n" + own


def _described(metadata: bytes, size: int) -> Tuple[Shape, DType, bytes]:
    """Of an object of a C or Rust program: all its bytes, and its metadata as they are."""
    line, newline, own = metadata.partition(b"\n")
    if newline and line.startswith(b'{"dtype":'):
        try:
            about = json.loads(line)
            shape, dtype = shape_of(tuple(about["shape"])), dtype_of(about["dtype"])
            if count_of(shape) * dtype.itemsize <= size:
                return shape, dtype, own
        except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError):
            pass
    return (size,), dtype_of("uint8"), metadata


class Object(Memory):
    """A named object, opened for reading: :meth:`Broker.get <fdbroker.Broker.get>`. Its bytes never change."""

    #: Its name.
    name: str
    #: Given when it was sealed, above all versions before.
    version: int
    #: The bytes that its maker put beside it.
    metadata: bytes
    _object: _Object
    _job: bool

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A reference: its name and version."""
        from ._references import of_object

        self._live()
        return of_object(self, self.name, self.version, self._job)

    def _allocation(self) -> Tuple[int, int]:
        return self._object.slot, self._object.generation

    def _is_alive(self) -> bool:
        return self.is_current

    @property
    def is_final(self) -> bool:  # type: ignore[override]
        """Whether the kernel lets nobody change the bytes: of all objects of the host. Forked children have it, too."""
        return bool(self._object.flags & _FINAL)

    @property
    def is_current(self) -> bool:
        """Whether its name still leads to it. Sends nothing."""
        self._live()
        return bool(function("is_current")(self._context.pointer, ctypes.byref(self._object)))


def _lease(context: Context, taken: _Object) -> Lease:
    return Lease(context, releasing(taken, "object", function("release"), context.pointer))


def _options(job: bool, flags: int = 0, ttl_ms: int = 0) -> _Options:
    return _Options(struct_size=ctypes.sizeof(_Options), flags=flags | JOB * job, fd=-1, ttl_ms=ttl_ms)


def _keeping(keep: Optional[float]) -> Tuple[int, int]:
    """The flag and the ms of a ``keep``; 0 ms: as long as the broker allows."""
    if keep is None:
        return 0, 0
    # True is no second: who says it means no time at all.
    if isinstance(keep, bool):
        return KEEP if keep else NO_KEEP, 0
    wrong = f"keep is {keep!r}; it is seconds, 0 or True for as long as the broker allows, False, or None"
    if not isinstance(keep, numbers.Real):
        raise TypeError(wrong)
    if not 0 <= keep < math.inf:
        raise ValueError(wrong)
    # A time below 1 ms must not become 0, which is the longest.
    return KEEP, max(1, int(float(min(keep, _LONGEST_KEEP_S)) * 1000)) if keep else 0


def _lasting(keep: Optional[float], pin: Optional[bool], not_pinned: int) -> Tuple[int, int]:
    """The flags and the ms of what was said; None says nothing."""
    kept, ttl_ms = _keeping(keep)
    if pin is not None and not isinstance(pin, bool):
        raise TypeError(f"pin is {pin!r}; it is True, False or None")
    return kept | (0 if pin is None else PIN if pin else not_pinned), ttl_ms


def to_make(
    job: bool = False, replace: bool = False, keep: Optional[float] = None, pin: Optional[bool] = None, evictable: bool = False
) -> _Options:  # fmt: skip
    """The options of a group to be made."""
    flags, ttl_ms = _lasting(keep, pin, NO_PIN)
    return _options(job, REPLACE * replace | flags | EVICTABLE * evictable, ttl_ms)


def at_device(options: _Options, device: Optional[Tuple[str, int]]) -> _Options:
    """Says where memory is made or opened; None: of the host, or where its maker says."""
    if device is not None:
        # FDBROKER_PLACE_* of the devices are the drivers' numbers.
        options.place, options.device = _abi.DRIVERS[device[0]], device[1]
    return options


def _names(names: Sequence[str]) -> Any:
    return (c_char_p * len(names))(*(_checked(name) for name in names))


def _checked(name: str) -> bytes:
    if not isinstance(name, str) or "\0" in name:
        raise ValueError(f"the name {name!r} is no text, or has a NUL")
    return name.encode()


def _source(value: Any) -> Tuple[Any, Shape, DType]:
    """Something with the buffer protocol that stays as it is, with shape and type."""
    if isinstance(value, Memory):
        view = value.memoryview()
        return view[: count_of(value.shape) * dtype_of(value.dtype).itemsize], value.shape, dtype_of(value.dtype)
    if isinstance(value, (bytes, bytearray)) or (isinstance(value, memoryview) and value.format in ("B", "b", "c") and value.ndim == 1):
        flat = memoryview(value).cast("B")
        return flat, (len(flat),), dtype_of("uint8")
    import numpy

    array = numpy.ascontiguousarray(value)
    return array, tuple(numpy.shape(value)), dtype_of(array.dtype)


def _address(source: Any) -> Tuple[Any, int]:
    """Its first byte, read-only or not, and what keeps it there."""
    if hasattr(source, "ctypes"):
        return source, source.ctypes.data
    size = source.nbytes
    if size == 0:
        return source, 0
    if not source.readonly:
        return source, ctypes.addressof((ctypes.c_char * size).from_buffer(source))
    # ctypes takes no read-only buffer but bytes: one copy.
    kept = bytes(source)
    return kept, ctypes.cast(ctypes.c_char_p(kept), c_void_p).value or 0


def describe(item: _New, name: str, shape: Shape, dtype: DType, own: bytes, expect: Optional[int]) -> Any:
    """Says what an object is to be; what must be kept until it is made."""
    named, about = _checked(name), _metadata(shape, dtype, own)
    item.struct_size, item.name, item.size_bytes = ctypes.sizeof(_New), named, bytes_of(shape, dtype)
    item.metadata, item.metadata_bytes = ctypes.cast(ctypes.c_char_p(about), c_void_p), len(about)
    if expect is not None:
        item.expect, item.flags = expect, _EXPECT
    return named, about


def _to_put(values: Mapping[str, Any], metadata: Optional[Mapping[str, bytes]], expect: Optional[int]) -> Tuple[Any, List[Any]]:
    """Objects to be made of values, and what must be kept until they are copied."""
    kept: List[Any] = []
    new = (_New * len(values))()
    for item, (name, value) in zip(new, values.items()):
        source, shape, dtype = _source(value)
        keeper, item.bytes = _address(source)
        described = describe(item, name, shape, dtype, (metadata or {}).get(name, b""), expect)
        kept.append((source, keeper, described))
    return new, kept


def put(
    broker: "Broker", values: Mapping[str, Any], metadata: Optional[Mapping[str, bytes]], options: _Options, expect: Optional[int],
    timeout: Optional[float],
) -> List[int]:  # fmt: skip
    """Makes objects; their versions."""
    new, kept = _to_put(values, metadata, expect)
    versions = (c_uint64 * len(values))()
    if len(values):
        broker._call(function("put"), len(values), new, ctypes.byref(options), ms(timeout), versions)
    del kept
    if len(values):
        warn_once(broker, options, next(iter(values)), timeout)
    return list(versions)


def _is_small(value: Any) -> bool:
    """Whether an event loop may copy it: few bytes, which are there. Of what else has bytes nobody knows what it takes to get them."""
    if isinstance(value, (bytes, bytearray)):
        return len(value) <= _COPIED_BY_LOOP
    is_array = isinstance(value, (memoryview, Memory)) or type(value) is getattr(sys.modules.get("numpy"), "ndarray", None)
    return is_array and value.nbytes <= _COPIED_BY_LOOP


async def aput(
    broker: "Broker", name: str, value: Any, metadata: bytes, options: _Options, expect: Optional[int], timeout: Optional[float]
) -> int:  # fmt: skip
    """Makes an object, awaited. Its version."""
    version, context, left = c_uint64(), broker._live().take(), _aio.clock(timeout)
    try:
        # It keeps the connection for a thread that still copies after a cancel. Of a request nothing else is to be given back.
        lease = Lease(context, iter(()))

        def start(under_way: object) -> int:
            new, _kept = _to_put({name: value}, {name: metadata}, expect)
            code: int = function("put_start")(context.pointer, 1, new, ctypes.byref(options), ms(left()), under_way)
            return code

        def test(under_way: c_void_p) -> bool:
            return _aio.is_done(function("put_test")(under_way, ctypes.byref(version)))

        await _aio.request(_aio.places(context), left, lease, start, test, start_in=None if _is_small(value) else _aio.calls)
    finally:
        context.give_back()
    if warns(broker, options):
        await _aio.run(lambda _: warn_once(broker, options, name, left(), 3), left(), _aio.answers)
    return version.value


class KeptEndsWithBroker(UserWarning):
    """Objects were to be kept or pinned, and end with the broker: no service manager stores its fds."""


def warns(broker: "Broker", options: _Options) -> bool:
    """Whether this is the first call of the connection that keeps or pins."""
    return bool(options.flags & (KEEP | PIN)) and not broker._kept_before


def warn_once(broker: "Broker", options: _Options, name: str, timeout: Optional[float], level: int = 4) -> None:
    """Says it at the first call of this connection that keeps or pins."""
    if warns(broker, options):
        broker._kept_before = True
        try:
            about = stat(broker, name, bool(options.flags & JOB), timeout)
        except Error:
            # What was asked for is done.
            return
        if about and about.ends_with_broker:
            text = "kept and pinned objects end with this broker: no service manager stores its fds (a private broker, one that a program has started, of which `fdbroker status` names the cgroup that it ends with, or a unit without FileDescriptorStoreMax)"
            # `level` is that of the caller of a method of Broker or Group.
            warnings.warn(text, KeptEndsWithBroker, stacklevel=level)


def get(
    broker: "Broker", names: Sequence[str], job: bool, device: Optional[Tuple[str, int]], timeout: Optional[float], flags: int = 0
) -> List[Object]:  # fmt: skip
    """Objects of one moment, all or none."""
    taken = (_Object * len(names))()
    if not names:
        return []
    taken[0].struct_size = ctypes.sizeof(_Object)
    options = at_device(_options(job, flags), device)
    context = broker._live().take()
    try:
        leases = [_lease(context, one) for one in taken]
        check(wait(function("get"), context.pointer, len(names), _names(names), ctypes.byref(options), ms(timeout), taken))
        return [_object(context, name, job, one, lease) for name, one, lease in zip(names, taken, leases)]
    finally:
        context.give_back()


def _object(context: Context, name: str, job: bool, taken: _Object, lease: object) -> Object:
    metadata = ctypes.string_at(taken.metadata, taken.metadata_bytes) if taken.metadata_bytes else b""
    shape, dtype, own = _described(metadata, taken.size_bytes)
    device = None
    if taken.device_ptr:
        device = "cuda" if taken.kind == _abi.KIND_CUDA_VMM else "level-zero", taken.device
    made = Object(
        context, lease, taken.device_ptr or taken.ptr or 0, taken.size_bytes, shape, dtype, device=device, writable=False
    )  # fmt: skip
    made.name, made.version, made.metadata, made._job = name, taken.version, own, job
    made._object = _Object.from_buffer_copy(taken)
    return made


def delete(broker: "Broker", name: str, version: int, job: bool, timeout: Optional[float]) -> None:
    """Takes a name away."""
    wanted = (c_uint64 * 1)(version)
    broker._call(function("delete"), 1, _names([name]), wanted, JOB * job, ms(timeout), None)


def delete_all(broker: "Broker", prefix: str, job: bool, timeout: Optional[float]) -> int:
    """Takes away the names that a list has now, each with the version that it has there; how many."""
    found = [(about.name, about.version) for about in names(broker, prefix, job, timeout) if about.sealed]
    count = 0
    for at in range(0, len(found), MOST):
        some = found[at : at + MOST]
        codes = (c_int32 * len(some))()
        versions = (c_uint64 * len(some))(*(version for _, version in some))
        try:
            broker._call(function("delete"), len(some), _names([name for name, _ in some]), versions, JOB * job, ms(timeout), codes)
        except (NotFound, VersionChanged):
            # Others were first. The codes are those of each name.
            pass
        count += sum(code == _abi.OK for code in codes)
    return count


def touch(broker: "Broker", name: str, keep: Optional[float], pin: Optional[bool], job: bool, timeout: Optional[float]) -> None:
    """A use of the object, and what keeps it from now on."""
    if keep is False:
        raise ValueError("touch cannot end a keep: delete the object, or replace it with keep=False")
    options = _options(job, *_lasting(keep, pin, UNPIN))
    broker._call(function("touch"), 1, _names([name]), ctypes.byref(options), ms(timeout), None)
    warn_once(broker, options, name, timeout)


def _info(info: _Info) -> ObjectInfo:
    ttl = None if info.ttl_left_ms == _FOREVER else info.ttl_left_ms / 1000
    return ObjectInfo(
        info.name.decode(errors="replace"), info.version, info.size_bytes, info.state == _SEALED,
        _abi.KIND_NAMES.get(info.kind, str(info.kind)), info.age_ms / 1000, ttl, bool(info.flags & KEEP), bool(info.flags & PIN),
        info.leases, info.creator_pid, bool(info.flags & _ENDS_WITH_BROKER),
    )  # fmt: skip


def stat(broker: "Broker", name: str, job: bool, timeout: Optional[float]) -> Optional[ObjectInfo]:
    """What is known of a name; None: nothing."""
    info = _Info(struct_size=ctypes.sizeof(_Info))
    broker._call(function("stat"), 1, _names([name]), JOB * job, ms(timeout), ctypes.byref(info))
    return _info(info) if info.state else None


def names(broker: "Broker", prefix: str, job: bool, timeout: Optional[float]) -> Iterator[ObjectInfo]:
    """What is known of all names with a prefix."""
    listing, has_one = c_void_p(), c_int32()
    context = broker._live().take()
    try:
        try:
            check(wait(function("list"), context.pointer, _checked(prefix), JOB * job, ms(timeout), ctypes.byref(listing)))
            while True:
                info = _Info(struct_size=ctypes.sizeof(_Info))
                check(wait(function("list_next"), listing, ctypes.byref(info), ctypes.byref(has_one)))
                if not has_one.value:
                    return
                yield _info(info)
        finally:
            function("list_close")(listing)
    finally:
        context.give_back()
