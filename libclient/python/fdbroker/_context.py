"""The connection as the library knows it, and what keeps it: it is closed when the last memory of it is gone.

Must never close a connection whose memory somebody can still see, nor touch the parent's in a forked child.
"""

import ctypes
import itertools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple

from . import _abi
from ._errors import Closed, check
from ._waits import raise_later, raise_what_came, wait

if TYPE_CHECKING:
    from ._notices import News

#: The longest timeout, in seconds: an hour.
LONGEST_S = 3600.0


def ms(timeout: Optional[float]) -> int:
    """Seconds as the library's milliseconds, None as the longest; ValueError for what is no time."""
    if timeout is None:
        timeout = LONGEST_S
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}; it is 0 or more seconds")
    return int(min(timeout, LONGEST_S) * 1000)


class Context:
    """One ``fdbroker_t``, counted: by its Broker and by each piece of memory. Its end comes with the last of them; with this object, where a
    signal handler has raised in the midst of that; by :func:`sweep`, where one has raised as ``__del__`` begins."""

    def __init__(self, options: _abi.Options) -> None:
        """Connects."""
        self._pointers = (ctypes.c_void_p * 1)()
        # Each call of `next` is one step: between two, a handler may raise. It takes the pointer and closes it; the second does nothing.
        self._closing = map(_abi.lib.fdbroker_close, iter(self._pointers))
        self._users = 1
        self._lock = threading.Lock()
        self.pid = os.getpid()
        #: Of its broker, where the program has named it or had it started: for references to its memory.
        self.socket: Optional[str] = None
        # What tells the program of the broker's notices, from the first time that it wants to know.
        self._news: Optional["News"] = None
        # What the end needs: modules may be gone when the interpreter ends.
        self._getpid = os.getpid
        sweep()
        _unclosed[next(_numbers)] = weakref.ref(self), self._closing
        check(wait(_abi.lib.fdbroker_open, ctypes.byref(options), self._pointers))

    @property
    def pointer(self) -> int:
        """For calls. A user must be held meanwhile."""
        return self._pointers[0] or 0

    def take(self) -> "Context":
        """One user more; Closed when there is none any more."""
        with self._lock:
            if self._users == 0:
                raise Closed("the connection is closed; connect anew")
            self._users += 1
        return self

    def news(self, make: "Callable[[Context], News]") -> "News":
        """What tells of notices, by way of `make` the first time. A user must be held meanwhile."""
        with self._lock:
            if self._news is None:
                self._news = make(self)
            return self._news

    def give_back(self, raise_what_came: Callable[[], None] = raise_what_came) -> None:
        """One user less; the last one closes the connection."""
        # In a forked child the lock may be held by a thread that is not here, and the connection is the parent's.
        if self.is_forked():
            return
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last and (self._news is None or self._news.close()):
            next(self._closing, None)
            raise_what_came()

    def __del__(self, _sys: Any = sys, later: Callable[[BaseException], None] = raise_later) -> None:
        # The interpreter's end ends what is left then, and what a thread of notices has.
        try:
            is_whole = getattr(self, "_getpid", None) is not None and _sys.meta_path is not None
            if is_whole and self._news is None and not self.is_forked():
                next(self._closing, None)
        except BaseException as error:
            later(error)

    def is_forked(self) -> bool:
        """Whether this process is a child of the one that connected."""
        return self._getpid() != self.pid


def give_back(function: Callable[[int, object], object], what: Any, token: str, context: int) -> None:
    """For :class:`Lease`, with all but the last bound: the call that gives something back, by a struct. The library fills it in, `token`
    included, and empties it then. Nothing can be done about a failure here, and none is known but a fault of this package."""
    # With nothing of this module, which may be gone when the interpreter ends.
    if getattr(what, token):
        function(context, what)


def free(function: Callable[[int, object], object], place: ctypes.c_void_p, context: int) -> None:
    """The same by an address, once; nothing where there is none."""
    address, place.value = place.value, None
    if address:
        function(context, address)


class Lease:
    """What keeps one piece of memory: released once, by whoever comes first of close, garbage collection and exit.

    **It is there before the call that gets the memory**, so that an exception at any moment gives the memory back. ``release`` is called
    with the context's pointer, never in a forked child; a second call of it must do nothing, as one before there is memory.

    A signal handler may raise as soon as ``__del__`` begins, and Python never calls that again: :func:`sweep` finds what it left.
    """

    __slots__ = ("_context", "_release", "_lock", "_number", "__weakref__")

    def __init__(self, context: Context, release: Callable[[int], object]) -> None:
        self._context: Optional[Context] = context.take()
        self._release = release
        self._lock = threading.Lock()
        self._number = next(_numbers)
        _unreleased[self._number] = weakref.ref(self), release, context
        if self._number % _SWEEP_EVERY == 0:
            sweep()

    def end(self, raise_what_came: Callable[[], None] = raise_what_came) -> None:
        """Gives the memory back; a second call does nothing."""
        context = self._context
        if context is None or context.is_forked():
            return
        try:
            self._end()
        except BaseException:
            # A signal handler has raised in the middle.
            self._end()
            raise
        raise_what_came()

    def _end(self) -> None:
        with self._lock:
            context = self._context
            if context is not None:
                self._release(context.pointer)
                self._context = None
        # Whoever takes it out gives the connection back.
        if context is not None and _unreleased.pop(self._number, None):
            context.give_back()

    def __del__(self, later: Callable[[BaseException], None] = raise_later) -> None:
        try:
            # Not there when __init__ raised.
            if getattr(self, "_number", None) is not None:
                self.end()
        except BaseException as error:
            later(error)


#: Leases that nobody has ended yet: the lease, what releases it, its connection.
_unreleased: "Dict[int, Tuple[weakref.ref[Lease], Callable[[int], object], Context]]" = {}
#: Connections, and what closes each, once.
_unclosed: "Dict[int, Tuple[weakref.ref[Context], Iterator[int]]]" = {}
_numbers = itertools.count(1)
#: Leases after which it looks for those that a handler kept from their end.
_SWEEP_EVERY = 64
os.register_at_fork(after_in_child=_unreleased.clear)
os.register_at_fork(after_in_child=_unclosed.clear)


def sweep() -> None:
    """Ends the leases and connections that are gone and were not ended."""
    # A copy: the collector may run in the loop, and what it ends leaves the dict. Not a list of its
    # items: to make one makes tuples, at which the collector may run, too.
    for number, (lease, release, context) in _unreleased.copy().items():
        if lease() is None and _unreleased.pop(number, None):
            release(context.pointer)
            context.give_back()
    for number, (connection, closing) in _unclosed.copy().items():
        if connection() is None:
            next(closing, None)
            _unclosed.pop(number, None)
