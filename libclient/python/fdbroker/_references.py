"""Memory in a pickle: a reference, never its bytes. What was pickled stays for a while, so that a reader finds it after its maker has let go.

Must never keep memory without a bound in time and bytes, nor hang the end of a process longer than that time.
"""

import ctypes
import math
import os
import threading
import time
import weakref
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import _abi
from ._context import Context, Lease, freeing, ms
from ._default import PerProcess, broker_at
from ._errors import Stale, check
from ._handle import Handle, from_c
from ._types import Shape
from ._waits import wait

if TYPE_CHECKING:
    from ._broker import Broker
    from ._memory import Memory

_PAGE = 4096
#: Bytes of a page for each pickle: a word that its reader writes, which stands in the pickle. One that is loaded late, when the place is
#: another's, writes a word that this one does not wait for.
_WORD = 8
#: Seconds that a reader has to register or open a page.
_PAGE_S = 5.0
#: Between two looks whether a reader has come, when the process ends.
_LOOK_S = 0.005


class _Page:
    """Words that readers write, one for each pickle: its reference was opened."""

    def __init__(self, context: Context) -> None:
        pointer, handle = ctypes.c_void_p(), _abi.Handle()
        self._lease = Lease(context, freeing(pointer, _abi.lib.fdbroker_host_free, context.pointer))
        results = ms(_PAGE_S), ctypes.byref(pointer), ctypes.byref(handle)
        check(wait(_abi.lib.fdbroker_host_alloc, context.pointer, _abi.HOST_MEMORY["arena"], _PAGE, *results))
        self.handle = bytes(from_c(handle))
        self.bytes = (ctypes.c_char * _PAGE).from_address(pointer.value or 0)
        self.free = list(range(0, _PAGE, _WORD))


class _Sent(NamedTuple):
    """Memory that was pickled."""

    until: float
    nbytes: int
    keeper: object
    page: _Page
    at: int
    word: bytes

    @property
    def is_opened(self) -> bool:
        return self.page.bytes[self.at : self.at + _WORD] == self.word


class Transit:
    """What this process has pickled lately, and keeps."""

    def __init__(self) -> None:
        self.seconds, self.most_bytes = 30.0, 1 << 30
        self._lock = threading.Lock()
        self._sent: List[_Sent] = []
        self._pages: "weakref.WeakKeyDictionary[Context, List[_Page]]" = weakref.WeakKeyDictionary()
        self._timer: Optional[threading.Timer] = None
        self._rings_at = math.inf
        # Also in a worker of multiprocessing, which runs no other exit handlers.
        util.Finalize(None, _wait_for_readers, args=(weakref.ref(self),), exitpriority=100)

    def keep(self, context: Context, keeper: object, nbytes: int) -> Tuple[bytes, int]:
        """Keeps what keeps memory of this connection: a page, and what :func:`opened` is to write where."""
        with self._lock:
            self._sweep()
            pages = self._pages.setdefault(context, [])
            page = next((page for page in pages if page.free), None)
            if page is None:
                page = _Page(context)
                pages.append(page)
            at = page.free.pop()
            word = os.urandom(_WORD)
            self._sent.append(_Sent(time.monotonic() + self.seconds, nbytes, keeper, page, at, word))
            self._sweep()
            self._set_timer()
            return page.handle, at + _PAGE * int.from_bytes(word, "little")

    def _sweep(self) -> None:
        """Lets go of what is over its time, and of the oldest beyond the bytes."""
        now, kept, sent = time.monotonic(), sum(one.nbytes for one in self._sent), []
        for one in self._sent:
            if one.until <= now or kept > self.most_bytes:
                kept -= one.nbytes
                one.page.free.append(one.at)
            else:
                sent.append(one)
        self._sent = sent

    def _set_timer(self) -> None:
        until = min((one.until for one in self._sent), default=math.inf)
        if until < self._rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._rings_at = until
            self._timer = threading.Timer(max(until - time.monotonic(), 0) + _LOOK_S, self._ring)
            self._timer.daemon = True
            self._timer.start()

    def _ring(self) -> None:
        with self._lock:
            self._rings_at = math.inf
            self._sweep()
            self._set_timer()

    def wait_for_readers(self) -> None:
        """Until all of it was opened once, or its time is over."""
        while True:
            with self._lock:
                self._sweep()
                if all(one.is_opened for one in self._sent):
                    return
            time.sleep(_LOOK_S)


def _wait_for_readers(transit: "weakref.ref[Transit]") -> None:
    found = transit()
    if found is not None:
        found.wait_for_readers()


_transit: "PerProcess[Transit]" = PerProcess(Transit)


def set_transit(seconds: float = 30.0, nbytes: int = 1 << 30) -> None:
    """How long memory of this process that was pickled is kept after its last pickle, though the process lets go of it, and how much: of
    more than ``nbytes`` the oldest goes first. A process that ends waits that long for the first open of each. seconds: 0: it is not
    kept."""
    ms(seconds)
    transit = _transit.get()
    transit.seconds, transit.most_bytes = seconds, nbytes


def keep(context: Context, keeper: object, nbytes: int) -> Tuple[bytes, int]:
    """Keeps what was pickled: for :func:`opened`, which the reader calls."""
    return _transit.get().keep(context, keeper, nbytes)


def opened(broker: "Broker", page: bytes, at: int) -> None:
    """The reader has it."""
    with broker.open(page, writable=True) as there:
        word, place = divmod(at, _PAGE)
        there.memoryview()[place : place + _WORD] = word.to_bytes(_WORD, "little")


def of_buffer(memory: "Memory", handle: bytes) -> Tuple[Callable[..., Any], Tuple[Any, ...]]:
    """For ``__reduce_ex__``, of this process's own."""
    page, at = keep(memory._context, memory._live(), memory.nbytes)
    return _open, (memory._context.socket, handle, memory.shape, memory.dtype, memory.writable, page, at)


def of_view(memory: "Memory", handle: bytes) -> Tuple[Callable[..., Any], Tuple[Any, ...]]:
    """For ``__reduce_ex__``, of another process's memory, which that one keeps."""
    return _open, (memory._context.socket, handle, memory.shape, memory.dtype, memory.writable)


def of_object(memory: "Memory", name: str, version: int, job: bool) -> Tuple[Callable[..., Any], Tuple[Any, ...]]:
    """For ``__reduce_ex__``, of a named object."""
    return _get, (memory._context.socket, name, version, job)


def _open(
    socket: Optional[str], handle: bytes, shape: Shape, dtype: str, writable: bool, page: Optional[bytes] = None, at: int = 0
) -> Any:  # fmt: skip
    broker = broker_at(socket)
    view = broker.open(Handle(handle), shape, dtype, writable=writable)
    if page is not None:
        opened(broker, page, at)
    return view


def _get(socket: Optional[str], name: str, version: int, job: bool) -> Any:
    got = broker_at(socket).get(name, job=job)
    if got.version != version:
        raise Stale(f"STALE: {name}: version {version} was pickled, and the name leads to version {got.version}")
    return got


__all__ = ["keep", "of_buffer", "of_object", "of_view", "opened", "set_transit"]
