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
import queue
import sys
import threading
import weakref
from collections import deque
from typing import Any, Callable, Coroutine, Deque, Dict, Optional, Set, TypeVar, cast

from . import _abi
from ._context import Context, Lease, ms
from ._errors import TimedOut, check
from ._waits import raise_later

_Result = TypeVar("_Result")
_Call = TypeVar("_Call", bound=Callable[..., Coroutine[Any, Any, Any]])
#: Threads of each kind.
_THREADS = 4
#: Requests that a loop has under way with one broker and that may wait there: it lets a connection wait for 64 answers
#: (limits.max_parked_per_client), and other threads need places, too. What is beyond waits here, for its turn. As many again are under
#: way that the broker answers at once.
_UNDER_WAY = 24
#: Seconds that a request has for its turn, though the time of its caller is over: as with a timeout of 0.
_LEAST_S = 0.1

_lib = _abi.lib
_lock = threading.Lock()


def _forget() -> None:
    global _lock, answers, calls, waits
    _lock, answers, calls, waits = threading.Lock(), Threads(), Threads(), Threads()
    _loops.clear()


#: Asks whether a call is to end: the number that stands in its text, 0 or 1. No function of Python's: when the interpreter ends, a thread that
#: wants to run Python is ended where it is, and that must not be in the midst of the library.
_is_stopped = ctypes.cast(ctypes.CDLL(None).atoi, _abi.Interrupt)


class _Work:
    """A call for a thread. `stop` ends it where it waits, as at its deadline."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self._text = ctypes.create_string_buffer(b"0")
        self.future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()

    def stop(self) -> None:
        self._text.raw = b"1\0"
        self.future.cancel()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        # Anew for each call: one that was stopped would stop the next.
        _lib.fdbroker_set_interrupt(_is_stopped, self._text)
        try:
            result = self.call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Threads:
    """A few threads, made when they are needed. They end with the process, which does not wait for them."""

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[_Work]" = queue.SimpleQueue()
        self._count = 0
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], Any]) -> _Work:
        work = _Work(call)
        self._queue.put(work)
        with _lock:
            if not self._idle.acquire(blocking=False) and self._count < _THREADS:
                self._count += 1
                arguments = self._queue, self._idle
                threading.Thread(target=_serve, args=arguments, name=f"fdbroker-{self._count}", daemon=True).start()
        return work


def _serve(works: "queue.SimpleQueue[_Work]", idle: threading.Semaphore) -> None:
    """A thread: one call after the other."""
    while True:
        works.get().run()
        idle.release()


#: For the answers of requests, whose memory a driver may have to open, and what the broker answers at once.
answers = Threads()
#: For starts of requests: they copy, make memory or take it away, and wait for nobody. So a seal, which gives room, waits for no room.
calls = Threads()
#: For calls that wait for the broker or for an owner.
waits = Threads()


def clock(timeout: Optional[float]) -> Callable[[], float]:
    """Tells, in any thread, how many seconds are left of these. ValueError for what is no time."""
    now, seconds = asyncio.get_running_loop().time, ms(timeout) / 1000
    until = now() + seconds
    return lambda: max(until - now(), 0.0)


async def run(call: Callable[[float], _Result], timeout: Optional[float], threads: Optional[Threads] = None) -> _Result:
    """A call in a thread of the module's own, which is told how many seconds it has. When the awaiting task is cancelled, the call ends
    where it waits, and what it still gives is closed. TimedOut where no thread was free in that time. `threads`: not those that wait."""
    left = clock(timeout)
    return await _in_thread(threads or waits, lambda: call(left()), left(), close_result)


async def _in_thread(
    threads: Threads, call: Callable[[], _Result], seconds: Optional[float], give_up: "Callable[[concurrent.futures.Future[Any]], None]"
) -> _Result:  # fmt: skip
    """A call in one of these threads, which takes it in that time, or TimedOut. When it is not awaited any more it ends where it waits, and
    `give_up` is told of it then."""
    work = threads.submit(call)
    future = heard(work.future, asyncio.get_running_loop())
    try:
        done, _ = await asyncio.wait([future], timeout=seconds)
        # One that has begun ends by its own clock.
        if not done and work.future.cancel():
            raise TimedOut(f"TIMED_OUT after {seconds:g} s: {_THREADS} other calls of this program, which copy or wait, came first")
        return await asyncio.shield(future)
    except BaseException:
        work.future.add_done_callback(give_up)
        work.stop()
        raise


def heard(work: "concurrent.futures.Future[_Result]", loop: asyncio.AbstractEventLoop) -> "asyncio.Future[_Result]":
    """A thread's outcome in a loop. Of its error asyncio is not to speak, when the awaiting task is gone or the loop ends first: a
    callback that hears it would come a turn later, maybe never."""
    future: "asyncio.Future[_Result]" = loop.create_future()

    def settle() -> None:
        if future.done() or work.cancelled():
            future.cancel()
            return
        error = work.exception()
        if error is None:
            future.set_result(work.result())
        else:
            future.set_exception(error)
            future.exception()

    def tell(_work: "concurrent.futures.Future[_Result]") -> None:
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    work.add_done_callback(tell)
    return future


def close_result(future: "concurrent.futures.Future[Any]") -> None:
    """Gives up what nobody awaits any more."""
    if not future.cancelled() and future.exception() is None:
        getattr(future.result(), "close", lambda: None)()


class Loop:
    """What an event loop has of the library: the fd that wakes it, and what it wakes. Used by the loop's thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        due = ctypes.c_void_p()
        check(_lib.fdbroker_due_open(ctypes.byref(due)))
        self._close = weakref.finalize(self, _lib.fdbroker_due_close, due.value)
        self.due = due
        self._loop = weakref.ref(loop)
        self._tokens = itertools.count(1)
        self._awaited: Dict[int, Callable[[], None]] = {}
        #: What tasks of the loop await of this package.
        self.calls: "Set[Coroutine[Any, Any, Any]]" = set()
        loop.add_reader(_lib.fdbroker_due_fd(due), _Reader(self))
        #: Of each connection: how many requests are under way, and who waits for a place.
        self.places: "weakref.WeakKeyDictionary[Context, Places]" = weakref.WeakKeyDictionary()
        self.short_places: "weakref.WeakKeyDictionary[Context, Places]" = weakref.WeakKeyDictionary()

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

    def end(self) -> None:
        """The loop is closed: ends what was awaited in it, as its collection would, though the program may keep its tasks."""
        loop = self._loop()
        # Not in a forked child, whose calls are its parent's.
        if loop is None or _loops.pop(loop, None) is not self:
            return
        while self.calls:
            try:
                self.calls.pop().close()
            except BaseException as error:
                # A signal handler has raised in the middle.
                raise_later(error)
        # What iterates in it is not kept by it.
        self._awaited.clear()
        self._close()


