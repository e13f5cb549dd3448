"""Calls of the library that wait. In the main thread Python's signal handlers run meanwhile, and one that raises, as that of Ctrl-C does,
ends the call at once.

Must never lose the exception of a handler, nor call Python in a thread that did not come from here.
"""

import atexit
import ctypes
import functools
import itertools
import os
import threading
from typing import Any, Callable, Iterator, List

from . import _abi

_main = threading.main_thread().ident
_is_armed = False
#: What a handler raised during the call under way.
_raised: List[BaseException] = []
#: What handlers raised where nothing can be raised: in the collector. The next call that waits or closes something raises it.
_later: List[BaseException] = []


def raise_later(error: BaseException) -> None:
    """Of a destructor, in which Python drops what a handler raises."""
    if threading.get_ident() == _main:
        _later.append(error.with_traceback(None))


def _looks() -> Iterator[int]:
    """Each step runs the handlers that are due; 1: one has raised. A generator, for Python runs handlers as soon as a function begins, before
    its first `try`. It runs them as a loop goes back, too: the inner one is within `try` as a whole."""
    answer = int(bool(_raised))
    while True:
        try:
            while True:
                yield answer
                ctypes.pythonapi.PyErr_CheckSignals()
                answer = 0
        except GeneratorExit:
            return
        except BaseException as error:
            # First of all: a second handler that raises ends the generator here.
            _raised.append(error)
            answer = 1
            # Without this frame: who clears the frames of a traceback would end the generator.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next


# After one generator the next. Called with what the library gives, which is None.
_look = functools.partial(next, itertools.chain.from_iterable(iter(_looks, None)))
_look(None)
_check = _abi.Interrupt(_look)


def _arm() -> None:
    global _is_armed
    _raised.clear()
    _abi.lib.fdbroker_set_interrupt(_check, None)
    _is_armed = True


def raise_what_came() -> None:
    """In the main thread: raises what a handler raised during a call of the library that is none of :func:`wait`, or in the collector."""
    if (_raised or _later) and threading.get_ident() == _main:
        if _raised:
            # With the others, if there are more, for the next calls.
            _later[:0] = _raised
            _arm()
        raise _later.pop(0)


def _after_fork() -> None:
    global _main, _is_armed
    _main, _is_armed = threading.get_ident(), False
    # Those are the parent's to raise.
    _raised.clear()
    _later.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _disarm() -> None:
    """What the interpreter takes down from now on is not called."""
    global _main
    if threading.get_ident() == _main:
        _abi.lib.fdbroker_set_interrupt(_abi.Interrupt(), None)
    _main = None


def wait(function: Callable[..., int], *arguments: Any) -> int:
    """The code of a call. Whatever the call gives must have an owner before: this raises what a handler raises, at any moment."""
    if threading.get_ident() != _main:
        return function(*arguments)
    raise_what_came()
    if not _is_armed:
        _arm()
    code = function(*arguments)
    raise_what_came()
    return code
