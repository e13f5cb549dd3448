"""What a process has once: its connection to the broker, for calls that are given none.

Must never give a forked child what is its parent's, nor two threads two of them.
"""

import os
import threading
import weakref
from typing import Any, Callable, Dict, Generic, Optional, TypeVar

from ._broker import Broker, connect

_Value = TypeVar("_Value")


class PerProcess(Generic[_Value]):
    """A value that each process makes once, at its first use; anew when it is not good any more. For all threads."""

    def __init__(self, make: Callable[[], _Value], is_good: Callable[[_Value], bool] = lambda _: True) -> None:
        self._make = make
        self._is_good = is_good
        self.forget()
        # The lock may be held by a thread that a child does not have. Weak: the interpreter's list outlives all modules, and what is here
        # must end while Python code still runs.
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(this()))

    def forget(self) -> None:
        """Begins anew."""
        self._lock = threading.Lock()
        self._value: Optional[_Value] = None

    def get(self, make: Optional[Callable[[], _Value]] = None) -> _Value:
        """The value; ``make`` makes it in another way. Threads that come first wait for the one that makes it."""
        with self._lock:
            value = self._value
            if value is None or not self._is_good(value):
                value = self._value = (make or self._make)()
            return value


def _forget(value: "Optional[PerProcess[Any]]") -> None:
    if value is not None:
        value.forget()


_broker: "PerProcess[Broker]" = PerProcess(connect, lambda broker: not broker.closed)


def default_broker(timeout: Optional[float] = None) -> Broker:
    """The connection of this process, made at its first use; a forked child gets one of its own. timeout: seconds that making it
    waits; None: as :func:`fdbroker.connect`.

    Errors: as :func:`fdbroker.connect`.
    """
    return _broker.get(None if timeout is None else lambda: connect(timeout=timeout))


class _Brokers:
    """Connections by their sockets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Dict[str, Broker] = {}

    def at(self, socket: str) -> Broker:
        with self._lock:
            found = self._known.get(socket)
            if found is None or found.closed:
                found = self._known[socket] = connect(socket)
            return found


_brokers: "PerProcess[_Brokers]" = PerProcess(_Brokers)


def broker_at(socket: Optional[str]) -> Broker:
    """The connection of this process to the broker of a socket, made at its first use; None: :func:`default_broker`."""
    return default_broker() if socket is None else _brokers.get().at(socket)
