"""How far a result may be from its float64 reference: derived thresholds, element by element, not constants."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from vkconv.core import Array, DType
from vkconv.ops.base import F64, Op
from vkconv.route import Call

# A device may take subnormal f32 numbers for zero, going in and coming out: the smallest normal one.
_SMALLEST_NORMAL = 2.0**-126


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What is allowed for one output: an error of ``relative`` times ``magnitude``, which has the output's shape, and
    ``floor`` for what is too small for a relative error. Both are 0 for integers."""

    relative: float
    magnitude: F64
    floor: float

    @property
    def absolute(self) -> F64:
        """The largest error that each element may have; 0 where the reference is not finite."""
        return np.nan_to_num(self.relative * self.magnitude, nan=0.0, posinf=0.0) + self.floor


def relative_tolerance(terms: int, out: DType, accumulate: DType = DType.F32) -> float:
    """The larger of the accumulated rounding of ``terms`` addends and the rounding of the stored result.

    rtol = max(2^-mant(acc)/2 * terms, 2^-mant(out)/2), the formula of composable_kernel's check_err helpers
    (include/ck/library/utility/check_err.hpp, get_relative_threshold); the leading product and the function
    evaluations of an f32 GPU are allowed four units in the last place on top.
    """
    acc = 0.5 * 2.0**-accumulate.mantissa_bits * terms
    store = 0.5 * 2.0**-out.mantissa_bits
    return max(acc, store) + 4 * 2.0**-accumulate.mantissa_bits


def two_level_tolerance(terms: int, parts: int, out: DType) -> float:
    """The same for a sum of ``terms`` in ``parts`` that are added in a second step: the larger of what the f32 sum of a
    part may be off by and what adding the parts may, as composable_kernel's tests of backward-weight have it
    (profile_grouped_conv_bwd_weight_impl.hpp). Never wider than `relative_tolerance` of all terms or parts."""
    return max(relative_tolerance(-(-terms // max(parts, 1)), DType.F32), relative_tolerance(parts, out))


def tolerance(op: Op, call: Call, operands: Mapping[str, Array | None], reference: Array) -> Tolerance:
    """What is allowed for one output of a call, from the operands and the reference as `Op.reference` has them."""
    reference = np.asarray(reference)
    out = next(iter(call.outputs.values())).dtype
    if not out.is_float:
        return Tolerance(0.0, np.zeros(reference.shape), 0.0)
    wide, terms = reference.astype(np.float64), op.terms(call)
    with np.errstate(all="ignore"):
        if op.magnitude is not None:
            magnitude = np.broadcast_to(op.magnitude(call, operands, wide), wide.shape)
        else:
            magnitude = np.abs(wide) if terms == 1 else largest(wide)
    accumulate = out if op.sums_in_output else DType.F32
    return Tolerance(relative_tolerance(terms, out, accumulate), magnitude, _floor(out))


def largest(reference: F64) -> F64:
    """The magnitude of a sum: the largest finite result, for every element.

    Each addend may be as large as the largest result (composable_kernel's get_absolute_threshold).
    """
    most = float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0))
    return np.full(reference.shape, most)


def sum_of_products(reference: F64, terms: int, call: Call) -> F64:
    """The magnitude where an activation may follow a sum of products, and a scale and shift that: what rounds before
    counts for every element, so that only a single product that stays as it is has its own; and what the shift is
    added to may be larger than the result by as much."""
    shift = abs(float(call["out_shift"]))
    return np.abs(reference) if terms == 1 and call["act"] == "none" and not shift else largest(reference) + shift


def _floor(out: DType) -> float:
    """The smallest normal number, or half the distance of the subnormal ones where the output has coarser ones."""
    return 0.5 * 2.0**-24 if out is DType.F16 else _SMALLEST_NORMAL
