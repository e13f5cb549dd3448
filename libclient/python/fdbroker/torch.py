"""PyTorch tensors in shared memory, on the CPU and on CUDA devices: ``import fdbroker.torch``.

    tensor = fdbroker.torch.empty((1024, 1024), broker=broker)       # or a tensor of pool()
    shared = fdbroker.torch.share(tensor, broker)                    # small, picklable
    same = fdbroker.torch.open(shared, broker)                       # in another process: the same bytes

CUDA tensors can be shared when CUDA gives an fd of their memory: those of :func:`pool`, of ``empty(device="cuda:0")``, and those
that PyTorch allocates with ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, as far as they lie in one segment (20 MiB).

Must never copy where it says "the same bytes", nor let memory end while a message that names it is on its way.
"""

import os
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from . import _abi, _native, _references, _safetensors, _state_dicts
from ._broker import Broker, ShapeLike
from ._default import PerProcess, broker_at, default_broker
from ._errors import Error, NotSupported, Stale
from ._memory import Buffer
from ._state_dicts import Plan, StateDict
from ._tensors import bytes_of, device_of, name_of, size_of, span
from ._types import count_of, shape_of


class SharedTensor(NamedTuple):
    """What another process needs to open a tensor: plain data, for pickle, a queue, MPI."""

    #: Of the memory, from the tensor's first element on.
    handle: bytes
    #: Such as ``float32``.
    dtype: str
    shape: Tuple[int, ...]
    #: In elements.
    stride: Tuple[int, ...]


def empty(
    shape: ShapeLike, dtype: "torch.dtype" = torch.float32, device: str = "cpu", broker: Optional[Broker] = None, **options: Any
) -> "torch.Tensor":
    """A tensor with undefined content whose memory can be shared. It lives as long as the tensor does, views included.

    Errors: as :meth:`fdbroker.Broker.empty`.
    """
    sizes = shape_of(shape)
    nbytes = count_of(sizes) * size_of(dtype)
    made = (broker or default_broker()).empty(max(nbytes, 1), device=device, **options)
    return bytes_of(made)[:nbytes].view(dtype).view(sizes)


def copy(tensor: "torch.Tensor", broker: Optional[Broker] = None, **options: Any) -> "torch.Tensor":
    """A contiguous copy whose memory can be shared, on the same device. Errors: as :func:`empty`."""
    made = empty(tuple(tensor.shape), tensor.dtype, device_of(tensor), broker, **options)
    made.copy_(tensor.detach())
    return made


def share(tensor: "torch.Tensor", broker: Optional[Broker] = None) -> SharedTensor:
    """What others need to open the tensor; nothing is copied. Keep the tensor until they have.

    Of a CUDA tensor the current stream's work is waited for, so that others see it.

    Errors: :class:`~fdbroker.NotSupported` when its memory cannot be shared; the text says what to do. Those of
    :meth:`fdbroker.Broker.handle_of`. TypeError for a tensor that is not strided, or not of the CPU or CUDA.
    """
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"a {tensor.layout} tensor of {tensor.device} has no memory to share")
    broker, place = broker or default_broker(), None
    if tensor.device.type == "cuda":
        place = device_of(tensor)
        torch.cuda.current_stream(tensor.device).synchronize()
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    needed = span(shape, stride) * tensor.element_size()
    try:
        handle = broker.handle_of(tensor.data_ptr(), device=place)
    except Stale as error:
        raise NotSupported(
            "this tensor is not in memory that can be shared; make it with fdbroker.torch.empty(), copy() or pool()"
        ) from error
    there = handle.size - handle.offset
    if needed > there:
        raise NotSupported(
            f"this tensor of {needed:,} bytes lies in several CUDA mappings, the first of which ends after {there:,}; allocate it in "
            "fdbroker.torch.pool(), or copy() it"
        )
    return SharedTensor(bytes(handle), name_of(tensor.dtype), shape, stride)


def open(shared: SharedTensor, broker: Optional[Broker] = None, *, timeout: float = 5.0) -> "torch.Tensor":
    """The tensor of another process: the same bytes, on the same device, readable and writable. It keeps the memory.

    Errors: as :meth:`fdbroker.Broker.open`.
    """
    view = (broker or default_broker()).open(shared.handle, writable=True, timeout=timeout)
    dtype = getattr(torch, shared.dtype)
    needed = span(shared.shape, shared.stride) * size_of(dtype)
    if needed > view.nbytes:
        raise ValueError(f"{shared.shape} of {shared.dtype} need {needed:,} bytes, and there are {view.nbytes:,}")
    return bytes_of(view)[:needed].view(dtype).as_strided(shared.shape, shared.stride)


