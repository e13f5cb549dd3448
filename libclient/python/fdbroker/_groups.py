"""Groups of objects in the making: memory of the host or of a GPU, filled in place, that gets its names at one moment.

Must never let a view see the memory once it is sealed: the library takes it away then, so a group with views is not sealed.
"""

import ctypes
import functools
import gc
import threading
import weakref
from ctypes import c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from . import _abi, _objects
from ._context import Context, Lease, free, ms
from ._errors import Sealed, SealedBusy, check
from ._memory import Memory
from ._types import DType, Shape, count_of, dtype_of, shape_of
from ._waits import wait

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
        sealed: Callable[[], None],
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
            lease, self._lease, self._hold = self._lease, None, None
        if lease is not None:
            lease.end()
        self._sealed()
        return version.value

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

    def _turn(self) -> "threading.Lock":
        """For closing. In a forked child the lock may be held by a thread that is not here."""
        return threading.Lock() if self._context.is_forked() else self._lock

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn():
            self._close_given()
        self.close()


def _close(_context: int, group: object, *, close: Any = _objects._declarations["close"]) -> None:
    # With nothing of this module, which may be gone when the interpreter ends.
    close(group)


#: Of an object to be made: its shape, and its element type.
Wanted = Tuple[Union[int, Tuple[int, ...]], Any]


def create(
    broker: "Broker", objects: Mapping[str, Wanted], metadata: Optional[Mapping[str, bytes]], options: "_objects._Options",
    device: Optional[Tuple[str, int]], expect: Optional[int], timeout: Optional[float],
) -> Group:  # fmt: skip
    """Begins a group."""
    function, kept = _objects.function("create"), []
    members = {name: (shape_of(shape), dtype_of(dtype)) for name, (shape, dtype) in objects.items()}
    new = (_objects._New * len(members))()
    for item, (name, (shape, dtype)) in zip(new, members.items()):
        kept.append(_objects.describe(item, name, shape, dtype, (metadata or {}).get(name, b""), expect))
    _objects.at_device(options, device)
    made, context = c_void_p(), broker._live().take()
    try:
        lease = Lease(context, functools.partial(free, _close, made))
        check(wait(function, context.pointer, len(members), new, ctypes.byref(options), ms(timeout), ctypes.byref(made)))
        sealed = functools.partial(_objects.warn_once, broker, options, next(iter(members), ""), timeout, 3)
        return Group(context, lease, made.value or 0, members, device, sealed)
    finally:
        context.give_back()
        del kept


__all__ = ["Group", "Wanted", "create"]
