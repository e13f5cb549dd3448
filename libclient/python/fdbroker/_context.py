"""The connection as the library knows it, and what keeps it: it is closed when the last memory of it is gone.

Must never close a connection whose memory somebody can still see, nor touch the parent's in a forked child.
"""

import ctypes
import os
import threading
from typing import Callable

from . import _abi
from ._errors import Closed, check

#: A timeout in seconds, up to an hour.
LONGEST_S = 3600.0


def ms(timeout: float) -> int:
    """Seconds as the library's milliseconds; ValueError for what is no time."""
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}; it is 0 or more seconds")
    return int(min(timeout, LONGEST_S) * 1000)


class Context:
    """One ``fdbroker_t``, counted: by its Broker and by each piece of memory."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        self._users = 1
        self._lock = threading.Lock()
        self.pid = os.getpid()
        # What the end needs: modules may be gone when the interpreter ends.
        self._getpid, self._close = os.getpid, _abi.lib.fdbroker_close

    @property
    def pointer(self) -> int:
        """For calls. A user must be held meanwhile."""
        return self._pointer

    def take(self) -> "Context":
        """One user more; Closed when there is none any more."""
        with self._lock:
            if self._users == 0:
                raise Closed("the connection is closed; connect anew")
            self._users += 1
        return self

    def give_back(self) -> None:
        """One user less; the last one closes the connection."""
        # In a forked child the lock may be held by a thread that is not here, and the connection is the parent's.
        if self.is_forked():
            return
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self._close(self._pointer)

    def is_forked(self) -> bool:
        """Whether this process is a child of the one that connected."""
        return self._getpid() != self.pid


def give_back(function: Callable[[int, object], object], what: object, context: int) -> None:
    """For :class:`Lease`, with the first two bound: the call that gives something back. Nothing can be done about a failure here, and
    none is known but a fault of this package."""
    # With nothing of this module, which may be gone when the interpreter ends.
    function(context, what)


class Lease:
    """What keeps one piece of memory: released once, by whoever comes first of close, garbage collection and exit.

    ``release`` is called with the context's pointer, and never in a forked child.
    """

    __slots__ = ("_context", "_release", "_lock", "__weakref__")

    def __init__(self, context: Context, release: Callable[[int], object]) -> None:
        self._context = context.take()
        self._release = release
        self._lock = threading.Lock()

    def end(self) -> None:
        """Gives the memory back; a second call does nothing."""
        if self._context.is_forked():
            return
        with self._lock:
            release, self._release = self._release, None  # type: ignore[assignment]
        if release is not None:
            release(self._context.pointer)
            self._context.give_back()

    def __del__(self) -> None:
        # Not there when __init__ raised.
        if getattr(self, "_lock", None) is not None:
            self.end()


def open_context(options: _abi.Options) -> Context:
    """Connects."""
    pointer = ctypes.c_void_p()
    check(_abi.lib.fdbroker_open(ctypes.byref(options), ctypes.byref(pointer)))
    assert pointer.value is not None, "FDBROKER_OK gives a context"
    return Context(pointer.value)
