"""Memory of a handle, opened by asyncio, and the view that all opens give.

Must never let opens that wait for a silent owner keep others from memory that is there.
"""

import contextlib
import ctypes
from typing import Any, Callable, Optional, Tuple, Union

from . import _abi, _aio
from ._context import Context, Lease, ms, releasing
from ._errors import Again, NoQuota, OwnerSilent, TimedOut
from ._handle import to_c
from ._memory import View, layout
from ._types import bytes_of

#: Seconds that an open has at first, among many: what is there is open then. Others go on among those that wait.
_SHORT_S = 0.1
#: What an open is told at the end of its time that more time may mend.
_LATER = TimedOut, NoQuota, OwnerSilent, Again


def lease_of(context: Context, imported: _abi.Import) -> Lease:
    """What keeps an import, from before it is there."""
    return Lease(context, releasing(imported, "pin", _abi.lib.fdbroker_import_release, context.pointer))


def view(
    context: Context, lease: Lease, imported: _abi.Import, handle: Union[bytes, bytearray, memoryview],
    shape: Union[int, Tuple[int, ...], None], dtype: Any, place: Optional[Tuple[str, int]], writable: bool,
) -> View:  # fmt: skip
    """What the program gets of an import."""
    sizes, element = layout(imported.size_bytes, shape, dtype)
    nbytes = imported.size_bytes if shape is None else bytes_of(sizes, element)
    made = View(context, lease, imported.ptr or 0, nbytes, sizes, element, device=place, writable=writable)
    # A copy: the library zeroes the struct that is given back.
    made._import, made._handle = _abi.Import.from_buffer_copy(imported), bytes(handle)
    return made


async def open_host(
    context: Context, handle: Union[bytes, bytearray, memoryview], shape: Union[int, Tuple[int, ...], None], dtype: Any, writable: bool,
    timeout: Optional[float],
) -> View:  # fmt: skip
    """The memory of a handle, of the host. The caller holds the connection."""
    left = _aio.clock(timeout)
    wanted, flags = to_c(handle), _abi.IMPORT_WRITE if writable else _abi.IMPORT_READ

    async def ask(places: _aio.Places, left: Callable[[], float]) -> View:
        imported = _abi.Import()
        lease = lease_of(context, imported)

        def start(under_way: object) -> int:
            # When it has its place.
            code: int = _abi.lib.fdbroker_import_start(context.pointer, 1, ctypes.byref(wanted), flags, ms(left()), under_way)
            return code

        def test(under_way: ctypes.c_void_p) -> bool:
            return _aio.is_done(_abi.lib.fdbroker_import_test(under_way, ctypes.byref(imported), None))

        await _aio.request(places, left, lease, start, test)
        return view(context, lease, imported, handle, shape, dtype, None, writable)

    if left() > _SHORT_S:
        with contextlib.suppress(*_LATER):
            return await ask(_aio.short_places(context), _aio.clock(_SHORT_S))
    return await ask(_aio.places(context), left)


__all__ = ["lease_of", "open_host", "view"]
