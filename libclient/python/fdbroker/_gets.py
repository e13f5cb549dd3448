"""Gets of asyncio: any number may wait for names that are not there yet. One watch for all of them says which have come.

Must never let one that waits keep another from its object, nor show an object's memory before it has an owner.
"""

import asyncio
import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Dict, Optional, Set, Tuple

from . import _aio, _objects
from ._context import LONGEST_S, Context, ms
from ._errors import Error, NotConnected, NotFound, NotSealed, TimedOut
from ._watches import Watch

if TYPE_CHECKING:
    from ._objects import Object

_NO_WAIT = 4096
#: Seconds that the broker has to begin a watch.
_WATCH_S = 5.0


class Names:
    """The names that gets of one loop wait for, over one connection."""

    def __init__(self, context: "weakref.ref[Context]", job: bool, here: "weakref.ref[_aio.Loop]") -> None:
        self._context, self._job, self._here = context, job, here
        self._awaited: Dict[str, Set[asyncio.Event]] = {}
        self._watch: "Optional[asyncio.Future[Watch]]" = None

    @property
    def is_open(self) -> bool:
        """Whether there is a watch, so that no event is missed from now on."""
        return self._watch is not None and self._watch.done()

    def enter(self, name: str) -> asyncio.Event:
        """An event that is set when something may have come of the name, from :meth:`opened` on. To be left."""
        changed = asyncio.Event()
        self._awaited.setdefault(name, set()).add(changed)
        return changed

    async def opened(self) -> None:
        """Returns when there is a watch. Errors: those of a watch."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._open())
        await asyncio.shield(self._watch)

    def leave(self, name: str, changed: asyncio.Event) -> None:
        waiting = self._awaited[name]
        waiting.discard(changed)
        if not waiting:
            del self._awaited[name]
        if not self._awaited and self._watch is not None:
            if not self._watch.get_loop().is_closed():
                self._watch.add_done_callback(_aio.close_result)
            self._watch = None

    async def _open(self) -> Watch:
        context, here = self._context(), self._here()
        assert context is not None and here is not None, "a get holds the one, and runs in the other"
        watch = await _aio.run(lambda: Watch(context, "", self._job, _WATCH_S))
        watch.tell(here, functools.partial(self._read, watch))
        return watch

    def _read(self, watch: Watch) -> None:
        try:
            for event in iter(lambda: watch.next(0), None):
                for name in list(self._awaited) if event.kind == "lost" else [event.name]:
                    self._ring(name)
        except Error:
            # Each asks, and hears it.
            for name in list(self._awaited):
                self._ring(name)

    def _ring(self, name: str) -> None:
        for changed in self._awaited.get(name, ()):
            changed.set()


# Of each loop, the connections' names, of the user and of the job.
_names: "weakref.WeakKeyDictionary[_aio.Loop, weakref.WeakKeyDictionary[Context, Dict[bool, Names]]]" = weakref.WeakKeyDictionary()


def _names_of(context: Context, job: bool) -> Names:
    here = _aio.running()
    of_loop = _names.setdefault(here, weakref.WeakKeyDictionary())
    of_context = of_loop.setdefault(context, {})
    if job not in of_context:
        of_context[job] = Names(weakref.ref(context), job, weakref.ref(here))
    return of_context[job]


async def get(
    context: Context, name: str, job: bool, device: Optional[Tuple[str, int]], timeout: Optional[float]
) -> "Object":  # fmt: skip
    """The object of a name. The caller holds the connection."""
    seconds = LONGEST_S if timeout is None else min(timeout, LONGEST_S)
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    names = _names_of(context, job)

    async def ask(flags: int) -> "Object":
        return await _request(context, name, job, device, max(until - clock(), 0), flags)

    async def look() -> "Object":
        """Asks the broker for what is there now. What else is in the way, such as a full cap, it may wait for."""
        try:
            return await ask(_NO_WAIT)
        except (NotFound, NotSealed, NotConnected):
            raise
        except Error:
            if clock() >= until:
                raise
        return await ask(0)

    ms(timeout)
    # Where many ask, each does so once, with a watch.
    if timeout == 0 or not (names.is_open or _aio.places(context).are_taken):
        try:
            return await look()
        except (NotFound, NotSealed):
            if timeout == 0:
                raise
    changed = names.enter(name)
    try:
        try:
            await names.opened()
        except Error:
            # As many watches as there may be: one of a few places.
            return await ask(0)
        while True:
            changed.clear()
            try:
                return await look()
            except (NotFound, NotSealed) as error:
                if clock() >= until:
                    raise TimedOut(f"TIMED_OUT after {seconds:g} s: {error}") from None
            timer = asyncio.get_running_loop().call_later(until - clock(), changed.set)
            try:
                await changed.wait()
            finally:
                timer.cancel()
    finally:
        names.leave(name, changed)


async def _request(
    context: Context, name: str, job: bool, device: Optional[Tuple[str, int]], timeout: float, flags: int
) -> "Object":  # fmt: skip
    taken = (_objects._Object * 1)()
    taken[0].struct_size = ctypes.sizeof(_objects._Object)
    options = _objects.at_device(_objects._options(job, flags), device)
    lease = _objects._lease(context, taken[0])
    arguments = context.pointer, 1, _objects._names([name]), ctypes.byref(options), ms(timeout)
    start = functools.partial(_objects.function("get_start"), *arguments)

    def test(under_way: ctypes.c_void_p, lease: object = lease) -> bool:
        return _aio.is_done(_objects.function("get_test")(under_way, taken))

    await _aio.request(context, lease, start, test, True)
    return _objects._object(context, name, job, taken[0], lease)
