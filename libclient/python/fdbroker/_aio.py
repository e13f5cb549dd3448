"""Waits of asyncio: requests that are started and tested. The library's own thread wakes one fd of each event loop when one may go on.

Must never block a loop, take a thread for a wait, nor use the loop's default executor.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import functools
import itertools
import os
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, TypeVar

from . import _abi
from ._context import Context, Lease
from ._errors import check

_Result = TypeVar("_Result")
#: Threads for copies, for what a driver does, and for calls that the broker answers at once. Waits have none.
_THREADS = 4
#: Requests that a loop has under way with one broker: it lets a connection wait for 64 answers (limits.max_parked_per_client), and other
#: threads need places, too. What is beyond waits here, for its turn.
_UNDER_WAY = 24

_lib = _abi.lib
_executor: Optional[concurrent.futures.ThreadPoolExecutor] = None
_lock = threading.Lock()


def _forget() -> None:
    global _executor, _lock
    _executor, _lock = None, threading.Lock()
    _loops.clear()


def executor() -> concurrent.futures.ThreadPoolExecutor:
    """The module's own threads, made when they are needed."""
    global _executor
    with _lock:
        if _executor is None:
            _executor = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="fdbroker")
        return _executor


async def run(call: Callable[[], _Result]) -> _Result:
    """A call in a thread of the module's own. When the awaiting task is cancelled, what the call still gives is closed."""
    future = asyncio.get_running_loop().run_in_executor(executor(), call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(close_result)
        raise


def close_result(future: "asyncio.Future[Any]") -> None:
    """Gives up what nobody awaits any more."""
    if not future.cancelled() and future.exception() is None:
        getattr(future.result(), "close", lambda: None)()


class Loop:
    """What an event loop has of the library: the fd that wakes it, and what it wakes. Used by the loop's thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        due = ctypes.c_void_p()
        check(_lib.fdbroker_due_open(ctypes.byref(due)))
        weakref.finalize(self, _lib.fdbroker_due_close, due.value)
        self.due = due
        self._loop = weakref.ref(loop)
        self._tokens = itertools.count(1)
        self._awaited: Dict[int, Callable[[], None]] = {}
        self._fd = _lib.fdbroker_due_fd(due)
        # The callback must not keep the loop alive.
        loop.add_reader(self._fd, _wake, weakref.ref(self))
        #: Of each connection: how many requests are under way, and who waits for a place.
        self.places: "weakref.WeakKeyDictionary[Context, Places]" = weakref.WeakKeyDictionary()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        assert loop is not None, "it runs"
        return loop

    def call(self, act: Callable[[], None]) -> None:
        """Has the loop call `act`, from any thread; not one that is closed."""
        loop = self._loop()
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(act)

    def enter(self, act: Callable[[], None]) -> int:
        """A token, by which `act` is called whenever it is told."""
        token = next(self._tokens)
        self._awaited[token] = act
        return token

    def leave(self, token: int) -> None:
        self._awaited.pop(token, None)

    def wake(self) -> None:
        token = ctypes.c_uint64()
        while _lib.fdbroker_due_take(self.due, ctypes.byref(token)) == _abi.OK:
            act = self._awaited.get(token.value)
            if act is not None:
                act()


def _wake(loop: "weakref.ref[Loop]") -> None:
    found = loop()
    if found is not None:
        found.wake()


_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Loop]" = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_forget)


def running() -> Loop:
    """That of the running loop."""
    loop = asyncio.get_running_loop()
    with _lock:
        found = _loops.get(loop)
        if found is None:
            found = _loops[loop] = Loop(loop)
        return found


class Places:
    """The places for requests of one loop with one connection: first come, first served."""

    def __init__(self) -> None:
        self._free = _UNDER_WAY
        self._queue: "Deque[asyncio.Future[None]]" = deque()

    @property
    def are_taken(self) -> bool:
        """All of them."""
        return self._free == 0

    async def take(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn = loop.create_future()
        self._queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return
        self._free += 1


def places(context: Context) -> Places:
    """Those of the running loop with a connection."""
    return running().places.setdefault(context, Places())


def is_done(code: int) -> bool:
    """Whether a test has its outcome; raises that when it is an error. On the thread that has tested."""
    if code == _abi.AGAIN:
        return False
    check(code)
    return True


async def request(
    context: Context, owner: Lease, start: Callable[[Any], int], test: Callable[[ctypes.c_void_p], bool], in_thread: bool
) -> None:  # fmt: skip
    """Waits for a request, by a call that starts it and one that tests it. `owner` has what it gives, before it is there, and keeps the
    connection. `in_thread`: the test may open memory by a driver."""
    here, taken = running(), places(context)
    await taken.take(here.loop)
    under_way = ctypes.c_void_p()
    told = asyncio.Event()
    token = here.enter(told.set)
    try:
        check(start(ctypes.byref(under_way)))
        check(_lib.fdbroker_request_tell(under_way, here.due, token))
        # What takes a thread is not tested before its answer can be there.
        is_due = not in_thread
        while True:
            if is_due:
                told.clear()
                if in_thread:
                    is_over = await _in_thread(here.loop, owner, test, under_way)
                else:
                    is_over = _test(test, under_way)
                if is_over:
                    return
            is_due = True
            within = _lib.fdbroker_request_due_ms(under_way) / 1000
            timer = here.loop.call_later(within, told.set)
            try:
                await told.wait()
            finally:
                timer.cancel()
    finally:
        here.leave(token)
        _lib.fdbroker_request_cancel(under_way)
        taken.give_back()


def _test(test: Callable[[ctypes.c_void_p], bool], under_way: ctypes.c_void_p) -> bool:
    """A test. A request that is done is freed."""
    is_over = True
    try:
        is_over = test(under_way)
    finally:
        if is_over:
            under_way.value = None
    return is_over


async def _in_thread(
    loop: asyncio.AbstractEventLoop, owner: Lease, test: Callable[[ctypes.c_void_p], bool], under_way: ctypes.c_void_p
) -> bool:  # fmt: skip
    """A test in a thread. A cancel leaves the request to that thread, with its owner: nobody else touches it meanwhile."""
    theirs, under_way.value = ctypes.c_void_p(under_way.value), None
    future = executor().submit(_test, test, theirs)
    try:
        is_over = await asyncio.shield(asyncio.wrap_future(future, loop=loop))
    except BaseException:
        future.add_done_callback(functools.partial(_give_up, owner, theirs))
        raise
    under_way.value = theirs.value
    return is_over


def _give_up(_owner: Lease, under_way: ctypes.c_void_p, _future: Any) -> None:
    _lib.fdbroker_request_cancel(under_way)


__all__ = ["Loop", "close_result", "executor", "is_done", "places", "request", "run", "running"]
