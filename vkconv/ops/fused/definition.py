"""What gemm_reduce and conv_reduce compute, by definition, and what their results may be off by."""

from collections.abc import Callable, Mapping

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import Array, GraphError, did_you_mean
from vkconv.ops.core.base import F64, Attr, Op
from vkconv.ops.core.tolerance import largest, of_error, rounding_of_storing, rounding_of_sum, shows_addends
from vkconv.ops.kernels.epilogue import rounding_of_products

REDUCE_ATTRS = (Attr("op", "op", str, "sum"), Attr("keepdims", "keep", bool, False))
SUMS = ("sum", "mean")

_DEFINITIONS: Mapping[str, Callable[[F64, tuple[int, ...]], F64]] = {
    "sum": lambda x, axes: np.sum(x, axis=axes),
    "mean": lambda x, axes: np.mean(x, axis=axes),
    "max": lambda x, axes: np.max(x, axis=axes),
    "min": lambda x, axes: np.min(x, axis=axes),
}


def check_function(op: str, name: str) -> None:
    """GraphError where there is no such function."""
    if name not in _DEFINITIONS:
        raise GraphError(
            f"{op}: there is no op={name!r}{did_you_mean(name, _DEFINITIONS)}; one of {', '.join(_DEFINITIONS)}"
        )


def reduced(call: Call, full: F64, axes: tuple[int, ...]) -> F64:
    """A result (float64) reduced by definition, in the shape of the call's output."""
    with np.errstate(all="ignore"):
        result = _DEFINITIONS[call["op"]](full, axes)
    return np.asarray(result, np.float64).reshape(call.shape("y"))


def terms(call: Call, each: int, count: int) -> int:
    """Products and addends of an output: those of each of ``count`` results, which are then added or compared."""
    return each + (count if call["op"] in SUMS else 0)


def magnitude(
    first: Op, product: Call, axes: tuple[int, ...], call: Call, arrays: Mapping[str, Array | None], reference: F64
) -> F64:
    """What the rounding of every output is relative to: the largest of what is added, as if nothing cancelled, or the
    largest of what is compared; or what the products may be off by, added up or compared, where they cancelled.

    A call of 16-bit floats may round each product p to its type before it is reduced, as the two nodes would: to
    p (1 + d) with |d| <= u, u half a unit of the type. A sum of these is off by the sum of p d, at most u times the sum
    of |p|, whatever cancels, and a mean by as much over the count; storing it adds u times its own size. Nothing
    makes the d of a row independent: products that are alike round alike. The maximum of rounded numbers is the rounded
    maximum, which is stored as it is: one rounding, as without the step between.
    """
    full, each = full_result(first, product, arrays), first.terms(product)
    size, count, summed = np.abs(full), full.size // max(1, reference.size), call["op"] in SUMS
    every, out = terms(call, each, count), call.outputs["y"].dtype
    rounds_between = summed and out in HALVES
    with np.errstate(all="ignore"):
        sizes = reduced(call, size, axes) if summed else np.full(reference.shape, largest(full).max(initial=0.0))
        most = largest(sizes)
        if not shows_addends(full):
            products = rounding_of_products(first.reference, each, product, arrays)
            if summed:
                error = reduced(call, products, axes) + rounding_of_sum(sizes, count)
            else:
                error = np.max(products, axis=axes).reshape(reference.shape)
        elif rounds_between:
            error = rounding_of_sum(most, every)
        else:
            return most
        if rounds_between:
            error = error + reduced(call, rounding_of_storing(full, out), axes)
    return np.asarray(np.fmax(most, of_error(call, reference, error, every)))


def full_result(first: Op, product: Call, arrays: Mapping[str, Array | None]) -> F64:
    """The result of the first step in float64."""
    return np.asarray(first.reference(product, arrays)[0], np.float64)