class Ref:
    """A tensor that pickles as a reference: :func:`ref`."""

    def __init__(self, tensor: "torch.Tensor", broker: Broker) -> None:
        #: The tensor.
        self.tensor = tensor
        self._broker = broker

    def __reduce__(self) -> Tuple[Any, ...]:
        shared = share(self.tensor, self._broker)
        context = self._broker._live()
        page, at = _references.keep(context, self.tensor.detach(), self.tensor.numel() * self.tensor.element_size())
        return _load, (context.socket, tuple(shared), page, at)


def _load(socket: Optional[str], shared: Tuple[Any, ...], page: bytes, at: int) -> "torch.Tensor":
    broker = broker_at(socket)
    tensor = open(SharedTensor(*shared), broker)
    _references.opened(broker, page, at)
    return tensor


def ref(tensor: "torch.Tensor", broker: Optional[Broker] = None) -> Ref:
    """What pickles as a reference to the tensor, and is loaded as a tensor of the same bytes, readable and writable. The tensor itself
    stays plain: ``torch.save`` and ``deepcopy`` copy its bytes. It is kept as other memory that was pickled (:func:`fdbroker.set_transit`).

    Errors, when it is pickled: as of :func:`share`.
    """
    return Ref(tensor, broker or default_broker())


# --- memory pools ---


def pool(broker: Optional[Broker] = None) -> "torch.cuda.MemPool":
    """A pool for ``torch.cuda.use_mem_pool``: every tensor allocated in it can be shared. Needs PyTorch 2.5 or later and CUDA.

    The first connection that makes one is the process's for good: keep it open.

    Errors: :class:`~fdbroker.NotSupported`, :class:`~fdbroker.Exists` (another connection has the pool).
    """
    broker = broker or default_broker()
    if not hasattr(torch.cuda, "MemPool"):
        raise NotSupported(f"PyTorch {torch.__version__} has no torch.cuda.MemPool; 2.5 or later has")
    broker._call(_abi.lib.fdbroker_pool_set)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        _native.library_path(), "fdbroker_pool_alloc", "fdbroker_pool_free"
    )
    return torch.cuda.MemPool(allocator.allocator())


# --- state dicts ---


def pack(state: Dict[str, Any], broker: Optional[Broker] = None, *, device: Any = None, timeout: float = 5.0) -> Buffer:
    """All tensors of a state dict, copied into one piece of memory, with their names: one handle for all of them.

    Dtype, shape and strides stay: a tensor that is dense, such as a transposed one or one in ``channels_last``, keeps its strides, any
    other becomes contiguous, as with ``clone()``. Tensors of the same bytes (tied weights, also transposed) stay tied; other views of
    one storage become copies. What is not a tensor is pickled, tensors inside it included.

    device: ``cpu`` or ``cuda:N``; None: where the tensors are. CUDA tensors are copied from device to device, in the current stream,
    which is waited for.

    Errors: as of :meth:`fdbroker.Broker.empty`; :class:`~fdbroker.InvalidArgument` for tensors of several devices and for what has no
    memory, :class:`~fdbroker.NotSupported` for other devices.
    """
    plan = Plan(state)
    made = (broker or default_broker()).empty(plan.nbytes, device=plan.device(device), timeout=timeout)
    _state_dicts.write_and_wait(plan, made)
    return made


def open_state_dict(
    handle: bytes, broker: Optional[Broker] = None, *, readonly: bool = False, timeout: float = 5.0
) -> Dict[str, Any]:  # fmt: skip
    """The state dict that :func:`pack` made, of another process: its tensors are views of the one memory, not copies.

    readonly: the memory is opened for reading; see :func:`get_state_dict`. What is not a tensor was pickled: open only what you trust.
    Errors: as :meth:`fdbroker.Broker.open`; ValueError when it is no packed state.
    """
    view = (broker or default_broker()).open(handle, writable=not readonly, timeout=timeout)
    return _state_dicts.unpack(view, readonly)


