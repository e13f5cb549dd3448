"""State dicts in one piece of shared memory: a table, then the tensors, each as dense as it was.

Must never take CUDA tensors through the host, nor unpickle what is no packed state.
"""

import pickle
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from ._broker import Broker, parse_device
from ._errors import InvalidArgument, NotSupported
from ._memory import Buffer, Memory
from ._objects import Object
from ._tensors import bytes_of, device_of, name_of, size_of
from ._types import dtype_of, numpy_dtype

if TYPE_CHECKING:
    import numpy

#: Tensors begin at multiples of this, so that any vector instruction can load them.
_ALIGNMENT = 256
_MAGIC = b"fdbroker-state-2"
_HEAD = len(_MAGIC) + 8


class StateDict(Dict[str, Any]):
    """The state dict of a name: a dict, and what is known of the object."""

    def __init__(self, found: Dict[str, Any], of: Object) -> None:
        super().__init__(found)
        self._object = of
        #: Given when it was put, above all versions before.
        self.version: int = of.version
        #: The bytes that its maker put beside it.
        self.metadata: bytes = of.metadata

    @property
    def is_current(self) -> bool:
        """Whether the name still leads to it. Sends nothing."""
        return self._object.is_current

    def __reduce__(self) -> Any:
        # Elsewhere it is a dict of copies.
        return dict, (dict(self),)


class _Row(NamedTuple):
    """A tensor in the table; plain tuples are pickled."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    #: In elements.
    stride: Tuple[int, ...]
    #: Bytes from the first tensor's place.
    begin: int


def _aligned(end: int) -> int:
    return -(-end // _ALIGNMENT) * _ALIGNMENT


class Plan:
    """Where everything of a state dict will be."""

    def __init__(self, state: Dict[str, Any]) -> None:
        rows: List[_Row] = []
        others: Dict[str, Any] = {}
        self._sources: List[Tuple[_Row, "torch.Tensor"]] = []
        places: Dict[Any, int] = {}
        end = 0
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                others[name] = value
                continue
            source = value.detach()
            if source.layout != torch.strided or source.device.type == "meta":
                raise InvalidArgument(f"the tensor {name!r} ({source.layout}, of {source.device}) has no memory to pack")
            # As clone() has them: those of the source if it is dense, else contiguous.
            stride = tuple(torch.empty_like(source, device="meta").stride())
            nbytes = source.numel() * source.element_size()
            place = (source.device, source.data_ptr(), nbytes)
            # The same bytes once more: tied weights, also with other strides.
            is_alone = stride != tuple(source.stride()) or source.is_conj() or source.is_neg() or nbytes == 0
            begin = None if is_alone else places.get(place)
            row = _Row(name, name_of(source.dtype), tuple(source.shape), stride, _aligned(end) if begin is None else begin)
            rows.append(row)
            if begin is None:
                self._sources.append((row, source))
                end = row.begin + nbytes
                if not is_alone:
                    places[place] = row.begin
        table = pickle.dumps((list(state), [tuple(row) for row in rows], others))
        self._head = _MAGIC + len(table).to_bytes(8, "little") + table
        self._start = _aligned(len(self._head))
        #: Bytes of everything.
        self.nbytes = self._start + end

    def device(self, wanted: Any) -> str:
        """Where it goes: as it is said, or where all tensors are.

        Errors: InvalidArgument when they are on several, NotSupported for a device that is neither the CPU nor of CUDA.
        """
        found = sorted({device_of(source) for _, source in self._sources}) or ["cpu"]
        if wanted is None and len(found) > 1:
            raise InvalidArgument(
                f"the tensors are on {', '.join(found)}; say device={found[-1]!r} to copy all of them there, or put the tensors of "
                "each device under a name of their own"
            )
        device = str(found[0] if wanted is None else wanted)
        if device.partition(":")[0] not in ("cpu", "cuda"):
            raise NotSupported(f"state dicts are of the CPU or of CUDA, not of {device}; say device='cpu' to copy this one there")
        place = parse_device(device)
        return "cpu" if place is None else "%s:%d" % place

    def write(self, memory: Memory) -> None:
        """Copies everything there: device to device where both are."""
        flat = bytes_of(memory)
        flat[: len(self._head)].copy_(torch.frombuffer(bytearray(self._head), dtype=torch.uint8))
        for row, source in self._sources:
            _tensor(flat, self._start, row).copy_(source)


def _tensor(flat: "torch.Tensor", start: int, row: _Row) -> "torch.Tensor":
    dtype = getattr(torch, row.dtype)
    count = 1
    for n in row.shape:
        count *= n
    begin = start + row.begin
    return flat[begin : begin + count * size_of(dtype)].view(dtype).as_strided(row.shape, row.stride)


def _array(memory: Memory, start: int, row: _Row) -> "numpy.ndarray":
    """A tensor's bytes as an array of numpy, which says that it is for reading."""
    import numpy

    try:
        dtype = dtype_of(row.dtype)
        kind = numpy_dtype(dtype)
    except TypeError:
        # Of types that numpy has not: the bytes of each element.
        kind = numpy.dtype("V%d" % size_of(getattr(torch, row.dtype)))
    if 0 in row.shape:
        return numpy.empty(row.shape, kind)
    strides = tuple(step * kind.itemsize for step in row.stride)
    return numpy.ndarray(row.shape, kind, memory.memoryview(), start + row.begin, strides)


def write_and_wait(plan: Plan, buffer: Buffer) -> None:
    """Fills memory that others may open from now on."""
    plan.write(buffer)
    if buffer.device != "cpu":
        torch.cuda.current_stream(buffer.device).synchronize()


def put(
    broker: Broker, name: str, state: Dict[str, Any], device: Any, metadata: bytes, timeout: float, options: Dict[str, Any]
) -> int:  # fmt: skip
    """Makes a named object of it."""
    plan = Plan(state)
    place = plan.device(device)
    wanted = {name: (plan.nbytes, "uint8")}
    with broker.create(wanted, device=place, metadata={name: metadata}, timeout=timeout, **options) as group:
        plan.write(group[name])
        stream = None if place == "cpu" else torch.cuda.current_stream(place).cuda_stream
        version: int = group.seal(stream=stream, timeout=timeout)
        return version


def unpack(memory: Memory, readonly: bool) -> Dict[str, Any]:
    """The state dict in memory, without a copy. ValueError when there is none."""
    flat = bytes_of(memory)
    begin = bytes(flat[:_HEAD].tolist())
    if begin[: len(_MAGIC)] != _MAGIC:
        raise ValueError("this memory is no state dict of this release of fdbroker.torch")
    end = _HEAD + int.from_bytes(begin[len(_MAGIC) :], "little")
    names, rows, found = pickle.loads(bytes(flat[_HEAD:end].tolist()))
    for row in map(_Row._make, rows):
        in_numpy = readonly and memory.device == "cpu"
        found[row.name] = _array(memory, _aligned(end), row) if in_numpy else _tensor(flat, _aligned(end), row)
    return {name: found[name] for name in names}
