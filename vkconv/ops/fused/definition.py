"""What gemm_reduce and conv_reduce compute, by definition, and what their results may be off by."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from vkconv.call import HALVES, Call
from vkconv.core import GraphError, did_you_mean
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Magnitude, Op, Outputs
from vkconv.ops.core.tolerance import (
    largest,
    of_error,
    relative_tolerance,
    rounding_of_storing,
    rounding_of_sum,
    shows_addends,
)
from vkconv.ops.fused.addends import added_arrays
from vkconv.ops.kernels.epilogue import magnitude_of_products, rounding_of_products

REDUCE_ATTRS = (
    Attr("op", "op", str, "sum"),
    Attr("keepdims", "keep", bool, False),
    Attr("also", "also", str, ""),
    Attr("product", "product", bool, False),
)
OUTPUTS = ("y", "also", "product")
SUMS = ("sum", "mean")
SQUARES = ("sum_square", "l2")

_DEFINITIONS: Mapping[str, Callable[[F64, tuple[int, ...]], F64]] = {
    "sum": lambda x, axes: np.sum(x, axis=axes),
    "mean": lambda x, axes: np.mean(x, axis=axes),
    "max": lambda x, axes: np.max(x, axis=axes),
    "min": lambda x, axes: np.min(x, axis=axes),
    "sum_square": lambda x, axes: np.sum(x * x, axis=axes),
    "l2": lambda x, axes: np.sqrt(np.sum(x * x, axis=axes)),
}


def check_functions(op: str, attrs: Attrs) -> None:
    """GraphError where a function is none, or both are one."""
    for attr in ("op", "also"):
        name = str(attrs[attr])
        if name not in _DEFINITIONS and (name or attr == "op"):
            raise GraphError(
                f"{op}: there is no {attr}={name!r}{did_you_mean(name, _DEFINITIONS)}; one of {', '.join(_DEFINITIONS)}"
            )
    if attrs["op"] == attrs["also"]:
        raise GraphError(f"{op}: op and also are both {attrs['op']!r}; leave also out, y is that already")


def made(attrs: Attrs, reduced: TensorSpec, full: TensorSpec) -> tuple[TensorSpec | None, ...]:
    """`OUTPUTS` of a call: a reduction, the second one and the product, where they are wanted."""
    return reduced, reduced if attrs["also"] else None, full if attrs["product"] else None


def functions(call: Call) -> tuple[str, ...]:
    """The reductions of a call, by name: one or two."""
    return (call["op"], call["also"]) if call["also"] else (call["op"],)


def is_single(call: Call) -> bool:
    """Whether a call makes one reduction and nothing else."""
    return len(call.outputs) == 1


def _swapped(call: Call) -> Call:
    """The call whose first reduction is the second one of this."""
    return dataclasses.replace(call, attrs={**call.attrs, "op": call["also"], "also": call["op"]})


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """An op of two steps: ``first`` computes ``product(call)``, whose result is reduced over its dimensions
    ``axes(call)``."""

    first: Op
    product: Callable[[Call], Call]
    axes: Callable[[Call], tuple[int, ...]]

    def reference(self, call: Call, arrays: Arrays) -> Outputs:
        """`Op.reference`."""
        full = self._full(call, arrays)
        reduced = [self._reduced(each, full) for each in (call, _swapped(call))[: len(functions(call))]]
        return [*reduced, full] if call["product"] else reduced

    def terms(self, call: Call) -> int:
        """Products and addends of an output: those of each result, and these where they are added, not compared."""
        product = self.product(call)
        count = math.prod(product.shape("y")[axis] for axis in self.axes(call))
        adds = any(function in (*SUMS, *SQUARES) for function in functions(call))
        return self.first.terms(product) + call.has("residual2") + (count if adds else 0)

    def flops(self, call: Call) -> int:
        """Those of the first step, and one of each of its results for each reduction."""
        product = self.product(call)
        return self.first.flops(product) + len(functions(call)) * math.prod(product.shape("y"))

    @property
    def magnitudes(self) -> Mapping[str, Magnitude]:
        """`Op.magnitudes`: of the second reduction, and of the product, which may be off as that of the first step."""
        return {
            "also": lambda call, arrays, reference: self.magnitude(_swapped(call), arrays, reference),
            "product": self._magnitude_of_product,
        }

    def _magnitude_of_product(self, call: Call, arrays: Arrays, reference: F64) -> F64:
        product, count = self.product(call), self._terms_of_product(call)
        magnitude = magnitude_of_products(self._product_reference, lambda product: count)(product, arrays, reference)
        of = [relative_tolerance(terms, call.outputs["product"].dtype) for terms in (count, self.terms(call))]
        return np.asarray(of[0] * magnitude / of[1])

    def _terms_of_product(self, call: Call) -> int:
        """Products and addends of each result of the first step."""
        return self.first.terms(self.product(call)) + call.has("residual2")

    def _product_reference(self, product: Call, arrays: Arrays) -> Outputs:
        """`Op.reference` of the first step, by the operands of the whole call."""
        return self.first.reference(product, added_arrays(arrays, product.shape("y")))

    def _full(self, call: Call, arrays: Arrays) -> F64:
        """The result of the first step in float64."""
        return np.asarray(self._product_reference(self.product(call), arrays)[0], np.float64)

    def _off(self, call: Call, arrays: Arrays) -> F64:
        """How far each of its results may be off, in f32; two residuals of 16 bits are one of these where the steps run
        in turn."""
        product, count = self.product(call), self._terms_of_product(call)
        off = rounding_of_products(self._product_reference, count, product, arrays)
        out = call.outputs["y"].dtype
        if out in HALVES and call.has("residual2"):
            residual = added_arrays(arrays, product.shape("y"))["residual"]
            off = off + rounding_of_storing(np.asarray(residual, np.float64), out)
        return off

    def _reduced(self, call: Call, full: F64) -> F64:
        """A result reduced by definition, in the shape of the call's output."""
        with np.errstate(all="ignore"):
            result = _DEFINITIONS[call["op"]](full, self.axes(call))
        return np.asarray(result, np.float64).reshape(call.shape("y"))

    def magnitude(self, call: Call, arrays: Arrays, reference: F64) -> F64:
        """What the rounding of every output is relative to: the largest of what is added, as if nothing cancelled, or
        the largest of what is compared; or what the products may be off by, added up or compared, where they cancelled.

        A call of 16-bit floats may round each product p to its type before it is reduced, as the two nodes would: to
        p (1 + d) with |d| <= u, u half a unit of the type. A sum of these is off by the sum of p d, at most u times the
        sum of |p|, whatever cancels, and a mean by as much over the count; storing it adds u times its own size.
        Nothing makes the d of a row independent: products that are alike round alike. The maximum of rounded numbers is
        the rounded maximum, which is stored as it is: one rounding, as without the step between.
        """
        full = self._full(call, arrays)
        if call["op"] in SQUARES:
            return self._magnitude_of_squares(call, arrays, reference, full)
        size, count, summed = np.abs(full), full.size // max(1, reference.size), call["op"] in SUMS
        out = call.outputs["y"].dtype
        rounds_between = summed and out in HALVES
        with np.errstate(all="ignore"):
            largest_of_all = np.full(reference.shape, largest(full).max(initial=0.0))
            sizes = self._reduced(call, size) if summed else largest_of_all
            most = largest(sizes)
            if not shows_addends(full):
                products = self._off(call, arrays)
                if summed:
                    error = self._reduced(call, products) + rounding_of_sum(sizes, count)
                else:
                    error = np.max(products, axis=self.axes(call)).reshape(reference.shape)
            elif rounds_between:
                error = rounding_of_sum(most, self.terms(call))
            else:
                return most
            if rounds_between:
                error = error + self._reduced(call, rounding_of_storing(full, out))
        return np.asarray(np.fmax(most, of_error(call, reference, error, self.terms(call))))

    def _magnitude_of_squares(self, call: Call, arrays: Arrays, reference: F64, full: F64) -> F64:
        """The same for squares: a product p that is off by e makes its square off by 2 |p| e + e^2, and rounding the
        sum of squares adds to that. The root of a sum S that is off by d is off by no more than d / sqrt(S), and by no
        more than sqrt(d)."""
        axes, out = self.axes(call), call.outputs["y"].dtype
        count = full.size // max(1, reference.size)
        with np.errstate(all="ignore"):
            off = self._off(call, arrays)
            if out in HALVES:
                off = off + rounding_of_storing(full, out)
            squares = np.sum(full * full, axis=axes)
            error = np.sum(2.0 * np.abs(full) * off + off * off, axis=axes) + rounding_of_sum(squares, count)
            if call["op"] == "l2":
                error = np.minimum(error / np.sqrt(squares), np.sqrt(error))
            error = np.nan_to_num(error.reshape(reference.shape), nan=0.0, posinf=0.0)
        return np.asarray(np.fmax(np.abs(reference), of_error(call, reference, error, self.terms(call))))
