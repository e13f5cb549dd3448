"""Weights of safetensors files, once in memory for all processes: each file is an object, byte for byte, and its tensors are views.

Must never give a tensor that the header does not bound, keep more than a piece of a file in memory of its own, nor take a file that
changed while it was read. The format: https://github.com/huggingface/safetensors#format (2026).
"""

import ctypes
import hashlib
import json
import math
import os
import stat
import sys
import time
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ._broker import Broker, parse_device
from ._errors import Exists, InvalidArgument, NotFound, NotSealed, NotSupported, TimedOut
from ._memory import Memory
from ._objects import Object
from ._tensors import bytes_of, size_of

Files = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
#: What is told how far it is: bytes read, and of how many.
Progress = Callable[[int, int], None]

#: More than any model has in its header; the format's own bound.
_MOST_HEADER = 100_000_000
#: Bytes that are read at once: large enough for any disk, small beside the memory of a node.
_PIECE = 32 << 20
#: Files of one call: as many objects as a group has.
_MOST_FILES = 253
#: Seconds after which a process that waits for the weights looks whether their maker has died.
_LOOK_S = 1.0
#: Seconds before it tries again to make them where some of the names are taken.
_AGAIN_S = 0.05
#: Seconds that the broker has for the last step, however long the files took.
_SEAL_S = 30.0
#: Seconds between two lines of progress.
_LINE_S = 0.5

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64",
    "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


class Weights(Dict[str, Any]):
    """Tensors by name, and what is known of the objects that they lie in."""

    def __init__(self, found: Dict[str, Any], metadata: Dict[str, str], objects: List[Object]) -> None:
        super().__init__(found)
        #: What the files say of themselves.
        self.metadata = metadata
        self._objects = objects

    @property
    def names(self) -> List[str]:
        """Of the objects, one for each file."""
        return [one.name for one in self._objects]

    @property
    def is_current(self) -> bool:
        """Whether their names still lead to these objects. Sends nothing."""
        return all(one.is_current for one in self._objects)

    def __reduce__(self) -> Any:
        # Elsewhere it is a dict of copies.
        return dict, (dict(self),)


class _Tensor(NamedTuple):
    """A row of a header; `begin` and `end` are bytes of the file."""

    name: str
    dtype: "torch.dtype"
    shape: Tuple[int, ...]
    begin: int
    end: int


