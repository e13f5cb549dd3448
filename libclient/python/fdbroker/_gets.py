"""Gets of asyncio: any number may wait for names that are not there yet. One watch for all of them says which have come.

Must never let one that waits keep another from its object, nor show an object's memory before it has an owner.
"""

import asyncio
import concurrent.futures
import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Callable, Dict, Optional, Set, Tuple

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
        # What the thread that opens it has.
        self._opening: "Optional[concurrent.futures.Future[Watch]]" = None

    @property
    def is_open(self) -> bool:
        """Whether there is a watch, so that no event is missed from now on."""
        return self._watch is not None and self._watch.done()

    def enter(self, name: str) -> asyncio.Event:
        """An event that is set when something may have come of the name, from :meth:`opened` on. To be left."""
        changed = asyncio.Event()
        self._awaited.setdefault(name, set()).add(changed)
        return changed

    async def opened(self, within: float) -> None:
        """Returns when there is a watch. Errors: those of a watch, TimedOut."""
        if self._watch is None:
            self._open()
        assert self._watch is not None, "begun just now"
        watch = self._watch
        if not (await asyncio.wait([watch], timeout=within))[0]:
            raise TimedOut("TIMED_OUT: the broker has begun no watch")
        watch.result()

    def leave(self, name: str, changed: asyncio.Event) -> None:
        waiting = self._awaited[name]
        waiting.discard(changed)
        if not waiting:
            del self._awaited[name]
        if not self._awaited and self._opening is not None:
            self._opening.add_done_callback(_aio.close_result)
            self._watch = self._opening = None

    def _open(self) -> None:
        context, here = self._context(), self._here()
        assert context is not None and here is not None, "a get holds the one, and runs in the other"
        self._opening = _aio.answers.submit(functools.partial(Watch, context, "", self._job, _WATCH_S)).future
        self._watch = _aio.heard(self._opening, here.loop)
        self._watch.add_done_callback(functools.partial(self._opened, weakref.ref(here)))

    def _opened(self, here: "weakref.ref[_aio.Loop]", watch: "asyncio.Future[Watch]") -> None:
        loop = here()
        if watch is self._watch and loop is not None and not watch.cancelled() and watch.exception() is None:
            watch.result().tell(loop, functools.partial(self._read, watch.result()))

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
    left = _aio.clock(timeout)
    names = _names_of(context, job)

    async def ask(flags: int) -> "Object":
        return await _request(context, name, job, device, left, flags)

    async def look() -> "Object":
        """Asks the broker for what is there now. What else is in the way, such as a full cap, it may wait for."""
        try:
            return await ask(_NO_WAIT)
        except (NotFound, NotSealed, NotConnected):
            raise
        except Error:
            if not left():
                raise
        return await ask(0)

    # Where many ask, each does so once, with a watch.
    if timeout == 0 or not (names.is_open or _aio.short_places(context).are_taken):
        try:
            return await look()
        except (NotFound, NotSealed):
            if timeout == 0:
                raise
    changed = names.enter(name)
    try:
        look_again = look
        try:
            await names.opened(left())
        except Error:
            # As many watches as there may be: one of a few places.
            look_again = functools.partial(ask, 0)
        while True:
            changed.clear()
            try:
                return await look_again()
            except (NotFound, NotSealed) as error:
                if not left():
                    raise TimedOut(f"TIMED_OUT after {min(timeout or LONGEST_S, LONGEST_S):g} s: {error}") from None
            timer = asyncio.get_running_loop().call_later(left(), changed.set)
            try:
                await changed.wait()
            finally:
                timer.cancel()
    finally:
        names.leave(name, changed)


async def _request(
    context: Context, name: str, job: bool, device: Optional[Tuple[str, int]], left: Callable[[], float], flags: int
) -> "Object":  # fmt: skip
    taken = (_objects._Object * 1)()
    taken[0].struct_size = ctypes.sizeof(_objects._Object)
    options = _objects.at_device(_objects._options(job, flags), device)
    lease = _objects._lease(context, taken[0])
    arguments = context.pointer, 1, _objects._names([name]), ctypes.byref(options)
    places = _aio.short_places if flags & _NO_WAIT else _aio.places

    def start(under_way: object) -> int:
        # When it has its place.
        code: int = _objects.function("get_start")(*arguments, ms(left()), under_way)
        return code

    def test(under_way: ctypes.c_void_p, lease: object = lease) -> bool:
        return _aio.is_done(_objects.function("get_test")(under_way, taken))

    await _aio.request(places(context), left, lease, start, test, test_in=_aio.answers)
    return _objects._object(context, name, job, taken[0], lease)
