"""fdbroker: share memory between the processes of a node, on the host and on GPUs, without holding its fds.

    with fdbroker.connect() as broker:                  # or fdbroker.private_broker(max_fds=256)
        a = broker.empty((1024, 1024), "float32")       # a.numpy(): write into it
        handle = a.handle                               # 64 bytes, by value: MPI, a queue, a file

        b = broker.open(handle, a.shape, a.dtype)       # in another process: b.numpy(), no copy, no fd

Must never import numpy or a GPU library unless it is used.
"""

from ._abi import lib as _lib
from ._broker import Broker, connect, device_count
from ._errors import (
    Aborted,
    Again,
    BadHandle,
    Cancelled,
    Closed,
    Error,
    Exists,
    Internal,
    InvalidArgument,
    LocalFdLimit,
    Lost,
    NoQuota,
    NotConnected,
    NotFound,
    NotPermitted,
    NotSealed,
    NotSupported,
    OwnerGone,
    OwnerSilent,
    Protocol,
    Sealed,
    SealedBusy,
    ShuttingDown,
    Stale,
    TimedOut,
    TooLong,
    UnsupportedFd,
    VersionChanged,
    WrongNode,
)
from ._groups import Group
from ._handle import Handle
from ._memory import Buffer, Memory, View
from ._notices import Notice, Notices
from ._objects import KeptEndsWithBroker, Object, ObjectInfo
from ._private import PrivateBroker, private_broker
from ._references import set_transit
from ._watches import Watch, WatchEvent

__version__: str = _lib.fdbroker_version().decode()

#: Those who see a class in a traceback find it here.
for _class in list(globals().values()):
    if isinstance(_class, type):
        _class.__module__ = __name__

__all__ = [
    "Aborted", "Again", "BadHandle", "Broker", "Buffer", "Cancelled", "Closed", "Error", "Exists", "Group", "Handle", "Internal",
    "InvalidArgument", "KeptEndsWithBroker", "LocalFdLimit", "Lost", "Memory", "NoQuota", "NotConnected", "NotFound", "NotPermitted", "NotSealed", "NotSupported", "Notice", "Notices",
    "Object", "ObjectInfo", "OwnerGone", "OwnerSilent", "PrivateBroker", "Protocol", "Sealed", "SealedBusy",
    "ShuttingDown", "Stale", "TimedOut", "TooLong",
    "UnsupportedFd", "VersionChanged", "View", "Watch", "WatchEvent", "WrongNode", "connect", "device_count", "private_broker", "set_transit",
]  # fmt: skip