def _wrong(where: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{where} is no safetensors file: {what}")


def _length(where: str, head: bytes, size: int) -> int:
    """Bytes of the header, from the 8 bytes before it."""
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(size - 8, _MOST_HEADER):
        raise _wrong(where, f"it has {size} bytes, and its header says that it is of {length}")
    return length


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """An object of JSON in which no key is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _rows(where: str, header: bytes, size: int) -> Tuple[List[_Tensor], Dict[str, str]]:
    """The tensors in the order of their bytes, which leave no byte out, and what the file says of itself."""
    try:
        text = header.decode()
        if not text.startswith("{"):
            raise ValueError("it does not begin with {")
        table = json.loads(text, object_pairs_hook=_once)
        about = dict(table.pop("__metadata__", {}))
        if not all(isinstance(value, str) for value in about.values()):
            raise ValueError("its metadata are no strings")
        found = [_row(where, name, entry, 8 + len(header)) for name, entry in table.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _wrong(where, f"its header cannot be read ({error})") from None
    found.sort(key=lambda row: (row.begin, row.end))
    at = 8 + len(header)
    for row in found:
        if row.begin != at:
            raise _wrong(where, f"the tensor {row.name!r} begins at byte {row.begin}, and the one before ends at {at}")
        at = row.end
    if at > size:
        raise _wrong(where, f"its tensors end at byte {at}, and it has {size}; it was cut, or is still being written")
    if at < size:
        raise _wrong(where, f"its tensors end at byte {at}, and it has {size}; it is still being written, or something was added")
    return found, about


def _row(where: str, name: str, entry: Dict[str, Any], start: int) -> _Tensor:
    kind = entry["dtype"]
    dtype = getattr(torch, _DTYPES.get(kind, ""), None)
    if dtype is None:
        raise NotSupported(f"{where}: the tensor {name!r} is of {kind}, which PyTorch {torch.__version__} has no type for")
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    count = size_of(dtype)
    for n in shape:
        # Not isinstance: True is a number in Python.
        if type(n) is not int or not 0 <= n < 2**63:
            raise _wrong(where, f"the tensor {name!r} has the shape {shape}")
        count *= n
    if type(begin) is not int or type(end) is not int or begin < 0 or end - begin != count:
        raise _wrong(where, f"the tensor {name!r} is in the bytes {begin} to {end}, and its shape and type need {count}")
    return _Tensor(name, dtype, shape, start + begin, start + end)


def _on_host(flat: "torch.Tensor") -> bytes:
    on_host = flat.cpu()
    return ctypes.string_at(on_host.data_ptr(), on_host.numel())


def _views(one: Object) -> Tuple[Dict[str, "torch.Tensor"], Dict[str, str]]:
    """The tensors in an object, without a copy but for those that their type's alignment does not allow a view of."""
    where, flat = f"the object {one.name!r}", bytes_of(one)
    length = _length(where, _on_host(flat[:8]), one.nbytes)
    rows, about = _rows(where, _on_host(flat[8 : 8 + length]), one.nbytes)
    found = {}
    for row in rows:
        piece = flat[row.begin : row.end]
        if row.begin % size_of(row.dtype):
            piece = piece.clone()
        found[row.name] = piece.view(row.dtype).reshape(row.shape)
    return found, about


def weights(objects: List[Object]) -> Weights:
    """The tensors of all, one dict. Errors: InvalidArgument for what is no safetensors file, and for a name that is there twice."""
    found: Dict[str, Any] = {}
    metadata: Dict[str, str] = {}
    for one in objects:
        tensors, about = _views(one)
        twice = sorted(found.keys() & tensors.keys())
        if twice:
            raise InvalidArgument(f"the tensor {twice[0]!r} is in {one.name!r}, and in a file before it")
        found.update(tensors)
        metadata.update(about)
    return Weights(found, metadata, objects)


def get(broker: Broker, prefix: str, device: Optional[str], timeout: Optional[float], job: bool) -> List[Object]:
    """The objects of all names that begin so. Errors: NotFound when there are none."""
    names = [info.name for info in broker.list(prefix, job=job, timeout=timeout)]
    if not names:
        raise NotFound(f"no object's name begins with {prefix!r}; make some: fdbroker put {prefix} FILE.safetensors ...")
    if len(names) > _MOST_FILES:
        raise InvalidArgument(f"{len(names)} names begin with {prefix!r}; weights are of {_MOST_FILES} at most")
    objects = broker.get_many(names, device=device, job=job, timeout=timeout)
    on_host = [one.name for one in objects if one.device == "cpu"]
    if on_host and parse_device(device) is not None:
        raise InvalidArgument(f"{on_host[0]!r} is in host memory, not on {device}; load the files with device={device!r}, or copy the tensors")
    return objects


class _File:
    """A file that is read once. `name`: what its object is called; `identity`: what another file of the same path has not."""

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        self.path = os.fspath(path)
        self.base = os.path.basename(self.path)
        # A FIFO is not waited for.
        self.source: BinaryIO = open(self.path, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))
        found = os.fstat(self.source.fileno())
        if not stat.S_ISREG(found.st_mode):
            self.source.close()
            raise InvalidArgument(f"{self.path} is no regular file")
        self.size = found.st_size
        self.identity = self._seen()

    def _seen(self) -> Tuple[int, ...]:
        found = os.fstat(self.source.fileno())
        # Both times: an archive gives a new file the modification time of the old one.
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def tensors(self) -> List[str]:
        """Their names, from the header: a file which is wrong costs nothing."""
        self.source.seek(0)
        length = _length(self.path, self._exactly(min(8, self.size)), self.size)
        rows, _ = _rows(self.path, self._exactly(length), self.size)
        self.source.seek(0)
        return [row.name for row in rows]

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count > 0:
            part = self.source.read(count)
            if not part:
                raise self._changed()
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _changed(self) -> InvalidArgument:
        return InvalidArgument(f"{self.path} was changed while it was read; put a new file in its place by rename(2) instead")

    def read_into(self, memory: Memory, tell: Callable[[int], None]) -> None:
        """Copies the file there: into host memory straight, to a GPU by a buffer of one piece."""
        at, flat, buffer = 0, bytes_of(memory), None
        if memory.device != "cpu":
            buffer = torch.empty(min(_PIECE, self.size), dtype=torch.uint8, pin_memory=True)
        room = memory.memoryview() if buffer is None else memoryview(buffer.numpy())
        while at < self.size:
            begin = at if buffer is None else 0
            count = self.source.readinto(room[begin : begin + min(_PIECE, self.size - at)])  # type: ignore[attr-defined]
            if not count:
                raise self._changed()
            if buffer is not None:
                # Waits for the copy: the buffer is used again.
                flat[at : at + count].copy_(buffer[:count])
            at += count
            tell(count)
        if self._seen() != self.identity:
            raise self._changed()


