"""The library's errors as exceptions: one class for each code, with the library's own words.

Must never lose the text: it names the cap, its holder and the remedy.
"""

import re
from typing import Dict, Type

from ._abi import OK, lib


class Error(Exception):
    """An error of fdbroker. ``code`` is its number in fdbroker.h, ``name`` its name there; the text says what to do."""

    code: int = 0

    @property
    def name(self) -> str:
        """Such as ``NO_QUOTA``."""
        return str(lib.fdbroker_error_name(self.code), "ascii")


class NotConnected(Error, ConnectionError):
    """There is no broker, or this is a forked child, which connects anew."""


class WrongNode(Error):
    """The handle is of another node, or of this node before a reboot."""


class BadHandle(Error, ValueError):
    """No handle of this broker."""


class Stale(Error):
    """The allocation has ended: get a new handle from its owner."""


class NotPermitted(Error, PermissionError):
    """The allocation belongs to somebody else."""


class NoQuota(Error):
    """A cap is full; the text names it and its largest holder."""


class Again(Error):
    """Not ready yet: ask again."""


class TimedOut(Error, TimeoutError):
    """The timeout passed."""


class Cancelled(Error):
    """The request was cancelled."""


class OwnerGone(Error):
    """The process that owned the memory has ended."""


class OwnerSilent(Error):
    """The owner did not export its memory again when asked."""


class LocalFdLimit(Error, OSError):
    """This process has no free fd. Nothing is lost: close some fds, retry."""


class UnsupportedFd(Error):
    """This fd cannot be shared."""


class NotSupported(Error):
    """Not available here; the text says what is missing."""


class Protocol(Error):
    """Library and broker are of releases that do not fit together."""


class ShuttingDown(Error):
    """The broker is going away, or is being drained."""


class Internal(Error):
    """A fault in library, driver or broker, or the system has no memory left."""


class Exists(Error, FileExistsError):
    """Another object has the name, or is being made under it."""


class NotFound(Error, LookupError):
    """No object has the name."""


class NotSealed(Error):
    """The object is being made."""


class Sealed(Error):
    """The group of objects is sealed and cannot be changed."""


class SealedBusy(Error):
    """The memory is still mapped, or used by a device: close it, then seal."""


class Aborted(Error):
    """The group of objects is not in the making any more."""


class VersionChanged(Error):
    """The name has another version than was expected."""


class TooLong(Error):
    """Too many objects, or too much for one answer: ask for less at a time."""


class Lost(Error):
    """The broker was killed, and the owner, which lives, could not give the memory to the next one in time: get a new
    handle."""


class InvalidArgument(Error, ValueError):
    """An argument is not valid."""


class Closed(Error, ValueError):
    """The broker's connection, or the memory, was closed before: it was used too late."""


#: By the numbers of fdbroker.h.
BY_CODE: Dict[int, Type[Error]] = dict(enumerate(
    [NotConnected, WrongNode, BadHandle, Stale, NotPermitted, NoQuota, Again, TimedOut, Cancelled, OwnerGone, OwnerSilent,
     LocalFdLimit, UnsupportedFd, NotSupported, Protocol, ShuttingDown, Internal, Exists, NotFound, NotSealed, Sealed,
     SealedBusy, Aborted, VersionChanged, TooLong, Lost], 1))  # fmt: skip
BY_CODE[64] = InvalidArgument
for _code, _class in BY_CODE.items():
    _class.code = _code


#: Words of the wire and of C, and those of this package.
_WORDS = {"with REPLACE": "with replace=True", "with a deadline": "with a timeout"}


def _in_python(text: str) -> str:
    """The library's text, with the words of this package."""
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return re.sub(r"\(Python: ([^;)]*);[^)]*\)", r"(\1)", text)


def check(code: int) -> None:
    """Raises the exception of a code, with the text of this thread's last failed call."""
    if code != OK:
        error = BY_CODE.get(code, Internal)(_in_python(lib.fdbroker_last_error().decode(errors="replace")))
        error.code = code
        raise error
