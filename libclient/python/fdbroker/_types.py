"""Element types by name, with and without numpy.

Must never import numpy: the program has done that when it hands in one of its types.
"""

from typing import Any, NamedTuple, Tuple, Union

Shape = Tuple[int, ...]


class DType(NamedTuple):
    """An element type. ``name`` as numpy and PyTorch call it."""

    name: str
    #: Bytes of an element.
    itemsize: int
    #: For memoryview.cast(), of the struct module; "" where it has none.
    code: str
    #: DLDataTypeCode of dlpack.h.
    dlpack: int
    #: As in ``__array_interface__``.
    typestr: str


_TABLE = [
    DType("bool", 1, "?", 6, "|b1"), DType("uint8", 1, "B", 1, "|u1"), DType("int8", 1, "b", 0, "|i1"),
    DType("uint16", 2, "H", 1, "<u2"), DType("int16", 2, "h", 0, "<i2"), DType("uint32", 4, "I", 1, "<u4"),
    DType("int32", 4, "i", 0, "<i4"), DType("uint64", 8, "Q", 1, "<u8"), DType("int64", 8, "q", 0, "<i8"),
    DType("float16", 2, "", 2, "<f2"), DType("bfloat16", 2, "", 4, "<V2"), DType("float32", 4, "f", 2, "<f4"),
    DType("float64", 8, "d", 2, "<f8"), DType("complex64", 8, "", 5, "<c8"), DType("complex128", 16, "", 5, "<c16"),
]  # fmt: skip
_BY_NAME = {dtype.name: dtype for dtype in _TABLE}


def dtype_of(dtype: Any) -> DType:
    """From a name, a numpy dtype or scalar type, or a PyTorch dtype; TypeError for any other."""
    if isinstance(dtype, DType):
        return dtype
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    name = {"float": "float64", "int": "int64", "complex": "complex128"}.get(name or "", name or str(dtype))
    found = _BY_NAME.get(name.rsplit(".", 1)[-1])
    if found is None:
        raise TypeError(f"fdbroker knows no element type {dtype!r}; there are {', '.join(_BY_NAME)}")
    return found


def shape_of(shape: Union[int, Tuple[int, ...], list]) -> Shape:
    """A tuple of non-negative ints."""
    if isinstance(shape, (str, bytes)):
        raise TypeError(f"shape is {shape!r}; it is an int or a tuple of ints")
    numbers = tuple(int(n) for n in ((shape,) if isinstance(shape, int) else shape))
    if any(n < 0 for n in numbers):
        raise ValueError(f"shape {numbers}: sizes are 0 or more")
    return numbers


def count_of(shape: Shape) -> int:
    """The number of elements."""
    count = 1
    for n in shape:
        count *= n
    return count
