"""Element types by name, with and without numpy.

Must never import numpy, unless the program hands in one of its types, or a name that numpy alone knows.
"""

import ast
import operator
from typing import Any, List, NamedTuple, Tuple, Union

Shape = Tuple[int, ...]


class DType(NamedTuple):
    """An element type of fixed size. ``name`` as numpy and PyTorch call it, such as ``float32``; for types without such a name what numpy
    makes the type of: ``>f4``, ``<M8[ns]``, ``[('x', '<f4'), ('n', '<i8')]``."""

    name: str
    #: Bytes of an element.
    itemsize: int
    #: For memoryview.cast(), of the struct module; "" where it has none.
    code: str
    #: DLDataTypeCode of dlpack.h; -1: it has none.
    dlpack: int
    #: As in ``__array_interface__``.
    typestr: str


_TABLE = [
    DType("bool", 1, "?", 6, "|b1"), DType("uint8", 1, "B", 1, "|u1"), DType("int8", 1, "b", 0, "|i1"),
    DType("uint16", 2, "H", 1, "<u2"), DType("int16", 2, "h", 0, "<i2"), DType("uint32", 4, "I", 1, "<u4"),
    DType("int32", 4, "i", 0, "<i4"), DType("uint64", 8, "Q", 1, "<u8"), DType("int64", 8, "q", 0, "<i8"),
    DType("float16", 2, "", 2, "<f2"), DType("float32", 4, "f", 2, "<f4"), DType("float64", 8, "d", 2, "<f8"),
    DType("complex64", 8, "", 5, "<c8"), DType("complex128", 16, "", 5, "<c16"),
    # Of PyTorch alone: numpy sees their bytes.
    DType("bfloat16", 2, "", 4, "<V2"), DType("complex32", 4, "", 5, "<V4"), DType("float8_e4m3fn", 1, "", 10, "|V1"),
    DType("float8_e4m3fnuz", 1, "", 11, "|V1"), DType("float8_e5m2", 1, "", 12, "|V1"), DType("float8_e5m2fnuz", 1, "", 13, "|V1"),
    DType("float8_e8m0fnu", 1, "", 14, "|V1"),
]  # fmt: skip
_BY_NAME = {dtype.name: dtype for dtype in _TABLE}
_BY_NAME.update(float=_BY_NAME["float64"], int=_BY_NAME["int64"], complex=_BY_NAME["complex128"])
#: Without numpy, too.
_BY_TYPESTR = {form: dtype for dtype in _TABLE if dtype.typestr[1] != "V" for form in (dtype.typestr, dtype.typestr[1:])}


def dtype_of(dtype: Any) -> DType:
    """From a name, a PyTorch dtype, or what ``numpy.dtype`` takes and is of fixed size; TypeError for any other."""
    if isinstance(dtype, DType):
        return dtype
    name = dtype
    if type(dtype).__module__ == "torch":
        name = str(dtype).rpartition(".")[2]
    elif isinstance(dtype, type):
        name = dtype.__name__
    found = _BY_NAME.get(name) or _BY_TYPESTR.get(name) if isinstance(name, str) else None
    return found or _numpys(dtype)


def _numpys(dtype: Any) -> DType:
    try:
        import numpy
    except ImportError:
        raise TypeError(f"fdbroker knows no element type {dtype!r} without numpy; there are {', '.join(_BY_NAME)}") from None
    if dtype is None:
        raise TypeError("dtype is None; numpy would take that for float64")
    if isinstance(dtype, str) and dtype.startswith("["):
        dtype = numpy.lib.format.descr_to_dtype(ast.literal_eval(dtype))
    try:
        found = numpy.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"fdbroker knows no element type {dtype!r}: {error}; there are numpy's, and {', '.join(_BY_NAME)}") from None
    if found.hasobject or found.itemsize == 0 or found.subdtype:
        raise TypeError(f"the element type {found!r} has no fixed size, or has references: it cannot be in shared memory")
    known = _BY_TYPESTR.get(found.str)
    if known is not None and found.names is None:
        return known
    name = found.str if found.names is None else repr(numpy.lib.format.dtype_to_descr(found))
    return DType(name, found.itemsize, "", -1, found.str)


def numpy_dtype(dtype: DType) -> Any:
    """numpy's type. Types of PyTorch alone are bytes there."""
    import numpy

    if dtype.name.startswith("["):
        return numpy.lib.format.descr_to_dtype(ast.literal_eval(dtype.name))
    return numpy.dtype(dtype.typestr)


def shape_of(shape: Union[int, Tuple[int, ...], List[int]]) -> Shape:
    """A tuple of non-negative ints, numpy's included."""
    try:
        sizes = [shape] if hasattr(shape, "__index__") else list(shape)  # type: ignore[arg-type]
        numbers = tuple(operator.index(n) for n in sizes)
    except TypeError:
        raise TypeError(f"shape is {shape!r}; it is an int or a tuple of ints") from None
    if any(n < 0 for n in numbers):
        raise ValueError(f"shape {numbers}: sizes are 0 or more")
    return numbers


def bytes_of(shape: Shape, dtype: DType) -> int:
    """Of all elements. ValueError for more than any memory has."""
    nbytes = count_of(shape) * dtype.itemsize
    if nbytes >= 1 << 63:
        raise ValueError(f"shape {shape} of {dtype.name} has {nbytes} bytes, more than any memory")
    return nbytes


def count_of(shape: Shape) -> int:
    """The number of elements."""
    count = 1
    for n in shape:
        count *= n
    return count
