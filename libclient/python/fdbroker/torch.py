"""PyTorch tensors in shared memory, on the CPU and on CUDA devices: ``import fdbroker.torch``.

    tensor = fdbroker.torch.empty((1024, 1024), broker=broker)       # or a tensor of pool()
    shared = fdbroker.torch.share(tensor, broker)                    # small, picklable
    same = fdbroker.torch.open(shared, broker)                       # in another process: the same bytes

CUDA tensors can be shared when CUDA gives an fd of their memory: those of :func:`pool`, of ``empty(device="cuda:0")``, and those
that PyTorch allocates with ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, as far as they lie in one segment (20 MiB).

Must never copy where it says "the same bytes", nor let memory end while a message that names it is on its way.
"""

import os
import pickle
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.utils.dlpack

from . import _abi, _dlpack, _native
from ._broker import Broker, ShapeLike, connect
from ._errors import Error, NotSupported, Stale
from ._memory import Buffer
from ._types import dtype_of, shape_of

_default: Tuple[int, Optional[Broker]] = (0, None)


def default_broker() -> Broker:
    """The connection of this process, made at its first use; a forked child gets one of its own.

    Errors: as :func:`fdbroker.connect`.
    """
    global _default
    pid, broker = _default
    if pid != os.getpid() or broker is None or broker.closed:
        broker = connect()
        _default = os.getpid(), broker
    return broker


class SharedTensor(NamedTuple):
    """What another process needs to open a tensor: plain data, for pickle, a queue, MPI."""

    #: Of the memory, from the tensor's first element on.
    handle: bytes
    #: Such as ``float32``.
    dtype: str
    shape: Tuple[int, ...]
    #: In elements.
    stride: Tuple[int, ...]


def _span(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> int:
    """Elements from the first to behind the last."""
    return 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, stride))


def _name(dtype: "torch.dtype") -> str:
    return str(dtype).rsplit(".", 1)[-1]


def empty(
    shape: ShapeLike, dtype: "torch.dtype" = torch.float32, device: str = "cpu", broker: Optional[Broker] = None, **options: Any
) -> "torch.Tensor":
    """A tensor with undefined content whose memory can be shared. It lives as long as the tensor does, views included.

    Errors: as :meth:`fdbroker.Broker.empty`.
    """
    size = torch.empty(0, dtype=dtype).element_size()
    sizes, count = shape_of(shape), 1
    for n in sizes:
        count *= n
    made = (broker or default_broker()).empty(max(count * size, 1), device=device, **options)
    return torch.from_dlpack(made)[: count * size].view(dtype).view(sizes)


def copy(tensor: "torch.Tensor", broker: Optional[Broker] = None, **options: Any) -> "torch.Tensor":
    """A contiguous copy whose memory can be shared, on the same device. Errors: as :func:`empty`."""
    made = empty(tuple(tensor.shape), tensor.dtype, _device(tensor), broker, **options)
    made.copy_(tensor.detach())
    return made


def _device(tensor: "torch.Tensor") -> str:
    return "cpu" if tensor.device.type == "cpu" else f"cuda:{tensor.device.index or 0}"


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
        place = _device(tensor)
        torch.cuda.current_stream(tensor.device).synchronize()
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    needed = _span(shape, stride) * tensor.element_size()
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
    return SharedTensor(bytes(handle), _name(tensor.dtype), shape, stride)


