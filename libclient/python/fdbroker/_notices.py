"""What the broker tells: notices for the program to follow, and callbacks at the end of memory.

Must never let a callback that raises keep others from being called, nor run one on the library's thread.
"""

import asyncio
import contextlib
import ctypes
import itertools
import math
import queue
import select
import sys
import threading
import time
import weakref
from ctypes import c_uint64
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import _abi, _aio
from ._context import Context, ms
from ._errors import BY_CODE, Closed, Error, Internal, check

if TYPE_CHECKING:
    from ._memory import Memory

_lib = _abi.lib
REVOKED, DRAINED, REGISTRATION_LOST, LOST = 1, 2, 7, 9
_KINDS = {
    REVOKED: "revoked", DRAINED: "drained", 3: "reclaim", 4: "going-away", 5: "disconnected", 6: "reconnected",
    REGISTRATION_LOST: "registration-lost", 8: "supply-refused", LOST: "lost",
}  # fmt: skip
#: Notices that wait for one reader; beyond it the oldest are lost, and counted.
_KEPT = 4096
#: Seconds after which a reader in a thread looks whether it was closed.
_LOOK_S = 0.5


class Notice(NamedTuple):
    """What the broker tells of."""

    #: ``revoked``: memory of another process that this one has open has ended. ``drained``: the last user of ended memory of this process
    #: is gone. ``registration-lost``: memory of this process did not survive the loss of the broker; its handle is void.
    #: ``supply-refused``: the broker refused memory that was exported again. ``going-away``, ``disconnected``, ``reconnected``: of the
    #: broker. ``lost``: notices were lost, for nobody read them in time.
    kind: str
    #: Slot and generation of the allocation, as ``fdbroker ls`` shows them; empty for kinds that have none.
    allocation: str = ""
    #: Why, such as ``OWNER_GONE``; empty for kinds that have no reason.
    reason: str = ""
    #: For ``lost``: how many.
    lost: int = 0


def _notice(told: _abi.Notice) -> Notice:
    kind, code = _KINDS.get(told.kind, str(told.kind)), told.code
    return Notice(
        kind, f"{told.slot}.{told.generation}" if told.slot or told.generation else "",
        _lib.fdbroker_error_name(code).decode() if code else "", told.owner_allocation_id if told.kind == LOST else 0,
    )  # fmt: skip


