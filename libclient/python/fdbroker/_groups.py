"""Groups of objects in the making: memory of the host or of a GPU, filled in place, that gets its names at one moment.

Must never let a view see the memory once it is sealed: the library takes it away then, so a group with views is not sealed.
"""

import asyncio
import ctypes
import functools
import gc
import threading
import weakref
from ctypes import c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from . import _abi, _aio, _objects
from ._context import Context, Lease, freeing, ms
from ._errors import Error, Sealed, SealedBusy, check
from ._memory import Memory
from ._types import DType, Shape, count_of, dtype_of, shape_of
from ._waits import raise_what_came, wait

if TYPE_CHECKING:
    from ._broker import Broker

#: FDBROKER_WORK_STREAM.
_WORK_STREAM = 1


class _Hold:
    """What every view of a group keeps: so the group is not given up before the last, and a seal sees whether there is one."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease


class Group:
    """Objects in the making, in one piece of memory: :meth:`Broker.create <fdbroker.Broker.create>`.

    Fill ``group[name]``, drop every array or tensor made of it, and :meth:`seal`. ``with`` gives up a group that is not sealed.
    Threads take turns.
    """

    def __init__(
        self, context: Context, lease: Lease, pointer: int, members: Dict[str, Tuple[Shape, DType]], device: Optional[Tuple[str, int]],
        sealed: Optional[Callable[[], None]],
    ) -> None:  # fmt: skip
        self._context = context
        self._lease: Optional[Lease] = lease
        self._hold: Optional[_Hold] = _Hold(lease)
        self._pointer = pointer
        self._members = members
        self._index = {name: index for index, name in enumerate(members)}
        self._device = device
        self._sealed = sealed
        self._lock = threading.Lock()
        self._given: "weakref.WeakSet[Memory]" = weakref.WeakSet()

    @property
    def names(self) -> List[str]:
        """Of its objects, in their order."""
        return list(self._members)

    def _live(self) -> _Hold:
        if self._hold is None:
            raise Sealed("this group is sealed, or was closed")
        return self._hold

    def __getitem__(self, name: str) -> Memory:
        """The memory of an object, to be written: as :class:`~fdbroker.Memory`, on the group's device. Host memory begins as zeros.

        Errors: KeyError, :class:`~fdbroker.Sealed`, :class:`~fdbroker.Aborted` (the broker that had it is gone).
        """
        index, (shape, dtype) = self._index[name], self._members[name]
        with self._lock:
            hold = self._live()
            if self._device is None:
                pointer = c_void_p()
                check(_objects.function("data")(self._pointer, index, ctypes.byref(pointer), None))
                address = pointer.value or 0
            else:
                place = c_uint64()
                check(_objects.function("device_ptr")(self._pointer, index, ctypes.byref(place)))
                address = place.value
            nbytes = count_of(shape) * dtype.itemsize
            memory = Memory(self._context, hold, address, nbytes, shape, dtype, device=self._device, writable=True)
            self._given.add(memory)
            return memory

    def write(self, name: str, data: Any, offset: int = 0) -> None:
        """Copies bytes of the host into an object, of a GPU's memory too, from ``offset`` bytes on.

        Errors: as for ``group[name]``; :class:`~fdbroker.BadHandle` (out of bounds), :class:`~fdbroker.Internal` (the driver's words).
        """
        source, _, _ = _objects._source(data)
        keeper, address = _objects._address(source)
        with self._lock:
            self._live()
            check(_objects.function("write")(self._pointer, self._index[name], offset, address, source.nbytes))
        del keeper

    def seal(self, *, stream: Optional[int] = None, timeout: Optional[float] = 5.0) -> int:
        """From one moment on all names lead to the objects, and nobody can change them. Their version.

        What ``group[name]`` gave is closed, and its memory goes from this process: :meth:`Broker.get <fdbroker.Broker.get>` opens it
        for reading. stream: of a GPU's group, the driver's stream (``torch.cuda.current_stream().cuda_stream``) whose work is waited
        for; None: all work of the device's context. timeout: seconds for the broker, not for that work.

        Errors: :class:`~fdbroker.SealedBusy` (arrays or tensors made of it are still there: drop them, seal again),
        :class:`~fdbroker.Exists`, :class:`~fdbroker.VersionChanged`, :class:`~fdbroker.NoQuota` (seal again later),
        :class:`~fdbroker.Aborted`, :class:`~fdbroker.TimedOut`, :class:`~fdbroker.NotConnected`.
        """
        with self._lock:
            self._end_views()
            version = c_uint64()
            if stream is None:
                code = wait(_objects.function("seal"), self._pointer, ms(timeout), ctypes.byref(version))
            else:
                code = wait(_objects.function("seal_after"), self._pointer, _WORK_STREAM, stream, ms(timeout), ctypes.byref(version))
            check(code)
        self._over()
        if self._sealed is not None:
            self._sealed()
        return version.value

    @_aio.awaited
    async def aseal(self, *, stream: Optional[int] = None, timeout: Optional[float] = 5.0) -> int:
        """:meth:`seal`, awaited; a thread of this package takes the memory away. A cancel gives the group up, unless it is sealed by
        then."""
        version, left, lease = c_uint64(), _aio.clock(timeout), self._live().lease
        work = (0, None) if stream is None else (_WORK_STREAM, stream)

        def start(under_way: object) -> int:
            with self._lock:
                self._end_views()
                code: int = _objects.function("seal_start")(self._pointer, *work, ms(left()), under_way)
                if code == _abi.OK:
                    # So that other threads leave it alone: whoever waits for the lock has it at once.
                    self._hold = None
                return code

        def test(under_way: c_void_p) -> bool:
            with self._lock:
                try:
                    return _aio.is_done(_objects.function("seal_test")(under_way, ctypes.byref(version)))
                except Error:
                    self._hold = _Hold(self._lease) if self._lease else None
                    raise

        try:
            # The broker answers at once. Never behind those that wait for room, which may be what this one takes.
            await _aio.request(_aio.short_places(self._context), left, lease, start, test, start_in=_aio.calls)
        except (asyncio.CancelledError, GeneratorExit):
            self._lease = self._hold = None
            raise
        self._over()
        if self._sealed is not None:
            sealed = self._sealed
            await _aio.run(lambda _: sealed(), left(), _aio.answers)
        return version.value

    def _over(self) -> None:
        """It is sealed."""
        with self._lock:
            lease, self._lease, self._hold = self._lease, None, None
        if lease is not None:
            lease.end()

    def _end_views(self) -> None:
        """Leaves no view, or raises."""
        seen = weakref.ref(self._live())
        self._close_given()
        self._hold = None
        if seen() is not None:
            # In cycles, or for a moment with another thread's frames.
            gc.collect()
        self._hold = seen()
        if self._hold is not None:
            raise SealedBusy("arrays or tensors that were made of this group are still there; drop them (del), then seal it")
        assert self._lease is not None, "a group that lives has its lease"
        self._hold = _Hold(self._lease)

    def _close_given(self) -> None:
        for memory in list(self._given):
            memory.close()

    def close(self) -> None:
        """Gives up a group that is not sealed, once the last view is gone. A second call does nothing."""
        with self._turn():
            self._lease = self._hold = None
        raise_what_came()

    def _turn(self) -> "threading.Lock":
        """For closing. In a forked child the lock may be held by a thread that is not here."""
        return threading.Lock() if self._context.is_forked() else self._lock

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn():
            self._close_given()
        self.close()


#: Of an object to be made: its shape, and its element type.
Wanted = Tuple[Union[int, Tuple[int, ...]], Any]


class Asked:
    """What a create is told, with what must stay until then."""

    def __init__(
        self, objects: Mapping[str, Wanted], metadata: Optional[Mapping[str, bytes]], options: "_objects._Options",
        device: Optional[Tuple[str, int]], expect: Optional[int],
    ) -> None:  # fmt: skip
        self.members = {name: (shape_of(shape), dtype_of(dtype)) for name, (shape, dtype) in objects.items()}
        new = (_objects._New * len(self.members))()
        self._kept = [
            _objects.describe(item, name, shape, dtype, (metadata or {}).get(name, b""), expect)
            for item, (name, (shape, dtype)) in zip(new, self.members.items())
        ]
        self._options, self._device = _objects.at_device(options, device), device
        self.arguments = len(self.members), new, ctypes.byref(options)

    def begun(self, broker: "Broker", context: Context, lease: Lease, made: c_void_p, timeout: Optional[float]) -> Group:
        """The group that has come of it."""
        sealed = None
        if _objects.warns(broker, self._options):
            sealed = functools.partial(_objects.warn_once, broker, self._options, next(iter(self.members), ""), timeout, 3)
        return Group(context, lease, made.value or 0, self.members, self._device, sealed)


def create(broker: "Broker", asked: Asked, timeout: Optional[float]) -> Group:
    """Begins a group."""
    made, context = c_void_p(), broker._live().take()
    try:
        lease = Lease(context, freeing(made, _objects.function("close")))
        check(wait(_objects.function("create"), context.pointer, *asked.arguments, ms(timeout), ctypes.byref(made)))
        return asked.begun(broker, context, lease, made, timeout)
    finally:
        context.give_back()


async def acreate(broker: "Broker", ask: Callable[[], Asked], timeout: Optional[float]) -> Group:
    """The same, awaited. A thread calls ``ask``, and makes the memory."""
    made, context, asked, left = c_void_p(), broker._live().take(), [], _aio.clock(timeout)
    try:
        lease = Lease(context, freeing(made, _objects.function("close")))

        def start(under_way: object) -> int:
            asked.append(ask())
            code: int = _objects.function("create_start")(context.pointer, *asked[0].arguments, ms(left()), under_way)
            return code

        def test(under_way: c_void_p) -> bool:
            return _aio.is_done(_objects.function("create_test")(under_way, ctypes.byref(made)))

        await _aio.request(_aio.places(context), left, lease, start, test, start_in=_aio.calls)
        return asked[0].begun(broker, context, lease, made, timeout)
    finally:
        context.give_back()


__all__ = ["Asked", "Group", "Wanted", "acreate", "create"]
