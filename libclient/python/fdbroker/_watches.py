"""What happens to names of objects, for the program to follow. Must never give an event twice, nor lose one without saying so."""

import asyncio
import ctypes
import functools
import math
import time
import weakref
from typing import Any, AsyncIterator, Callable, Iterator, List, NamedTuple, Optional

from . import _abi, _aio, _objects
from ._context import LONGEST_S, Context, Lease, freeing, ms
from ._errors import Closed, NotConnected, check
from ._waits import raise_what_came, wait

_KINDS = {1: "sealed", 2: "replaced", 3: "deleted", 4: "evicted", 5: "aborted", 6: "lost"}
#: Seconds after which a wait looks whether the watch was closed, or there is a broker again.
_LOOK_S = 0.5


class WatchEvent(NamedTuple):
    """What has happened to a name."""

    #: ``sealed``: it can be had, under a name that led to nothing. ``replaced``: another version has the name now. ``deleted``, ``evicted`` (to make room): it is gone.
    #: ``aborted``: it was being made, and is not any more. ``lost``: events were lost; a list tells how it stands.
    kind: str
    #: Empty for ``lost``.
    name: str
    #: Of the version that has the name now, or that is gone; 0 of one that was being made. For ``lost``: how many events, 0: nobody knows.
    version: int


def _leave(here: "weakref.ref[_aio.Loop]", token: int) -> None:
    found = here()
    if found is not None:
        found.leave(token)


class Watch:
    """What happens to names with a prefix, in its order: :meth:`Broker.watch <fdbroker.Broker.watch>`.

    ``for event in watch`` waits for each, ``async for`` awaits it; both go on when the broker was lost and is there again, with an event
    ``lost`` first. What nobody reads in time is lost, and an event says so. ``close``, or ``with``, ends it, and the iterations.
    """

    def __init__(self, context: Context, prefix: str, job: bool, timeout: Optional[float]) -> None:
        made = ctypes.c_void_p()
        lease = Lease(context, freeing(made, _objects.function("watch_close")))
        begin = _objects.function("watch")
        check(wait(begin, context.pointer, _objects._checked(prefix), _objects.JOB * job, ms(timeout), ctypes.byref(made)))
        # Each call holds it: the watch ends after the last.
        self._lease: Optional[Lease] = lease
        self._watch = made.value
        # Of each loop that iterates: its event, and a way to set it from any thread.
        self._told: "weakref.WeakKeyDictionary[_aio.Loop, asyncio.Event]" = weakref.WeakKeyDictionary()
        self._leaves: List[Callable[[], None]] = []

    def next(self, timeout: Optional[float] = None) -> Optional[WatchEvent]:
        """The next event; None when none has come in that time. timeout: seconds; None: without an end.

        Errors: Closed; :class:`~fdbroker.NotConnected` while there is no broker.
        """
        until = math.inf if timeout is None else time.monotonic() + ms(timeout) / 1000
        while True:
            lease = self._lease
            if lease is None:
                raise Closed("this watch was closed")
            left = max(until - time.monotonic(), 0.0)
            event = _objects._Event(struct_size=ctypes.sizeof(_objects._Event))
            code = wait(_objects.function("watch_next"), self._watch, ms(min(left, _LOOK_S)), ctypes.byref(event))
            if code != _abi.AGAIN:
                check(code)
                return WatchEvent(_KINDS.get(event.event, str(event.event)), event.name.decode(errors="replace"), event.version)
            if left <= 0:
                return None

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        while True:
            try:
                event = self.next()
            except Closed:
                raise StopIteration from None
            except NotConnected:
                time.sleep(_LOOK_S)
                continue
            assert event is not None, "it waits without an end"
            return event

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        here = _aio.running()
        told = self._told.get(here)
        if told is None:
            told = self._told[here] = asyncio.Event()
            self.tell(here, told.set)
        while True:
            told.clear()
            within = LONGEST_S
            try:
                event = self.next(0)
                if event is not None:
                    return event
            except Closed:
                raise StopAsyncIteration from None
            except NotConnected:
                within = _LOOK_S
            timer = here.loop.call_later(within, told.set)
            try:
                await told.wait()
            finally:
                timer.cancel()

    def tell(self, here: "_aio.Loop", act: Callable[[], None]) -> None:
        """Has the loop call `act` when there is something new after :meth:`next` has found nothing, and once now."""
        token = here.enter(act)
        # A loop that is closed is not kept by what was told of in it.
        self._leaves.append(functools.partial(_leave, weakref.ref(here), token))
        check(_objects.function("watch_tell")(self._watch, here.due, token))

    def close(self) -> None:
        """Ends it. A second call does nothing."""
        self._lease = None
        for leave in self._leaves:
            leave()
        for here, told in list(self._told.items()):
            here.call(told.set)
        raise_what_came()

    def __del__(self) -> None:
        # Not there when __init__ raised.
        for leave in getattr(self, "_leaves", ()):
            leave()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Watch", "WatchEvent"]