def _on_terminal(title: str) -> Optional[Progress]:
    """Lines over each other on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return None
    last = [0.0]

    def tell(done: int, of: int) -> None:
        now = time.monotonic()
        if done < of and now - last[0] < _LINE_S:
            return
        last[0] = now
        sys.stderr.write(f"\r{title}: {done / 2**30:.2f} of {of / 2**30:.2f} GiB" + ("\n" if done == of else ""))
        sys.stderr.flush()

    return tell


def _place(device: Optional[str]) -> Tuple[Optional[str], str]:
    """The device as a group takes it, and what names it for all processes."""
    place = parse_device(device) if device is not None else None
    if place is None:
        return None, "cpu"
    kind, index = place
    if kind != "cuda":
        raise NotSupported(f"weights are loaded for the CPU or for CUDA, not for {device}")
    about = torch.cuda.get_device_properties(index)
    return f"cuda:{index}", str(getattr(about, "uuid", index))


def load(
    broker: Broker, files: Sequence["Union[str, os.PathLike[str]]"], prefix: Optional[str], device: Optional[str],
    timeout: Optional[float], progress: Optional[Progress], options: Dict[str, Any],
) -> List[Object]:  # fmt: skip
    """The objects of files: put by the first process that asks, got by all.

    Without a prefix each has a name by what it is: of what others have put is got what is there, and put what is not. Under a prefix all
    are put together or none: else they could be of two versions.
    """
    if not 0 < len(files) <= _MOST_FILES:
        raise InvalidArgument(f"weights are of 1 to {_MOST_FILES} files, not of {len(files)}")
    group_device, place = _place(device)
    opened: List[_File] = []
    try:
        for path in files:
            opened.append(_File(path))
        named = {(_own_prefix(file, place) if prefix is None else prefix) + file.base: file for file in opened}
        if len(named) < len(opened):
            raise InvalidArgument("two of the files have one name; load them apart, each with a prefix of its own")
        return _get_or_put(broker, named, prefix is None, group_device, timeout, progress, options)
    finally:
        for file in opened:
            file.source.close()


def _own_prefix(file: _File, place: str) -> str:
    known = repr((file.identity, place))
    return f"safetensors/{hashlib.sha256(known.encode()).hexdigest()[:16]}/"


def _get_or_put(
    broker: Broker, files: Dict[str, _File], is_each_alone: bool, device: Optional[str], timeout: Optional[float],
    progress: Optional[Progress], options: Dict[str, Any],
) -> List[Object]:  # fmt: skip
    until, job = time.monotonic() + (math.inf if timeout is None else timeout), options["job"]
    apart_since = None
    while True:
        left = until - time.monotonic()
        missing = [name for name in files if not broker.stat(name, job=job)]
        # Their maker may die: then nobody would end a long wait.
        wait = 0.0 if missing else min(max(left, 0.0), _LOOK_S)
        try:
            return broker.get_many(list(files), device=device, job=job, timeout=wait)
        except (NotFound, NotSealed, TimedOut):
            if not missing and left <= 0:
                raise TimedOut(f"another process makes {next(iter(files))!r}, and has not done so within {timeout} s") from None
        if not missing:
            continue
        try:
            _check(files.values())
            _put(broker, {name: files[name] for name in missing} if is_each_alone else files, device, progress, options)
        except Exists:
            # Another process makes them just now, or has made some, which may end.
            now = time.monotonic()
            apart_since = apart_since or now
            if not is_each_alone and len(missing) < len(files) and now - apart_since > _LOOK_S:
                there = next(name for name in files if name not in missing)
                raise Exists(f"{there!r} is there and {missing[0]!r} is not: they were not put together; take another prefix, or remove it") from None
            if left <= 0:
                raise
            time.sleep(_AGAIN_S)


def _check(files: Iterable[_File]) -> None:
    """Before anything is read: each is of the format, and no tensor is in two."""
    whose: Dict[str, _File] = {}
    for file in files:
        for tensor in file.tensors():
            if whose.setdefault(tensor, file) is not file:
                raise InvalidArgument(f"the tensor {tensor!r} is in {whose[tensor].path} and in {file.path}")


def _put(
    broker: Broker, files: Dict[str, _File], device: Optional[str], progress: Optional[Progress], options: Dict[str, Any],
) -> None:  # fmt: skip
    wanted = {name: (file.size, "uint8") for name, file in files.items()}
    total, done = sum(file.size for file in files.values()), [0]
    tell = progress or _on_terminal(", ".join(file.base for file in list(files.values())[:2]) + (", ..." if len(files) > 2 else ""))

    def count(more: int) -> None:
        done[0] += more
        if tell is not None:
            tell(done[0], total)

    # Room for all is asked for before a byte is read.
    with broker.create(wanted, device=device, timeout=_SEAL_S, **options) as group:
        for name, file in files.items():
            file.read_into(group[name], count)
        stream = None if device is None else torch.cuda.current_stream(device).cuda_stream
        group.seal(stream=stream, timeout=_SEAL_S)