class Notices:
    """The broker's notices, from :meth:`Broker.notices <fdbroker.Broker.notices>` on: ``for`` waits for each, ``async for`` awaits it.
    ``close``, or ``with``, ends it, and the iterations."""

    def __init__(self, news: "News") -> None:
        self._news: Optional[News] = news
        self._queue: "queue.SimpleQueue[Notice]" = queue.SimpleQueue()
        self._lost = 0
        self._told: "weakref.WeakKeyDictionary[_aio.Loop, asyncio.Event]" = weakref.WeakKeyDictionary()

    def _put(self, notice: Notice) -> None:
        if self._queue.qsize() >= _KEPT:
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()
                self._lost += 1
        self._queue.put(notice)
        self._ring()

    def _ring(self) -> None:
        for here, told in list(self._told.items()):
            here.call(told.set)

    def next(self, timeout: Optional[float] = None) -> Optional[Notice]:
        """The next notice; None when none has come in that time. timeout: seconds; None: without an end. Errors: Closed."""
        until = math.inf if timeout is None else time.monotonic() + ms(timeout) / 1000
        while True:
            if self._news is None:
                raise Closed("these notices were closed")
            lost, self._lost = self._lost, 0
            if lost:
                return Notice("lost", lost=lost)
            left = max(until - time.monotonic(), 0.0)
            try:
                return self._queue.get(left > 0, min(left, _LOOK_S))
            except queue.Empty:
                if left <= 0:
                    return None

    def __iter__(self) -> Iterator[Notice]:
        return self

    def __next__(self) -> Notice:
        try:
            notice = self.next()
        except Closed:
            raise StopIteration from None
        assert notice is not None, "it waits without an end"
        return notice

    def __aiter__(self) -> AsyncIterator[Notice]:
        return self

    async def __anext__(self) -> Notice:
        here = _aio.running()
        told = self._told.get(here)
        if told is None:
            told = self._told[here] = asyncio.Event()
        while True:
            told.clear()
            try:
                notice = self.next(0)
            except Closed:
                raise StopAsyncIteration from None
            if notice is not None:
                return notice
            await told.wait()

    def close(self) -> None:
        """Ends it. A second call does nothing."""
        news, self._news = self._news, None
        if news is not None:
            news.leave(self)
        self._ring()

    def __enter__(self) -> "Notices":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class News:
    """What one connection is told. A thread of this package reads it, from the first time that the program wants to know."""

    def __init__(self, context: Context) -> None:
        self._lock = threading.Lock()
        self._readers: "weakref.WeakSet[Notices]" = weakref.WeakSet()
        self._ends: Dict[Tuple[int, int], Dict[int, Tuple["weakref.ref[Memory]", Callable[[Error], Any]]]] = {}
        self._tokens = itertools.count(1)
        self._is_over = False
        # Whoever ends it has told the thread of it, which may give up `_due` then.
        self.was_told = threading.Event()
        self._due = ctypes.c_void_p()
        check(_lib.fdbroker_due_open(ctypes.byref(self._due)))
        check(_lib.fdbroker_notice_tell(context.pointer, self._due, 0))
        # What was told before is nobody's.
        while self._next(context) is not None:
            pass
        arguments = self, context, self._due
        self._thread = threading.Thread(target=_follow, args=arguments, name="fdbroker-notices", daemon=True)
        self._thread.start()

    @staticmethod
    def _next(context: Context) -> Optional[_abi.Notice]:
        told = _abi.Notice(struct_size=ctypes.sizeof(_abi.Notice))
        code = _lib.fdbroker_notice_next(context.pointer, ctypes.byref(told))
        return told if code == _abi.OK else None

    def read(self) -> Notices:
        reader = Notices(self)
        with self._lock:
            self._readers.add(reader)
        return reader

    def leave(self, reader: Notices) -> None:
        with self._lock:
            self._readers.discard(reader)

    def on_end(self, memory: "Memory", of: Tuple[int, int], act: Callable[[Error], Any]) -> None:
        """Calls `act` when the allocation has ended, if the memory is still there and open then."""
        token = next(self._tokens)
        forget = weakref.ref(self)

        def gone(_: object) -> None:
            news = forget()
            if news is not None:
                news._forget(of, token)

        with self._lock:
            self._ends.setdefault(of, {})[token] = weakref.ref(memory, gone), act

    def _forget(self, of: Tuple[int, int], token: int) -> None:
        # In the collector, perhaps under the lock: steps of a dict alone.
        acts = self._ends.get(of)
        if acts is not None:
            acts.pop(token, None)
            if not acts:
                self._ends.pop(of, None)

    def ended(self, of: Tuple[int, int], error: Error) -> None:
        """Calls what waits for the end of an allocation."""
        with self._lock:
            acts = list((self._ends.pop(of, None) or {}).values())
        for found, act in acts:
            memory = found()
            if memory is not None and not memory.closed:
                _called(act, error)

    def tell(self, told: _abi.Notice) -> None:
        with self._lock:
            readers = list(self._readers)
        notice = _notice(told)
        for reader in readers:
            reader._put(notice)
        if told.kind in (REVOKED, REGISTRATION_LOST):
            words = f"{notice.reason}: {notice.allocation}: this memory has ended"
            error = BY_CODE.get(told.code, Internal)(words)
            error.code = told.code
            self.ended((told.slot, told.generation), error)

    def close(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> bool:
        """Ends the thread, and the iterations, so that the connection may be closed. False: the interpreter ends, which has stopped the
        thread wherever it is; then the connection ends with the process."""
        if is_finalizing():
            return False
        self._is_over = True
        _lib.fdbroker_due_tell(self._due, 0)
        self.was_told.set()
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return True

    @property
    def is_over(self) -> bool:
        return self._is_over


def _called(act: Callable[[Error], Any], error: Error) -> None:
    """One that raises is reported as one in a thread is, and stops nothing."""
    try:
        act(error)
    except BaseException:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _follow(news: News, context: Context, due: ctypes.c_void_p) -> None:
    """The thread: until the connection is to be closed."""
    told, token = select.poll(), c_uint64()
    told.register(_lib.fdbroker_due_fd(due), select.POLLIN)
    while not news.is_over:
        told.poll()
        while _lib.fdbroker_due_take(due, ctypes.byref(token)) == _abi.OK:
            pass
        while not news.is_over:
            one = News._next(context)
            if one is None:
                break
            news.tell(one)
    # A notice may have woken it first.
    news.was_told.wait()
    _lib.fdbroker_due_close(due)


__all__ = ["News", "Notice", "Notices"]
