"""The connection to the node's broker: memory made, opened, counted. Must never wait without a timeout."""

import contextlib
import ctypes
import functools
import os
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from . import _abi, _aio, _gets, _groups, _objects, _opens
from ._context import Context, Lease, freeing, ms, sweep
from ._errors import Again, Closed, Error, NotSupported, check
from ._groups import Group, Wanted
from ._handle import Handle, from_c, to_c
from ._memory import Buffer, View
from ._notices import News, Notices
from ._objects import Object, ObjectInfo
from ._types import DType, bytes_of, dtype_of, shape_of
from ._waits import raise_later, raise_what_came, wait
from ._watches import Watch

ShapeLike = Union[int, Tuple[int, ...]]
_Self = TypeVar("_Self", bound="Broker")
#: Seconds that a call waits at most, unless told otherwise.
TIMEOUT_S = 5.0
#: Seconds that connecting waits: a broker whose fds are all in use lets clients in one after the other.
CONNECT_TIMEOUT_S = 10.0


def parse_device(device: Optional[str]) -> Optional[Tuple[str, int]]:
    """``cuda:1`` as ``("cuda", 1)``; None for the host. ValueError for anything else."""
    if device is None or device == "cpu":
        return None
    driver, _, number = str(device).partition(":")
    if driver not in _abi.DRIVERS or not (number or "0").isdecimal():
        raise ValueError(f"device is {device!r}; it is cpu, cuda:N or level-zero:N")
    return driver, int(number or "0")


