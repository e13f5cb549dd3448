"""Memory that is shared: what this process made, and what it opened of others.

Must never let anything see memory that was given back: each view keeps it.
"""

import builtins
import ctypes
import functools
import mmap
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple, Type, TypeVar, Union

from . import _abi, _dlpack
from ._context import Context, ms
from ._errors import Closed, Error, NotConnected, Stale, TimedOut, check
from ._handle import Handle, from_c, to_c
from ._holders import holders
from ._notices import News
from ._types import DType, Shape, count_of, dtype_of, numpy_dtype, shape_of
from ._waits import raise_what_came, wait

if TYPE_CHECKING:
    import numpy

    _Array = numpy.ndarray[Any, Any]

_Self = TypeVar("_Self", bound="Memory")


#: asm-generic/mman-common.h.
_MADV_POPULATE_READ = 22


@functools.lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.lru_cache(maxsize=256)
def _array_type(size: int) -> "Type[ctypes.Array[ctypes.c_ubyte]]":
    """A ctypes array of bytes whose instances can keep something. Types are objects: those of 256 sizes are kept."""
    return type("_Bytes", (ctypes.Array,), {"_length_": size, "_type_": ctypes.c_ubyte})


class Memory:
    """A piece of shared memory, on the host or on a GPU, with a shape and an element type.

    Host memory is seen by :meth:`numpy`, :meth:`memoryview`, DLPack and, from Python 3.12 on, by everything that takes a
    buffer. GPU memory is seen by DLPack and ``__cuda_array_interface__``: ``torch.from_dlpack(memory)``,
    ``cupy.asarray(memory)``. Nothing is copied.

    It is given back by :meth:`close`, by ``with`` or when the last reference is gone. **Views keep it**: an array that
    is still there stays valid after ``close``, and the memory goes with it. What is asked of a closed one raises
    :class:`~fdbroker.Closed`.

    A forked child sees the host memory that this process made, and what nobody can change any more (:attr:`is_final`), whatever it
    closes; other memory is not mapped there: it raises :class:`~fdbroker.NotConnected`.
    """

    #: Whether nobody can change the bytes any more: objects of the host, and memory sealed by its owner that is open for reading.
    is_final = False

    def __init__(
        self, context: Context, lease: object, pointer: int, nbytes: int, shape: Shape, dtype: DType, *, device: Optional[Tuple[str, int]],
        writable: bool,
    ) -> None:  # fmt: skip
        self._context = context
        # What keeps the memory.
        self._lease: Optional[object] = lease
        self._pointer = pointer
        self._device = device
        #: Bytes that may be used.
        self.nbytes = nbytes
        #: Sizes, the slowest axis first (C order).
        self.shape = shape
        self.dtype = dtype.name
        #: Whether this process may write to it.
        self.writable = writable
        self._dtype = dtype

    # --- what it is ---

    @property
    def device(self) -> str:
        """``cpu``, or such as ``cuda:0``."""
        return "cpu" if self._device is None else "%s:%d" % self._device

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._lease is None

    @property
    def pointer(self) -> int:
        """The address of the first byte; of GPU memory a device address. Good as long as this object is not closed."""
        self._here()
        return self._pointer

    def _live(self) -> object:
        if self._lease is None:
            raise Closed("this memory was closed; views made before are still good")
        return self._lease

    def _here(self) -> object:
        """What keeps the memory, in a process that has it."""
        lease = self._live()
        if self._context.is_forked() and not self.is_final and not isinstance(self, Buffer):
            raise NotConnected(f"{self!r} can still change, so a forked child does not have it; connect in the child and open it there")
        return lease

    def _array(self) -> "ctypes.Array[ctypes.c_ubyte]":
        """The bytes, as an object with the buffer protocol which keeps the memory."""
        lease = self._here()
        if self._device is not None:
            raise TypeError(f"memory of {self.device} is not the CPU's; use DLPack or __cuda_array_interface__")
        array = _array_type(self.nbytes).from_address(self._pointer)
        array._lease = lease  # type: ignore[attr-defined]
        return array

    def memoryview(self) -> "builtins.memoryview":
        """The memory as a flat memoryview of bytes; read-only when it was opened for reading.

        Errors: Closed; TypeError for GPU memory.
        """
        view: builtins.memoryview = builtins.memoryview(self._array()).cast("B")
        return view if self.writable else view.toreadonly()

    def populate(self) -> None:
        """Has the kernel map all pages of host memory now, so that the first reading takes no page faults. Does nothing for a GPU's.

        By MADV_POPULATE_READ (Linux 5.14, madvise(2)); where the kernel refuses, a byte of each page is read. Errors: Closed.
        """
        if self._device is not None:
            self._live()
            return
        view = self.memoryview()
        begin = self._pointer - self._pointer % mmap.PAGESIZE
        length = self._pointer + self.nbytes - begin
        if _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), _MADV_POPULATE_READ):
            for offset in range(0, self.nbytes, mmap.PAGESIZE):
                view[offset]

    def __buffer__(self, flags: int) -> "builtins.memoryview":
        """The buffer protocol, from Python 3.12 on."""
        view: Any = self.memoryview()[: count_of(self.shape) * self._dtype.itemsize]
        shape = self.shape
        if self._dtype.code and 0 not in shape:
            view = view.cast(self._dtype.code, shape) if shape else view.cast(self._dtype.code)
        shaped: builtins.memoryview = view
        return shaped

    def numpy(self, shape: Union[int, Tuple[int, ...], None] = None, dtype: Any = None) -> "_Array":
        """The memory as a numpy array, without a copy; read-only when it was opened for reading.

        shape and dtype: others than its own, such as those that the owner told; ValueError when they need more bytes.
        Errors: Closed; TypeError for GPU memory; ImportError without numpy.
        """
        import numpy

        wanted = self._dtype if dtype is None else dtype_of(dtype)
        shape = self._shape(shape, wanted)
        kind = numpy_dtype(wanted)
        if count_of(shape) == 0:
            return numpy.empty(shape, kind)
        return numpy.frombuffer(self.memoryview(), dtype=kind, count=count_of(shape)).reshape(shape)

    def _shape(self, shape: Union[int, Tuple[int, ...], None], dtype: DType) -> Shape:
        if shape is None:
            shape = self.shape if dtype == self._dtype else self.nbytes // dtype.itemsize
        shape = shape_of(shape)
        needed = count_of(shape) * dtype.itemsize
        if needed > self.nbytes:
            raise ValueError(f"{shape} of {dtype.name} are {needed:,} bytes, and there are {self.nbytes:,}")
        return shape

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> "_Array":
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError("another element type needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("memory without an axis has no length")
        return self.shape[0]

    # --- other libraries ---

    def __dlpack_device__(self) -> Tuple[int, int]:
        if self._device is None:
            return _dlpack.CPU, 0
        driver, number = self._device
        return (_dlpack.CUDA if driver == "cuda" else _dlpack.ONE_API), number

    def __dlpack__(
        self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None, dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:  # fmt: skip
        """For ``from_dlpack`` of numpy, PyTorch, CuPy, JAX. ``stream`` is not looked at: whoever wrote the memory, in another
        process, has waited for its work.

        Errors: BufferError for a copy, another device, or memory opened for reading with a consumer of before DLPack 1.0.
        """
        self._here()
        device = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != device):
            raise BufferError("fdbroker shares memory where it is; copy it with the library that takes it")
        return _dlpack.capsule(self._keeper(), self._pointer, self.shape, self._dtype, device, not self.writable, max_version)

    def unmarked(self) -> "Unmarked":
        """The same for ``from_dlpack`` of a library that does not know memory opened for reading, such as JAX, whose arrays are never
        written, and PyTorch: ``jax.numpy.from_dlpack(layer.unmarked())``. A write into it is a segmentation fault, or an illegal
        address on a GPU. Errors: Closed."""
        self._here()
        return Unmarked(self, self.shape, self._dtype)

    def _keeper(self) -> object:
        """What keeps the memory for another library; host memory is looked at once more."""
        return self._array() if self._device is None and self.nbytes else self._here()

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """For CuPy, Numba and ``torch.as_tensor``, version 3 of the interface.

        These keep this object, and nothing else: from now on the memory goes with the object, also after :meth:`close`.
        """
        # An attribute that is not there, for everything that asks all objects for it.
        if self._device is None or self._device[0] != "cuda":
            raise AttributeError("__cuda_array_interface__: this is no CUDA memory")
        self._kept = self._here()
        return {
            "shape": self.shape, "typestr": self._dtype.typestr, "data": (self._pointer, not self.writable), "strides": None,
            "stream": None, "version": 3,
        }  # fmt: skip

    # --- its end ---

    def _allocation(self) -> Tuple[int, int]:
        """Slot and generation."""
        raise NotImplementedError

    def on_end(self, act: Callable[[Error], Any]) -> None:
        """Calls ``act`` once when the memory has ended, unless this object is closed or gone by then: with the reason, such as
        :class:`~fdbroker.OwnerGone`, :class:`~fdbroker.Stale` (given up by its owner, deleted, or replaced and without a reader's
        name), :class:`~fdbroker.Lost`. It stays mapped until this process lets go of it.

        On a thread of this package, where one that raises is reported and stops nothing; at once when it has ended before.
        """
        self._here()
        of, news = self._allocation(), self._context.news(News)
        news.on_end(self, of, act)
        if not self._is_alive() and _abi.lib.fdbroker_is_connected(self._context.pointer):
            news.ended(of, Stale(f"STALE: {of[0]}.{of[1]}: this memory has ended"))

    def _is_alive(self) -> bool:
        return True

    def close(self) -> None:
        """Gives it up. The memory goes when the last view does; a second call does nothing."""
        self._lease = None
        raise_what_came()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- pickles, and copies ---

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{self!r} has no reference that could be pickled; pickle a copy of its bytes")

    def __copy__(self) -> Any:
        raise TypeError("a copy of shared memory is made by broker.array(memory); use this object itself for the same bytes")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.device
        return f"<fdbroker.{type(self).__name__} {self.shape} {self.dtype}, {self.nbytes:,} bytes, {state}>"


class Unmarked:
    """Memory for ``from_dlpack``, without the mark that it is for reading: :meth:`Memory.unmarked`."""

    def __init__(self, memory: Memory, shape: Shape, dtype: DType) -> None:
        self._memory, self._shape, self._dtype = memory, shape, dtype

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._memory.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        memory = self._memory
        return _dlpack.capsule(
            memory._keeper(), memory.pointer, self._shape, self._dtype, memory.__dlpack_device__(), False, None
        )  # fmt: skip


class Buffer(Memory):
    """Memory of this process: :meth:`Broker.empty <fdbroker.Broker.empty>`. It ends when it is closed and all views are gone;
    who has it open keeps it."""

    _retired: Optional[Handle] = None

    @property
    def handle(self) -> Handle:
        """64 bytes that any process of this user on this node can open."""
        return self.handle_at(0)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A reference. The memory stays for a while when this process lets go of it (:func:`fdbroker.set_transit`)."""
        from ._references import of_buffer

        return of_buffer(self, bytes(self.handle))

    def _allocation(self) -> Tuple[int, int]:
        info = self.handle._info()
        return info.slot, info.generation

    def handle_at(self, offset: int, timeout: Optional[float] = 5.0) -> Handle:
        """The handle of the memory from ``offset`` bytes on. It is registered when it is not: within ``timeout`` seconds.

        Errors: as :meth:`Broker.empty <fdbroker.Broker.empty>`.
        """
        self._live()
        if self._retired:
            raise Stale("STALE: this memory was retired, and is not shared any more; make another")
        if not 0 <= offset < max(self.nbytes, 1):
            raise ValueError(f"offset {offset} is not inside {self.nbytes:,} bytes")
        handle, device = _abi.Handle(), 0 if self._device is None else self._device[1]
        place = self._pointer + offset
        check(wait(_abi.lib.fdbroker_get_handle, self._context.pointer, place, device, ms(timeout), ctypes.byref(handle)))
        return from_c(handle)

    def retire(self, timeout: Optional[float] = 5.0) -> None:
        """Takes it back from all others: nobody is granted it any more, and who has it open is told (:meth:`on_end`) and lets go of it where
        it is not used. Returns when nobody has it: then its bytes may change. It stays this process's as long as it is not closed, and
        is not shared again. timeout: seconds.

        Errors: :class:`~fdbroker.TimedOut`, which says who has it still: call it again to wait for longer. :class:`~fdbroker.Stale`: it
        ended with its broker, and nobody knows who has it. :class:`~fdbroker.NotConnected`: nothing was ended.
        """
        self._live()
        # Before the call: what a signal handler ends has begun.
        before, self._retired = self._retired, self._retired or self.handle
        try:
            check(wait(_abi.lib.fdbroker_retire, self._context.pointer, ctypes.byref(to_c(self._retired)), ms(timeout)))
        except NotConnected:
            self._retired = before
            raise
        except TimedOut as error:
            raise TimedOut(f"{error}{holders(self._context, self._retired)}") from None


class View(Memory):
    """Memory of another process, opened here: :meth:`Broker.open <fdbroker.Broker.open>`. No fd is kept."""

    _import: _abi.Import
    _handle: bytes

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A reference to its owner's memory, which the owner keeps."""
        from ._references import of_view

        self._live()
        return of_view(self, self._handle)

    def _allocation(self) -> Tuple[int, int]:
        return self._import.slot, self._import.generation

    def _is_alive(self) -> bool:
        return self.is_current

    @property
    def is_final(self) -> bool:  # type: ignore[override]
        """Whether nobody can change the bytes any more: sealed by its owner, and open for reading. Forked children have it, too."""
        return self._lease is not None and bool(_abi.lib.fdbroker_import_is_final(self._context.pointer, ctypes.byref(self._import)))

    @property
    def is_current(self) -> bool:
        """Whether the owner still has it. Sends nothing. Ask after reading, before trusting the bytes."""
        self._live()
        return bool(_abi.lib.fdbroker_import_is_current(self._context.pointer, ctypes.byref(self._import)))


def layout(nbytes: int, shape: Union[int, Tuple[int, ...], None], dtype: Any) -> Tuple[Shape, DType]:
    """The shape and type of memory of so many bytes; ValueError when they do not fit."""
    found = dtype_of(dtype)
    if shape is None:
        return (nbytes // found.itemsize,), found
    wanted = shape_of(shape)
    if count_of(wanted) * found.itemsize > nbytes:
        raise ValueError(f"{wanted} of {found.name} are {count_of(wanted) * found.itemsize:,} bytes, and there are {nbytes:,}")
    return wanted, found