def put_state_dict(
    name: str, state: Dict[str, Any], broker: Optional[Broker] = None, *, device: Any = None, metadata: bytes = b"", timeout: float = 5.0,
    **options: Any,
) -> int:  # fmt: skip
    """Makes a named object of a state dict, in memory of its own: all tensors appear at one moment. Its version.

    What is kept of tensors, and where they go, is as for :func:`pack`: CUDA tensors stay on their device, without a way through the
    host. Work that other streams still do on them is the caller's to wait for. Other options and errors as of
    :meth:`fdbroker.Broker.put`, such as ``replace=True``, ``keep=3600``.
    """
    return _state_dicts.put(broker or default_broker(), name, state, device, metadata, timeout, options)


def get_state_dict(
    name: str, broker: Optional[Broker] = None, *, readonly: bool = False, **options: Any
) -> StateDict:  # fmt: skip
    """The state dict of a name, of any process, alive or not: its tensors are views of the one memory, not copies, on the device where
    they were put. It is a dict with ``version``, ``metadata`` and ``is_current``, which says whether there is a newer one.

    They are for reading, and mapped so; PyTorch has no tensors that say it. Writing into one is a segmentation fault, on CUDA an
    illegal address. ``load_state_dict`` copies them; ``clone`` what is to be changed. readonly: tensors of the host come as numpy
    arrays that refuse to be written (bfloat16 as two bytes each); those of CUDA as tensors all the same. What is not a tensor was
    pickled: open only what you trust.

    Options and errors as of :meth:`fdbroker.Broker.get`, such as ``device="cuda:1"``; ValueError when it is no state dict.
    """
    got = (broker or default_broker()).get(name, **options)
    return StateDict(_state_dicts.unpack(got, readonly), got)


# --- safetensors ---


def load_safetensors(
    files: _safetensors.Files, broker: Optional[Broker] = None, *, device: Optional[str] = None, prefix: Optional[str] = None,
    populate: bool = False, keep: Optional[float] = None, pin: Optional[bool] = None, evictable: bool = False, job: bool = False,
    timeout: Optional[float] = 600.0, progress: Optional[_safetensors.Progress] = None,
) -> _safetensors.Weights:  # fmt: skip
    """The tensors of safetensors files, once in memory for all processes of this user: a dict of views by name.

    files: paths, which the first process reads and puts; the others wait for it. Or a text that ends in ``/``: what the names of
    objects begin with that are there, such as ``fdbroker put model/ *.safetensors`` makes: the two are one thing.

    device: ``cpu`` (None) or ``cuda:N``, to which the files go by a small buffer. prefix: what the names of the objects begin with,
    each file's own follows; None: for each file a name that no other has, so that one which was replaced is read anew. With a prefix the
    objects that are there are taken as they are, all of them or none. populate: all pages are mapped now, by :meth:`fdbroker.Memory.populate`, so that the
    first reading costs no faults. keep, pin, evictable, job: as of :meth:`fdbroker.Broker.put`; without keep or pin the names end with
    the process that has read the files, and the tensors stay with those that have them. timeout: seconds to wait for another process's
    reading (None: the longest). progress: is told the bytes that are read, and of how many; None: a line on stderr, if that is a terminal.

    Host tensors are for reading, as those of :func:`get_state_dict`; one that its place in the file does not align is a copy.

    Errors: :class:`~fdbroker.NoQuota` before a byte is read when there is no room for all; :class:`~fdbroker.InvalidArgument` for what
    is no safetensors file, was cut, has holes, or changes while it is read; :class:`~fdbroker.NotSupported` for types that PyTorch has
    not; :class:`~fdbroker.TimedOut` when another process reads longer; :class:`~fdbroker.Exists` when some of a prefix's names are
    there and others not; :class:`~fdbroker.NotFound` for a prefix of no names; OSError of a path; others as of :meth:`fdbroker.Broker.get`.
    """
    broker = broker or default_broker()
    if isinstance(files, str) and files.endswith("/"):
        objects = _safetensors.get(broker, files, device, timeout, job)
    else:
        paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        options = {"keep": keep, "pin": pin, "evictable": evictable, "job": job}
        objects = _safetensors.load(broker, paths, prefix, device, timeout, progress, options)
    if populate:
        for one in objects:
            one.populate()
    return _safetensors.weights(objects)


# --- torch.multiprocessing ---