class Broker:
    """A connection to the node's broker: :func:`fdbroker.connect`, :func:`fdbroker.private_broker`.

    All threads may use it at once; calls release the GIL. In the main thread a signal handler that raises, as that of
    Ctrl-C does, ends a call at once, and what the call would have got is given back; in another thread a call ends by its timeout. A
    driver's own call is not stopped. A timeout of None is the longest, an hour. A forked child connects anew: there each call raises
    :class:`~fdbroker.NotConnected`. While the broker is away calls that need it raise that, too, and the library connects
    again by itself. ``with`` closes it at the end; memory that is still seen somewhere stays, and the connection with it.
    """

    #: The path of the broker's socket: other processes find the same broker by ``fdbroker.connect(broker.socket)`` or FDBROKER_SOCKET.
    socket: str

    def __init__(self, context: Context) -> None:
        self._context: Optional[Context] = context
        # The call that takes it out gives the connection back.
        self._held = {"context": context}
        self.socket = os.fsdecode(_abi.lib.fdbroker_socket(context.pointer))
        # Of each kind of memory who opens it now, and how many calls count on that.
        self._openers: Dict[int, Tuple[int, int]] = {}
        self._opening: Dict[int, int] = {}
        self._opener_free = threading.Condition()
        self._kept_before = False

    def _live(self) -> Context:
        context = self._context
        if context is None:
            raise Closed("this broker's connection was closed; connect anew")
        return context

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """A call, with the connection held meanwhile: another thread may close this object."""
        context = self._live().take()
        try:
            check(wait(function, context.pointer, *arguments))
        finally:
            context.give_back()

    # --- memory of this process ---

    def empty(
        self, shape: ShapeLike, dtype: Any = "uint8", *, device: Optional[str] = None, memory: str = "arena", share: str = "uid",
        timeout: Optional[float] = TIMEOUT_S,
    ) -> Buffer:  # fmt: skip
        """Memory that other processes can open, with undefined content.

        shape: a number of elements, or a tuple of sizes. dtype: a name such as ``float32``, or numpy's or PyTorch's type.
        device: None for the host, or ``cuda:N``, ``level-zero:N``. memory: of the host, ``arena`` (pages of one memfd, which the
        broker may evict and ask for again), ``udmabuf``, ``isolated`` (a memfd of its own) or ``dma-heap``. share: of a GPU's
        memory, who may open it: ``uid``, ``gid`` or ``any``; the host's is for this user alone. timeout: seconds.

        Errors: :class:`~fdbroker.NoQuota`, :class:`~fdbroker.NotSupported` (no such device or memory here; the text says what
        is missing), :class:`~fdbroker.TimedOut`, :class:`~fdbroker.NotConnected`, :class:`~fdbroker.Internal` (no memory left).
        """
        sizes, element = shape_of(shape), dtype_of(dtype)
        nbytes = bytes_of(sizes, element)
        pointer, handle = ctypes.c_void_p(), _abi.Handle()
        results = ms(timeout), ctypes.byref(pointer), ctypes.byref(handle)
        place = parse_device(device)
        give = _abi.lib.fdbroker_host_free if place is None else _abi.lib.fdbroker_gpu_free
        # Memory without a byte cannot be shared; it has one that nobody sees.
        asked = max(nbytes, 1)
        context = self._live().take()
        try:
            lease = Lease(context, freeing(pointer, give, context.pointer))
            if place is None:
                kind = _choice("memory", _abi.HOST_MEMORY, memory)
                check(wait(_abi.lib.fdbroker_host_alloc, context.pointer, kind, asked, *results))
            else:
                driver, circle = _abi.DRIVERS[place[0]], _choice("share", _abi.SHARE, share)
                check(wait(_abi.lib.fdbroker_gpu_alloc, context.pointer, driver, place[1], asked, circle, *results))
            return Buffer(context, lease, pointer.value or 0, nbytes, sizes, element, device=place, writable=True)
        finally:
            context.give_back()

    def zeros(self, shape: ShapeLike, dtype: Any = "uint8", **options: Any) -> Buffer:
        """As :meth:`empty`, of the host, filled with zeros."""
        made = self.empty(shape, dtype, **options)
        view = made.memoryview() if made.nbytes else None
        if view is not None:
            ctypes.memset(made.pointer, 0, made.nbytes)
        return made

    def array(self, values: Any, **options: Any) -> Buffer:
        """A copy of ``values`` in memory that can be shared: a numpy array, or anything with the buffer protocol or that numpy
        makes an array of. Options as of :meth:`empty`."""
        if isinstance(values, (bytes, bytearray, memoryview)) and memoryview(values).format in ("B", "b", "c"):
            flat = memoryview(values).cast("B")
            made = self.empty(len(flat), "uint8", **options)
            if len(flat):
                made.memoryview()[:] = flat
            return made
        import numpy

        source = numpy.asarray(values)
        made = self.empty(source.shape, source.dtype, **options)
        made.numpy()[...] = source
        return made

    # --- memory of others ---

    def open(
        self, handle: Union[bytes, bytearray, memoryview], shape: Optional[ShapeLike] = None, dtype: Any = "uint8", *,
        writable: bool = False, timeout: Optional[float] = TIMEOUT_S, device: Optional[str] = None,
    ) -> View:  # fmt: skip
        """The memory of a handle, opened here without a copy.

        handle: 64 bytes. shape, dtype: as the owner told them; the handle knows bytes alone, in whole pages, so without them it
        is all bytes. writable: False maps it for reading. timeout: seconds. device: ``cuda:N`` or ``level-zero:N``, where GPU memory
        is opened, by its number here; memory of another GPU is then reached from there, if there is a way. None: CUDA memory on the
        GPU that it is on, whatever its number here, :class:`~fdbroker.NotSupported` where this process does not see that one; Level Zero memory is
        mapped for the CPU.

        Opening the same memory again costs no message while the library's cache has it.

        Errors: :class:`~fdbroker.Stale`, :class:`~fdbroker.OwnerGone` (it has ended), :class:`~fdbroker.BadHandle`,
        :class:`~fdbroker.WrongNode`, :class:`~fdbroker.NotPermitted`, :class:`~fdbroker.NoQuota`, :class:`~fdbroker.OwnerSilent`,
        :class:`~fdbroker.LocalFdLimit`, :class:`~fdbroker.NotSupported`, :class:`~fdbroker.TimedOut`,
        :class:`~fdbroker.NotConnected`; ValueError when shape and dtype need more bytes than there are.
        """
        wanted, imported = to_c(handle), _abi.Import()
        context = self._live().take()
        try:
            lease = _opens.lease_of(context, imported)
            flags = _abi.IMPORT_WRITE if writable else _abi.IMPORT_READ
            if device == "cpu" and Handle(handle).kind == _abi.KIND_NAMES[_abi.KIND_CUDA_VMM]:
                raise ValueError("device is cpu, and this memory is of a GPU; say cuda:N, or no device for the GPU that it is on")
            with self._opened_by(context, Handle(handle), parse_device(device)) as is_gpu:
                check(wait(_abi.lib.fdbroker_import, context.pointer, ctypes.byref(wanted), flags, ms(timeout), ctypes.byref(imported)))
            place = self._place_of(context, imported) if is_gpu else None
            if place is not None and device is not None and place != parse_device(device):
                lease.end()
                raise NotSupported(
                    f"device is {device}, and this connection has the memory open on {place[0]}:{place[1]} already; close that, or "
                    "use a connection of its own for each device (fdbroker.connect)"
                )
            return _opens.view(context, lease, imported, handle, shape, dtype, place, writable)
        finally:
            context.give_back()

    @contextlib.contextmanager
    def _opened_by(self, context: Context, handle: Handle, device: Optional[Tuple[str, int]]) -> Iterator[bool]:
        """Has the library open GPU memory by its driver, on the device that is asked for, as long as this lasts; whether it is GPU
        memory. Calls for another device wait: a connection has one opener for each kind."""
        names = {name: kind for kind, name in _abi.KIND_NAMES.items()}
        kind = names.get(handle.kind, _abi.KIND_DMA_BUF)
        of_cuda = kind == _abi.KIND_CUDA_VMM
        if device is None and not of_cuda:
            yield False
            return
        if device is None:
            opener = _abi.DRIVERS["cuda"], _abi.OWNERS_DEVICE
        elif (device[0] == "cuda") == of_cuda:
            opener = _abi.DRIVERS[device[0]], device[1]
        else:
            raise ValueError(f"device is {device[0]}:{device[1]}, and this memory is {handle.kind}")
        with self._opener_free:
            while self._openers.get(kind) != opener and self._opening.get(kind):
                self._opener_free.wait()
            if self._openers.get(kind) != opener:
                check(_abi.lib.fdbroker_set_gpu_opener(context.pointer, kind, *opener))
                self._openers[kind] = opener
            self._opening[kind] = self._opening.get(kind, 0) + 1
        try:
            yield True
        finally:
            with self._opener_free:
                self._opening[kind] -= 1
                self._opener_free.notify_all()

    @staticmethod
    def _place_of(context: Context, imported: _abi.Import) -> Tuple[str, int]:
        """Where an import is open that a driver has opened."""
        driver, number = ctypes.c_uint32(), ctypes.c_uint32()
        check(_abi.lib.fdbroker_import_device(context.pointer, ctypes.byref(imported), ctypes.byref(driver), ctypes.byref(number)))
        names = {number: name for name, number in _abi.DRIVERS.items()}
        return names[driver.value], number.value

    def handle_of(self, pointer: int, *, device: Optional[str] = None, share: str = "uid", timeout: Optional[float] = TIMEOUT_S) -> Handle:
        """The handle of memory by an address in it: of this connection's own memory, or with a device of what another library
        allocated there, which is registered by the first call. :meth:`retire` it before it is freed.

        Errors: :class:`~fdbroker.Stale` (nothing that is shared is there), :class:`~fdbroker.NotSupported` (this memory cannot be
        shared; the text says why), and those of :meth:`empty`.
        """
        handle, place = _abi.Handle(), parse_device(device)
        result = ms(timeout), ctypes.byref(handle)
        if place is None:
            self._call(_abi.lib.fdbroker_get_handle, pointer, 0, *result)
        else:
            driver, circle = _abi.DRIVERS[place[0]], _choice("share", _abi.SHARE, share)
            self._call(_abi.lib.fdbroker_gpu_register, driver, place[1], pointer, circle, *result)
        return from_c(handle)

    def retire(self, pointer: int, *, device: str) -> None:
        """Ends what :meth:`handle_of` has registered of another library's memory, before that is freed.

        Errors: :class:`~fdbroker.BadHandle` (nothing there was registered).
        """
        place = parse_device(device)
        if place is None:
            raise ValueError("memory of the host is ended by closing it")
        self._call(_abi.lib.fdbroker_gpu_retire, _abi.DRIVERS[place[0]], place[1], pointer)

    # --- named objects ---

    def put(
        self, name: str, value: Any, *, metadata: bytes = b"", replace: bool = False, keep: Optional[float] = None, pin: Optional[bool] = None,
        evictable: bool = False, expect: Optional[int] = None, job: bool = False, timeout: Optional[float] = TIMEOUT_S,
    ) -> int:  # fmt: skip
        """Makes an object of the host under a name, with a copy of ``value``: memory, an array, bytes. Its version.

        From one moment on everyone of this user can :meth:`get` it, and nobody can change it. metadata: bytes beside it, some 4,000
        at most; shape and type go along by themselves. replace: the name may be in use; it leads to this one then. keep: it outlives this process,
        for so many seconds after its last use; 0 or True: as long as the broker allows; False: not. pin: True: it ends neither by time nor
        to make room; False: not so. keep and pin that are not given (None) are those of the version that is replaced when this one
        appears, its time counted anew; else the object ends with this process. They are two things: a new time does not end a pin.
        evictable: it may end when bytes are short. expect: the version that the name must have; 0: none. job: the name is the job's, not the user's.
        Nothing outlives a private broker: the first call that keeps or pins warns of it (:class:`~fdbroker.KeptEndsWithBroker`).

        Errors: :class:`~fdbroker.Exists`, :class:`~fdbroker.VersionChanged`, :class:`~fdbroker.NoQuota`, :class:`~fdbroker.TooLong`,
        :class:`~fdbroker.TimedOut`, :class:`~fdbroker.NotConnected`, :class:`~fdbroker.NotSupported`.
        """
        options = _objects.to_make(job, replace, keep, pin, evictable)
        return _objects.put(self, {name: value}, {name: metadata}, options, expect, timeout)[0]

    def put_many(
        self, values: Mapping[str, Any], *, metadata: Optional[Mapping[str, bytes]] = None, replace: bool = False,
        keep: Optional[float] = None, pin: Optional[bool] = None, evictable: bool = False, expect: Optional[int] = None, job: bool = False,
        timeout: Optional[float] = TIMEOUT_S,
    ) -> List[int]:  # fmt: skip
        """Makes objects, as :meth:`put`, those of a group of 253 at one moment. Their versions."""
        options = _objects.to_make(job, replace, keep, pin, evictable)
        return _objects.put(self, values, metadata, options, expect, timeout)

    def create(
        self, objects: Mapping[str, Wanted], *, device: Optional[str] = None, metadata: Optional[Mapping[str, bytes]] = None,
        replace: bool = False, keep: Optional[float] = None, pin: Optional[bool] = None, evictable: bool = False, expect: Optional[int] = None,
        job: bool = False, timeout: Optional[float] = TIMEOUT_S,
    ) -> Group:  # fmt: skip
        """Begins a group of up to 253 objects, in one piece of memory of the host or of a GPU, to be filled in place and sealed.

            with broker.create({"kv/0": ((16, 1024), "float16")}, device="cuda:0") as group:
                torch.from_dlpack(group["kv/0"]).copy_(block)
                version = group.seal()

        objects: of each name the shape and element type. device: None for the host, or ``cuda:N``, ``level-zero:N``. Options and errors
        as of :meth:`put`; :class:`~fdbroker.NotSupported` also where there is no such device.
        """
        options = _objects.to_make(job, replace, keep, pin, evictable)
        return _groups.create(self, _groups.Asked(objects, metadata, options, parse_device(device), expect), timeout)

    def get(
        self, name: str, *, device: Optional[str] = None, job: bool = False, cached: bool = False, timeout: Optional[float] = TIMEOUT_S
    ) -> Object:  # fmt: skip
        """The object of a name, opened for reading without a copy. Waits until it is sealed, ``timeout`` seconds at most.

        device: where memory of a GPU is opened, ``cuda:N`` or ``level-zero:N``; None: CUDA memory on the GPU that its
        maker had it on, Level Zero's for the CPU. cached: for a name that is asked for again and again: the object stays open between two
        gets, and the next one sends no message as long as the name leads to it and it is alone in its group.

        Errors: :class:`~fdbroker.TimedOut` (the text says whether the name is unknown, or who makes it), with timeout 0
        :class:`~fdbroker.NotFound` and :class:`~fdbroker.NotSealed`; :class:`~fdbroker.NoQuota`, :class:`~fdbroker.LocalFdLimit`,
        :class:`~fdbroker.NotConnected`, :class:`~fdbroker.NotSupported`.
        """
        return _objects.get(self, [name], job, parse_device(device), timeout, _objects.CACHED * cached)[0]

    def get_many(
        self, names: Sequence[str], *, device: Optional[str] = None, job: bool = False, timeout: Optional[float] = TIMEOUT_S
    ) -> List[Object]:  # fmt: skip
        """Up to 253 objects of one moment, all or none: never two versions of a group mixed. Errors: as :meth:`get`."""
        return _objects.get(self, list(names), job, parse_device(device), timeout)

    def delete(self, name: str, *, version: int = 0, job: bool = False, timeout: Optional[float] = TIMEOUT_S) -> None:
        """Takes the name away, if it has this version (0: any). Who has the object keeps it. Errors: NotFound, VersionChanged."""
        _objects.delete(self, name, version, job, timeout)

    def delete_prefix(self, prefix: str, *, job: bool = False, timeout: Optional[float] = TIMEOUT_S) -> int:
        """Takes away all names that begin with ``prefix``, as :meth:`list` has them now; how many. A version that comes meanwhile stays.
        timeout: seconds for each message. Errors: NotConnected, TimedOut; ValueError for an empty prefix."""
        if not prefix:
            raise ValueError("the prefix is empty, which means all objects; name what is to go")
        return _objects.delete_all(self, prefix, job, timeout)

    def touch(
        self, name: str, *, keep: Optional[float] = None, pin: Optional[bool] = None, job: bool = False, timeout: Optional[float] = TIMEOUT_S
    ) -> None:
        """Counts as a use, and sets what keeps the object.

        keep: from now on it outlives its maker, for so many seconds after its last use; 0 or True: for as long as the broker
        allows; None: as before. A touch cannot end a keep, so keep=False is a ValueError: delete the object, or replace it with
        keep=False. pin: True pins, False lifts a pin, None: as before.

        Errors: NotFound, NoQuota.
        """
        _objects.touch(self, name, keep, pin, job, timeout)

    def stat(self, name: str, *, job: bool = False, timeout: Optional[float] = TIMEOUT_S) -> Optional[ObjectInfo]:
        """What is known of a name, one that is being made too; None: nothing."""
        return _objects.stat(self, name, job, timeout)

    def list(self, prefix: str = "", *, job: bool = False, timeout: Optional[float] = TIMEOUT_S) -> Iterator[ObjectInfo]:
        """What is known of all names that begin with ``prefix``, in the order of their bytes. Asks page by page."""
        return _objects.names(self, prefix, job, timeout)

    def watch(self, prefix: str = "", *, job: bool = False, timeout: Optional[float] = TIMEOUT_S) -> Watch:
        """From now on tells what happens to names that begin with ``prefix``: iterate over it, or read :meth:`Watch.next`.

        timeout: seconds that the broker has to begin it. Errors: :class:`~fdbroker.NoQuota` (too many),
        :class:`~fdbroker.NotConnected`.
        """
        context = self._live().take()
        try:
            return Watch(context, prefix, job, timeout)
        finally:
            context.give_back()

    def notices(self) -> Notices:
        """From now on tells what the broker tells this process: the ends of memory, its own coming and going. Iterate over it.

        A thread of this package reads them from the first call on.
        """
        context = self._live().take()
        try:
            return context.news(News).read()
        finally:
            context.give_back()

    # --- asyncio: a wait takes no thread, and a cancel ends it at once ---

    @_aio.awaited
    async def aget(
        self, name: str, *, device: Optional[str] = None, job: bool = False, timeout: Optional[float] = TIMEOUT_S
    ) -> Object:  # fmt: skip
        """:meth:`get`, awaited. Any number may wait."""
        context = self._live().take()
        try:
            return await _gets.get(context, name, job, parse_device(device), timeout)
        finally:
            context.give_back()

    @_aio.awaited
    async def aopen(
        self, handle: Union[bytes, bytearray, memoryview], shape: Optional[ShapeLike] = None, dtype: Any = "uint8", *,
        writable: bool = False, timeout: Optional[float] = TIMEOUT_S, device: Optional[str] = None,
    ) -> View:  # fmt: skip
        """:meth:`open`, awaited. A driver opens GPU memory in a thread of this package."""
        if device is not None or Handle(handle).kind == _abi.KIND_NAMES[_abi.KIND_CUDA_VMM]:
            opens = functools.partial(self.open, handle, shape, dtype, writable=writable, device=device)
            return await _aio.run(lambda left: opens(timeout=left), timeout)
        context = self._live().take()
        try:
            return await _opens.open_host(context, handle, shape, dtype, writable, timeout)
        finally:
            context.give_back()

    @_aio.awaited
    async def aput(
        self, name: str, value: Any, *, metadata: bytes = b"", expect: Optional[int] = None, timeout: Optional[float] = TIMEOUT_S, **options: Any
    ) -> int:  # fmt: skip
        """:meth:`put`, awaited: a thread of this package copies what has more than 64 KiB, so ``value`` must stay as it is. A cancel ends it
        at once; it may be put by then."""
        return await _objects.aput(self, name, value, metadata, _objects.to_make(**options), expect, timeout)

    @_aio.awaited
    async def acreate(
        self, objects: Mapping[str, Wanted], *, device: Optional[str] = None, metadata: Optional[Mapping[str, bytes]] = None,
        expect: Optional[int] = None, timeout: Optional[float] = TIMEOUT_S, **options: Any,
    ) -> Group:  # fmt: skip
        """:meth:`create`, awaited: a thread of this package makes the memory. What comes after a cancel is given up. Then
        :meth:`Group.aseal <fdbroker.Group.aseal>`."""
        made = _objects.to_make(**options)
        place = parse_device(device)
        return await _groups.acreate(self, lambda: _groups.Asked(objects, metadata, made, place, expect), timeout)

    @_aio.awaited
    async def aempty(self, *arguments: Any, **options: Any) -> Buffer:
        """:meth:`empty`, awaited, in a thread of this package. What comes after a cancel is closed."""
        timeout = options.pop("timeout", TIMEOUT_S)
        return await _aio.run(lambda left: self.empty(*arguments, timeout=left, **options), timeout)

    # --- the connection ---

    @property
    def connected(self) -> bool:
        """Whether the broker can be called now. Sends nothing."""
        try:
            context = self._live().take()
        except Closed:
            return False
        try:
            return bool(_abi.lib.fdbroker_is_connected(context.pointer))
        finally:
            context.give_back()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._context is None

    def flush(self, timeout: Optional[float] = TIMEOUT_S) -> None:
        """Returns when the broker has heard of all that was given back. Errors: TimedOut, NotConnected."""
        sweep()
        self._call(_abi.lib.fdbroker_flush, ms(timeout))

    def stats(self) -> Dict[str, int]:
        """The counters of fdbroker_stats_t: hits, misses, entries, bytes, registrations and others. Sends nothing."""
        stats = _abi.Stats(struct_size=ctypes.sizeof(_abi.Stats))
        self._call(_abi.lib.fdbroker_stats, ctypes.byref(stats))
        return {name: getattr(stats, name) for name in _abi.STATS}

    def empty_cache(self) -> int:
        """Closes all memory of others that the library keeps open though nobody uses it; how many pieces."""
        closed = ctypes.c_uint64()
        sweep()
        self._call(_abi.lib.fdbroker_empty_cache, ctypes.byref(closed))
        return closed.value

    def suspend(self, timeout: Optional[float] = TIMEOUT_S) -> List[Handle]:
        """Before a checkpoint of this process: closes all memory of others that nobody here uses, and gives its leases back. What is still
        in use, at most 253 of it: close that, and call again; an empty list: nothing is. Until :meth:`resume` memory of others that is not
        open raises :class:`~fdbroker.Again`, and what is closed is not kept.

        timeout: seconds that opens of other threads have to end. Errors: TimedOut (it is suspended all the same), NotConnected.
        """
        handles, count = (_abi.Handle * _objects.MOST)(), ctypes.c_size_t()
        try:
            self._call(_abi.lib.fdbroker_suspend, ms(timeout), len(handles), handles, ctypes.byref(count))
        except Again:
            return [from_c(handle) for handle in handles[: count.value]]
        return []

    def resume(self, timeout: Optional[float] = TIMEOUT_S) -> List[Handle]:
        """After the checkpoint: opens again what :meth:`suspend` has closed; the handles of what has ended or could not be opened, at most
        253 of them. Errors: NotConnected (there is no broker now, and it is still suspended: try again)."""
        handles, count = (_abi.Handle * _objects.MOST)(), ctypes.c_size_t()
        try:
            self._call(_abi.lib.fdbroker_resume, ms(timeout), len(handles), handles, None, ctypes.byref(count))
        except Error:
            if not count.value:
                raise
        return [from_c(handle) for handle in handles[: count.value]]

    def close(self) -> None:
        """Ends the connection, once the last memory of it is gone. A second call does nothing."""
        context = self._context
        if context is not None and context.is_forked():
            # The connection is the parent's.
            self._context = None
            return
        sweep()
        self._context = None
        context = self._held.pop("context", None)
        if context is not None:
            context.give_back()
        raise_what_came()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _sys: Any = sys, later: Callable[[BaseException], None] = raise_later) -> None:
        # Once the interpreter takes its modules down, what a broker needs may be gone; the process's end ends the rest.
        try:
            if _sys.meta_path is not None and getattr(self, "_opener_free", None) is not None:
                self.close()
        except BaseException as error:
            later(error)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "connected" if self.connected else "not connected"
        return f"<fdbroker.{type(self).__name__}, {state}>"


