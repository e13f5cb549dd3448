"""The connection as the library knows it, and what keeps it: it is closed when the last memory of it is gone.

Must never close a connection whose memory somebody can still see, nor touch the parent's in a forked child.
"""

import ctypes
import itertools
import operator
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
        self._pointer = ctypes.c_void_p()
        self._closing = freeing(self._pointer, _abi.lib.fdbroker_close)
        # One item for each user.
        self._users = [None]
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
        check(wait(_abi.lib.fdbroker_open, ctypes.byref(options), ctypes.byref(self._pointer)))

    @property
    def pointer(self) -> int:
        """For calls. A user must be held meanwhile."""
        return self._pointer.value or 0

    def take(self) -> "Context":
        """One user more; Closed when there is none any more."""
        # One more if there is one, in one step: in Python 3.9 a handler may raise between any two, and would leave a lock taken.
        self._users.extend(itertools.islice(self._users, 1))
        if not self._users:
            raise Closed("the connection is closed; connect anew")
        return self

    def news(self, make: "Callable[[Context], News]") -> "News":
        """What tells of notices, by way of `make` the first time. A user must be held meanwhile."""
        with self._lock:
            if self._news is None:
                self._news = make(self)
            return self._news

    def give_back(self, raise_what_came: Callable[[], None] = raise_what_came) -> None:
        """One user less; the last one closes the connection."""
        # In a forked child the connection is the parent's.
        if self.is_forked():
            return
        self._users.pop()
        if not self._users and (self._news is None or self._news.close()):
            next(self._closing, None)
            self._pointer.value = None
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


def freeing(place: ctypes.c_void_p, function: Callable[..., object], *first: Any) -> Iterator[object]:
    """What calls ``function(*first, address)`` at the first ``next``, with the address that is in the place then, if there is one.

    **One step, and nothing of Python's**: a signal handler may raise between two steps, and modules may be gone when the interpreter ends. Nothing
    can be done about a failure of the call, and none is known but a fault of this package."""
    return map(function, *map(itertools.repeat, first), filter(None, map(operator.attrgetter("value"), (place,))))


def releasing(what: ctypes.Structure, token: str, function: Callable[..., object], context: int) -> Iterator[object]:
    """The same of a struct that the library has filled in, `token` included."""
    return map(function, itertools.repeat(context), filter(operator.attrgetter(token), (what,)))


class Lease:
    """What keeps one piece of memory: released once, by whoever comes first of close, garbage collection and exit.

    **It is there before the call that gets the memory**, so that an exception at any moment gives the memory back. The first ``next`` of
    ``release`` does that; there is none in a forked child.

    A signal handler may raise as soon as ``__del__`` begins, and Python never calls that again: :func:`sweep` finds what it left.
    """

    __slots__ = ("_context", "_release", "_number", "__weakref__")

    def __init__(self, context: Context, release: Iterator[object]) -> None:
        self._context: Optional[Context] = context.take()
        self._release = release
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
            self._end(context)
        except BaseException:
            # A signal handler has raised in the middle.
            self._end(context)
            raise
        raise_what_came()

    def _end(self, context: Context) -> None:
        next(self._release, None)
        self._context = None
        # The call that takes it out gives the connection back.
        if _unreleased.pop(self._number, None):
            context.give_back()

    def __del__(self, later: Callable[[BaseException], None] = raise_later) -> None:
        try:
            # Not there when __init__ raised.
            if getattr(self, "_number", None) is not None:
                self.end()
        except BaseException as error:
            later(error)


#: Leases that nobody has ended yet: the lease, what releases it, its connection.
_unreleased: "Dict[int, Tuple[weakref.ref[Lease], Iterator[object], Context]]" = {}
#: Connections, and what closes each, once.
_unclosed: "Dict[int, Tuple[weakref.ref[Context], Iterator[object]]]" = {}
_numbers = itertools.count(1)
#: Leases after which it looks for those that a handler kept from their end.
_SWEEP_EVERY = 64
#: What stands for an entry that another has taken out.
_NOTHING: Any = None, None, None
os.register_at_fork(after_in_child=_unreleased.clear)
os.register_at_fork(after_in_child=_unclosed.clear)


def sweep() -> None:
    """Ends the leases and connections that are gone and were not ended."""
    # Numbers: the collector, which may run in the loop, takes entries out, and to copy them makes objects, at which it may run, too.
    for number in list(_unreleased):
        lease, release, context = _unreleased.get(number, _NOTHING)
        if lease is not None and lease() is None:
            next(release, None)
            if _unreleased.pop(number, None):
                context.give_back()
    for number in list(_unclosed):
        connection, closing = _unclosed.get(number, _NOTHING[:2])
        if connection is not None and connection() is None:
            next(closing, None)
            _unclosed.pop(number, None)