class _Reader:
    """What a loop calls when the fd rings. Nobody else has it: so it goes when the loop is closed."""

    def __init__(self, here: Loop) -> None:
        # It must not keep the loop alive.
        self._here = weakref.ref(here)

    def __call__(self) -> None:
        found = self._here()
        if found is not None:
            found.wake()

    def __del__(self, _sys: Any = sys) -> None:
        found = self._here()
        # Once the interpreter takes its modules down the process's end ends the rest.
        if found is not None and _sys.meta_path is not None:
            found.end()


def awaited(call: _Call) -> _Call:
    """For each method that is awaited: it ends with its loop, also with one that is closed meanwhile."""

    @functools.wraps(call)
    async def until_closed(*arguments: Any, **options: Any) -> Any:
        here, under_way = running(), call(*arguments, **options)
        here.calls.add(under_way)
        try:
            return await under_way
        finally:
            here.calls.discard(under_way)

    return cast(_Call, until_closed)


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

    async def take(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """Waits for a place until that time of the loop; then TimedOut."""
        if self._free > 0:
            self._free -= 1
            return
        turn = loop.create_future()
        self._queue.append(turn)
        timer = loop.call_at(until, turn.cancel)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back()
            elif loop.time() >= until:
                raise TimedOut(f"TIMED_OUT: {_UNDER_WAY} other requests of this event loop wait for the broker, and came first") from None
            raise
        finally:
            timer.cancel()

    def give_back(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return
        self._free += 1


def places(context: Context) -> Places:
    """Those of the running loop with a connection, for requests that may wait."""
    return running().places.setdefault(context, Places())


def short_places(context: Context) -> Places:
    """For those that the broker answers at once."""
    return running().short_places.setdefault(context, Places())


def is_done(code: int) -> bool:
    """Whether a test has its outcome; raises that when it is an error. On the thread that has tested."""
    if code == _abi.AGAIN:
        return False
    check(code)
    return True


async def request(
    taken: Places, left: Callable[[], float], owner: Lease, start: Callable[[Any], int], test: Callable[[ctypes.c_void_p], bool], *,
    start_in: Optional[Threads] = None, test_in: Optional[Threads] = None,
) -> None:  # fmt: skip
    """Waits for a request, by a call that starts it and one that tests it; for one of the places as long as time is left. `owner` has
    what it gives, before it is there, and keeps the connection. `start_in`, `test_in`: threads for what copies, or opens memory by a
    driver."""
    here = running()
    # What is asked at the end of its time is asked all the same.
    until = here.loop.time() + max(left(), _LEAST_S)
    await taken.take(here.loop, until)
    under_way = ctypes.c_void_p()
    told = asyncio.Event()
    token = here.enter(told.set)

    def begin(under_way: ctypes.c_void_p) -> bool:
        check(start(ctypes.byref(under_way)))
        return False

    try:
        await _act(begin, under_way, owner, start_in, until - here.loop.time())
        check(_lib.fdbroker_request_tell(under_way, here.due, token))
        # What takes a thread is not tested before its answer can be there.
        is_due = test_in is None
        while True:
            if is_due:
                told.clear()
                if await _act(test, under_way, owner, test_in, None):
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


def _acted(act: Callable[[ctypes.c_void_p], bool], under_way: ctypes.c_void_p) -> bool:
    """A start, or a test. A request that is done is freed."""
    is_over = True
    try:
        is_over = act(under_way)
    finally:
        if is_over:
            under_way.value = None
    return is_over


async def _act(
    act: Callable[[ctypes.c_void_p], bool], under_way: ctypes.c_void_p, owner: Lease, threads: Optional[Threads], seconds: Optional[float]
) -> bool:  # fmt: skip
    """The same, in a thread if need be. A cancel leaves the request to that thread, with its owner: nobody else touches it meanwhile."""
    if threads is None:
        return _acted(act, under_way)
    theirs, under_way.value = ctypes.c_void_p(under_way.value), None
    give_up = functools.partial(_give_up, owner, theirs)
    is_over = await _in_thread(threads, functools.partial(_acted, act, theirs), seconds, give_up)
    under_way.value = theirs.value
    return is_over


def _give_up(_owner: Lease, under_way: ctypes.c_void_p, _future: Any) -> None:
    _lib.fdbroker_request_cancel(under_way)


__all__ = ["Loop", "Places", "answers", "awaited", "calls", "clock", "close_result", "heard", "is_done", "places", "request", "run", "running", "short_places"]