def _choice(what: str, choices: Dict[str, int], value: str) -> int:
    if value not in choices:
        raise ValueError(f"{what} is {value!r}; it is one of {', '.join(choices)}")
    return choices[value]


def connect(
    socket: Union[str, "os.PathLike[str]", None] = None, *, name: Optional[str] = None, own_fds: int = 4, arena_bytes: int = 0,
    cache_entries: Optional[int] = None, cache_bytes: Optional[int] = None, timeout: Optional[float] = CONNECT_TIMEOUT_S,
    start: bool = False,
) -> Broker:  # fmt: skip
    """Connects to the broker of this node.

    socket: its path; None: FDBROKER_SOCKET, which ``fdbroker run`` sets, else the user's own broker, else the node's. name: on
    the administrator's screens; None: the command's. own_fds: fds of shared memory that this process has for a moment or holds,
    which are charged to it. arena_bytes: address space for host memory; 0: 64 GiB, or less where that is limited.
    cache_entries, cache_bytes: how much memory of others stays open though nobody uses it; None: FDBROKER_CACHE_MAX_ENTRIES,
    FDBROKER_CACHE_MAX_BYTES, else the library's defaults; 0: no limit. timeout: seconds that it waits for an answer; None: 10.

    start: where there is no broker, one is started, for all programs of this user on the node that ask for it, or those of the scheduler's
    job; FDBROKER_START=1 does the same. It ends some seconds after its last client, not while it holds kept or pinned memory, or by
    ``fdbroker stop``. Where a socket is named or a service is installed (/run/fdbroker is there) none is started: that one is waited for
    until the timeout. A process with more rights than its user starts none.

    Errors: :class:`~fdbroker.NotConnected` (at once when no broker listens; at the end of the timeout when one listens and does not
    answer; or none could be started, which the text explains), :class:`~fdbroker.NotPermitted`, :class:`~fdbroker.Protocol`,
    :class:`~fdbroker.NoQuota`, :class:`~fdbroker.LocalFdLimit`, :class:`~fdbroker.NotSupported` (there is no program to start one with).
    """
    options = _abi.Options()
    _abi.lib.fdbroker_options_init_sized(ctypes.byref(options), ctypes.sizeof(options))
    options.socket = None if socket is None else os.fsencode(socket)
    options.name = None if name is None else name.encode()
    options.own_fds, options.arena_bytes = own_fds, arena_bytes
    options.flags = _abi.OPEN_NOTICES | (_abi.OPEN_START if start else 0)
    options.connect_timeout_ms = ms(CONNECT_TIMEOUT_S if timeout is None else timeout)
    if cache_entries is not None:
        options.cache_max_entries = cache_entries
    if cache_bytes is not None:
        options.cache_max_bytes = cache_bytes
    context = Context(options)
    context.socket = None if socket is None else os.fspath(socket)
    made = Broker(context)
    if start:
        # Who loads a reference need not have asked for it.
        context.socket = made.socket
    return made


def device_count(driver: str) -> int:
    """How many devices ``cuda`` or ``level-zero`` shows here. Errors: NotSupported, which says what is missing."""
    count = ctypes.c_uint32()
    check(_abi.lib.fdbroker_gpu_count(_choice("driver", _abi.DRIVERS, driver), ctypes.byref(count)))
    return count.value


__all__ = ["Broker", "DType", "connect", "device_count", "parse_device"]
