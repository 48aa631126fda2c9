"""The element type that torch computes in, of operands together.

Source: https://pytorch.org/docs/stable/tensor_attributes.html#torch.dtype
"""

from collections.abc import Iterable

from vkconv.core import DType
from vkconv.graph.aten.view import RefusedError, TensorType

_SIGNED = (DType.I8, DType.I16, DType.I32, DType.I64)
_NUMBERS = {bool: DType.BOOL, int: DType.I64, float: DType.F32}


def promoted(operands: Iterable[TensorType | bool | int | float]) -> DType:
    """Tensors with dimensions decide within their category (bool, integer, float); scalar tensors count where theirs is
    higher, and numbers where theirs is higher than both. Raises RefusedError where torch has no such type."""
    ranked: list[DType | None] = [None, None, None]  # tensors with dimensions, without, numbers
    for given in operands:
        place, dtype = (
            (1 if given.rank == 0 else 0, given.dtype) if isinstance(given, TensorType) else (2, _NUMBERS[type(given)])
        )
        held = ranked[place]
        ranked[place] = dtype if held is None else together(held, dtype)
    found: DType | None = None
    for here in ranked:
        if found is None:
            found = here
        elif here is not None and _category(here) > _category(found):
            found = together(found, here)
    assert found is not None
    return found


def _category(dtype: DType) -> int:
    return 2 if dtype.is_float else int(dtype is not DType.BOOL)


def together(a: DType, b: DType) -> DType:
    """What holds the values of both, floats where one is."""
    if a is b or b is DType.BOOL:
        return a
    if a is DType.BOOL:
        return b
    if a.is_float or b.is_float:
        if a.is_float and b.is_float:
            return DType.F32  # of different ones, also f16 and bf16
        return a if a.is_float else b
    if a is DType.U8 or b is DType.U8:
        other = b if a is DType.U8 else a
        if other in _SIGNED:
            return DType.I16 if other is DType.I8 else other
    if a in _SIGNED and b in _SIGNED:
        return max(a, b, key=_SIGNED.index)
    raise RefusedError(f"it computes with {a} and {b} together, for which torch has no type")
