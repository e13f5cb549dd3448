"""Calls of the library that wait. In the main thread Python's signal handlers run meanwhile, and one that raises, as that of Ctrl-C does,
ends the call at once.

Must never lose the exception of a handler, nor call Python in a thread that did not come from here.
"""

import atexit
import ctypes
import os
import threading
from typing import Any, Callable, Iterator, List

from . import _abi

_main = threading.main_thread().ident
_is_armed = False
#: What a handler raised during the call under way.
_raised: List[BaseException] = []
#: What handlers raised where nothing can be raised: in the collector. The next call that waits raises it.
_later: List[BaseException] = []


def raise_later(error: BaseException) -> None:
    """Of a destructor, in which Python drops what a handler raises."""
    if threading.get_ident() == _main:
        _later.append(error.with_traceback(None))


def _looks() -> Iterator[int]:
    """Each step runs the handlers that are due; 1: one has raised. A generator, for Python runs handlers as soon as a function begins, before
    its first `try`."""
    answer = 0
    while True:
        try:
            yield answer
            ctypes.pythonapi.PyErr_CheckSignals()
            answer = 0
        except GeneratorExit:
            return
        except BaseException as error:
            # Without this frame: who clears the frames of a traceback would end the generator.
            _raised.append(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
            answer = 1


_look = _looks()
next(_look)
_check = _abi.Interrupt(_look.send)  # type: ignore[attr-defined]


def _arm() -> None:
    global _is_armed
    _raised.clear()
    _abi.lib.fdbroker_set_interrupt(_check, None)
    _is_armed = True


def _after_fork() -> None:
    global _main, _is_armed
    _main, _is_armed = threading.get_ident(), False


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
    if _later:
        error = _later[0]
        _later.clear()
        raise error
    if not _is_armed or _raised:
        _arm()
    code = function(*arguments)
    if _raised:
        error = _raised[0]
        _arm()
        raise error
    return code
