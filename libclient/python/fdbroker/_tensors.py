"""PyTorch's words for memory: names of types and devices, bytes as tensors. Must never copy."""

from typing import Tuple

import torch

from ._memory import Memory, Unmarked
from ._types import dtype_of


def name_of(dtype: "torch.dtype") -> str:
    """Such as ``float32``."""
    return str(dtype).rsplit(".", 1)[-1]


def size_of(dtype: "torch.dtype") -> int:
    """Bytes of an element."""
    size: int = torch.empty(0, dtype=dtype).element_size()
    return size


def device_of(tensor: "torch.Tensor") -> str:
    """As :meth:`fdbroker.Broker.empty` takes it: ``cpu``, or such as ``cuda:0``."""
    return "cpu" if tensor.device.type == "cpu" else f"{tensor.device.type}:{tensor.device.index or 0}"


def span(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> int:
    """Elements from the first to behind the last."""
    return 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, stride))


def bytes_of(memory: Memory) -> "torch.Tensor":
    """All bytes of memory, as a tensor that keeps it. PyTorch has no tensors for reading: one of memory opened for reading looks
    like any other, and writing into it is a segmentation fault, or an illegal address on a GPU."""
    return torch.from_dlpack(Unmarked(memory, (memory.nbytes,), dtype_of("uint8")))