_PAGE = 4096


class _Underway:
    """Tensors whose messages no process has opened yet. Each message has a byte in a page that the reader sets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: List[Tuple[Buffer, memoryview]] = []
        self._free: List[Tuple[int, int]] = []
        self._kept: Dict[Tuple[int, int], "torch.Tensor"] = {}

    def keep(self, tensor: "torch.Tensor", broker: Broker) -> Tuple[bytes, int]:
        """Keeps a tensor until a reader has opened it: the handle of the page, and which byte."""
        with self._lock:
            self._sweep()
            if not self._free:
                page = broker.zeros(_PAGE)
                self._pages.append((page, page.memoryview()))
                self._free = [(len(self._pages) - 1, at) for at in range(_PAGE)]
            page_number, at = place = self._free.pop()
            self._pages[page_number][1][at] = 0
            self._kept[place] = tensor
            return bytes(self._pages[page_number][0].handle), at

    def _sweep(self) -> None:
        read = [place for place in self._kept if self._pages[place[0]][1][place[1]]]
        for place in read:
            del self._kept[place]
        self._free += read

    def count(self) -> int:
        with self._lock:
            self._sweep()
            return len(self._kept)


_underway: "PerProcess[_Underway]" = PerProcess(_Underway)
_torchs_own: Dict[type, Any] = {}


def _reduce(tensor: "torch.Tensor") -> Any:
    from torch.multiprocessing import reductions

    own = _torchs_own.get(type(tensor), reductions.reduce_tensor)
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda")
    if not is_plain or tensor.numel() == 0 or (tensor.requires_grad and not tensor.is_leaf) or tensor.is_conj() or tensor.is_neg():
        return own(tensor)
    try:
        broker = default_broker()
        shared = _shared_in_place(tensor, broker)
        page, at = _underway.get().keep(tensor.detach(), broker)
    except (Error, ValueError):
        # No broker, a full cap, memory that cannot be shared: as without fdbroker.
        return own(tensor)
    return _rebuild, (tuple(shared), page, at, type(tensor) is torch.nn.Parameter, tensor.requires_grad)


def _shared_in_place(tensor: "torch.Tensor", broker: Broker) -> SharedTensor:
    """As PyTorch does it: a CPU tensor's memory becomes shared memory, so that sender and reader see the same bytes."""
    try:
        return share(tensor, broker)
    except NotSupported:
        if tensor.device.type != "cpu":
            raise
    moved = copy(tensor, broker)
    with torch.no_grad():
        tensor.set_(moved)
    return share(tensor, broker)


def _rebuild(shared: Tuple[Any, ...], page: bytes, at: int, is_parameter: bool, requires_grad: bool) -> "torch.Tensor":
    broker = default_broker()
    tensor = open(SharedTensor(*shared), broker)
    with broker.open(page, writable=True) as read:
        read.memoryview()[at] = 1
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    tensor.requires_grad_(requires_grad)
    return tensor


def install() -> None:
    """Has ``torch.multiprocessing`` send tensors through the broker: no fd for each, and no limit of fds to run into.

    A CPU tensor's own memory becomes shared memory when it is sent first; other tensors that are views of the same storage stay
    where they were, unlike with PyTorch's own way. A sent tensor is kept until its reader has it. What cannot be shared goes
    PyTorch's own way. Each process that reads needs ``import fdbroker`` to work, and the same broker (FDBROKER_SOCKET).
    """
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # noqa: F401  (registers its own first)

    for kind in (torch.Tensor, torch.nn.Parameter):
        known = getattr(ForkingPickler, "_extra_reducers", {}).get(kind)
        if known is not _reduce:
            _torchs_own[kind] = known
            ForkingPickler.register(kind, _reduce)


def uninstall() -> None:
    """Undoes :func:`install`."""
    from multiprocessing.reduction import ForkingPickler

    for kind, own in _torchs_own.items():
        ForkingPickler.register(kind, own)
    _torchs_own.clear()


def underway() -> int:
    """How many tensors that this process has sent are still to be opened."""
    return _underway.get().count()


__all__ = [
    "Ref", "SharedTensor", "StateDict", "copy", "default_broker", "empty", "get_state_dict", "install", "open", "open_state_dict", "pack", "pool",
    "put_state_dict", "ref", "share", "underway", "uninstall",
]  # fmt: skip