def open(shared: SharedTensor, broker: Optional[Broker] = None, *, timeout: float = 5.0) -> "torch.Tensor":
    """The tensor of another process: the same bytes, on the same device, readable and writable. It keeps the memory.

    Errors: as :meth:`fdbroker.Broker.open`.
    """
    view = (broker or default_broker()).open(shared.handle, writable=True, timeout=timeout)
    dtype = getattr(torch, shared.dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    needed = _span(shared.shape, shared.stride) * size
    if needed > view.nbytes:
        raise ValueError(f"{shared.shape} of {shared.dtype} need {needed:,} bytes, and there are {view.nbytes:,}")
    return torch.from_dlpack(view)[:needed].view(dtype).as_strided(shared.shape, shared.stride)


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

#: Tensors in a packed state begin at multiples of this, so that any vector instruction can load them.
_ALIGNMENT = 256
_MAGIC = b"fdbroker-state-1"


def pack(state: Dict[str, Any], broker: Optional[Broker] = None, *, device: str = "cpu") -> Buffer:
    """All tensors of a state dict, copied into one piece of memory, with their names: one handle for all of them.

    What is not a tensor is pickled. device: where the memory is; of a GPU ``open_state_dict`` gives tensors there.
    Errors: as :meth:`fdbroker.Broker.empty`.
    """
    rows: List[Tuple[str, str, Tuple[int, ...], int]] = []
    others, tensors, end = {}, [], 0
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            others[name] = value
            continue
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + value.numel() * value.element_size()
        rows.append((name, _name(value.dtype), tuple(value.shape), begin))
        tensors.append(value)
    table = pickle.dumps((list(state), rows, others))
    head = _MAGIC + len(table).to_bytes(8, "little") + table
    start = -(-len(head) // _ALIGNMENT) * _ALIGNMENT
    made = (broker or default_broker()).empty(start + end, device=device)
    flat = torch.from_dlpack(made)
    flat[: len(head)].copy_(torch.frombuffer(bytearray(head), dtype=torch.uint8))
    for (_, _, shape, begin), value in zip(rows, tensors):
        if value.numel():
            length = value.numel() * value.element_size()
            flat[start + begin : start + begin + length].view(value.dtype).view(shape).copy_(value.detach())
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
    return made


def open_state_dict(handle: bytes, broker: Optional[Broker] = None, *, timeout: float = 5.0) -> Dict[str, Any]:
    """The state dict that :func:`pack` made, of another process: its tensors are views of the one memory, not copies.

    What is not a tensor was pickled: open only what you trust. Errors: as :meth:`fdbroker.Broker.open`; ValueError when it is no
    packed state.
    """
    flat = torch.from_dlpack((broker or default_broker()).open(handle, writable=True, timeout=timeout))
    return _unpack(flat)


def put_state_dict(name: str, state: Dict[str, Any], broker: Optional[Broker] = None, **options: Any) -> int:
    """Makes a named object of a state dict, copied to the host: all tensors appear at one moment. Its version.

    Options and errors as of :meth:`fdbroker.Broker.put`, such as ``replace=True``, ``keep=3600``.
    """
    broker = broker or default_broker()
    with pack(state, broker) as packed:
        return broker.put(name, packed, **options)


def get_state_dict(name: str, broker: Optional[Broker] = None, **options: Any) -> Dict[str, Any]:
    """The state dict of a name, of any process, alive or not: its tensors are views of the one memory, not copies.

    They are for reading: PyTorch cannot say so, and writing into one is a segmentation fault. ``load_state_dict`` copies them; ``clone``
    what is to be changed. What is not a tensor was pickled: open only what you trust.

    Options and errors as of :meth:`fdbroker.Broker.get`; ValueError when it is no state dict.
    """
    got = (broker or default_broker()).get(name, **options)
    # Without the mark that it is for reading, which PyTorch does not know.
    capsule = _dlpack.capsule(got._array(), got.pointer, (got.nbytes,), dtype_of("uint8"), got.__dlpack_device__(), False, None)
    return _unpack(torch.utils.dlpack.from_dlpack(capsule))


def _unpack(flat: "torch.Tensor") -> Dict[str, Any]:
    head = len(_MAGIC) + 8
    begin = bytes(flat[:head].tolist())
    if begin[:-8] != _MAGIC:
        raise ValueError("this memory is no state dict of fdbroker.torch.pack()")
    length = int.from_bytes(begin[-8:], "little")
    names, rows, others = pickle.loads(bytes(flat[head : head + length].tolist()))
    start = -(-(head + length) // _ALIGNMENT) * _ALIGNMENT
    found = dict(others)
    for name, dtype_name, shape, begin_at in rows:
        dtype = getattr(torch, dtype_name)
        count = 1
        for n in shape:
            count *= n
        size = count * torch.empty(0, dtype=dtype).element_size()
        found[name] = flat[start + begin_at : start + begin_at + size].view(dtype).view(shape)
    return {name: found[name] for name in names}


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


_underway: Tuple[int, Optional[_Underway]] = (0, None)
_torchs_own: Dict[type, Any] = {}


def _of_this_process() -> _Underway:
    global _underway
    pid, found = _underway
    if pid != os.getpid() or found is None:
        found = _Underway()
        _underway = os.getpid(), found
    return found


def _reduce(tensor: "torch.Tensor") -> Any:
    from torch.multiprocessing import reductions

    own = _torchs_own.get(type(tensor), reductions.reduce_tensor)
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda")
    if not is_plain or tensor.numel() == 0 or (tensor.requires_grad and not tensor.is_leaf) or tensor.is_conj() or tensor.is_neg():
        return own(tensor)
    try:
        broker = default_broker()
        shared = _shared_in_place(tensor, broker)
        page, at = _of_this_process().keep(tensor.detach(), broker)
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
    return _of_this_process().count()


__all__ = [
    "SharedTensor", "copy", "default_broker", "empty", "get_state_dict", "install", "open", "open_state_dict", "pack", "pool",
    "put_state_dict", "share", "underway", "uninstall",
]  # fmt: skip
