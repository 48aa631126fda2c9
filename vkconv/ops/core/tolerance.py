"""How far a result may be from its float64 reference: derived thresholds, element by element, not constants."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from vkconv.call import Call
from vkconv.core import Array, DType
from vkconv.ops.core.base import F64, Arrays, Op, Outputs, Sums

BoolArray = npt.NDArray[np.bool_]
# A device may take subnormal f32 numbers for zero, going in and coming out: the smallest normal one.
_SMALLEST_NORMAL = 2.0**-126
# Standard deviations of a sum's rounding that are allowed: one sum in ten million is off by more.
_DEVIATIONS = 6.0
# Roundings of a long sum that are allowed, in units of what its addends come to: a walk of random signs, whose partial
# sums are some sqrt(n) addends, comes to 6 / sqrt(3) x 3.5 x 1.6, which is 19, whatever n. More is for orders that are
# against it, in sums of thousands; in one of millions it would let most of the addends be missing.
_MOST_ROUNDINGS = 512
# The largest of more sums of products stands for what was added up: they hardly cancel all of them, and their addends
# take as long as the reference again.
_MANY = 4096
# How far steps of a route in 16 bits may move each sum, from the call and its factors.
Rounding = Callable[[Call, Mapping[str, F64]], F64]
# Attributes that products and addends are multiplied by.
_FACTORS = ("alpha", "beta", "scale")


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What is allowed for one output: an error of ``relative`` times ``magnitude``, which has the output's shape, and
    ``floor`` for what is too small for a relative error. Both are 0 for integers. Where ``may_overflow``, the element
    may also be infinite or no number: a sum in f16 may be beyond its largest number."""

    relative: float
    magnitude: F64
    floor: float
    may_overflow: BoolArray | None = None

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
    return max(acc, _of_storing(out)) + 4 * 2.0**-accumulate.mantissa_bits


def two_level_tolerance(terms: int, parts: int, out: DType) -> float:
    """The same for a sum of ``terms`` in ``parts`` that are added in a second step: the larger of what the f32 sum of a
    part may be off by and what adding the parts may, as composable_kernel's tests of backward-weight have it
    (profile_grouped_conv_bwd_weight_impl.hpp). Never wider than `relative_tolerance` of all terms or parts."""
    return max(relative_tolerance(-(-terms // max(parts, 1)), DType.F32), relative_tolerance(parts, out))


def tolerance(
    op: Op,
    call: Call,
    operands: Arrays,
    reference: Array,
    depth: int = 0,
    output: str | None = None,
    rounding: Rounding | None = None,
) -> Tolerance:
    """What is allowed for one output of a call, the first unless it is named, from the operands and the reference as
    `Op.reference` has them; with a ``depth`` for routes that sum so many products in f16 (`Route.f16_depth`), and the
    ``rounding`` of those that take other steps in 16 bits (`Route.rounding`)."""
    reference = np.asarray(reference)
    output = output or next(iter(call.outputs))
    out, of = call.outputs[output].dtype, op.magnitudes.get(output, op.magnitude)
    if not out.is_float:
        return Tolerance(0.0, np.zeros(reference.shape), 0.0)
    wide, terms = reference.astype(np.float64), op.terms(call)
    with np.errstate(all="ignore"):
        if of is not None:
            magnitude = np.broadcast_to(of(call, operands, wide), wide.shape)
        else:
            magnitude = np.abs(wide) if terms == 1 else largest(wide)
    accumulate = out if op.sums_in_output else DType.F32
    made = Tolerance(relative_tolerance(terms, out, accumulate), magnitude, _floor(out))
    made = _with_half_sums(made, op, call, operands, depth) if depth else made
    return made if rounding is None else _with_rounding(made, op, call, operands, rounding)


def f16_depth_tolerance(depth: int) -> float:
    """gamma_n = n u / (1 - n u) with the u of f16, 2^-11: what a sum of n products that rounds each product or addition
    is off by at most, relative to the sum of their absolute values (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd edition, (3.5)). Sums of such sums, rounded less, keep it (Blanchard, Higham and Mary, A class of
    fast and accurate summation algorithms, SIAM J. Sci. Comput. 42(3), 2020)."""
    rounding = depth * 0.5 * 2.0**-DType.F16.mantissa_bits
    return rounding / (1 - rounding)


# Of the most that a sum may be off by: shares of it at which to look what the function that follows makes of that.
_SHARES = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)
# What a product may lose where f16 is subnormal, half of the distance there; and what rounds to infinity.
_HALF_SUBNORMAL, _BEYOND = 2.0**-25, 65520.0
_ANY = 1e300


def _with_half_sums(made: Tolerance, op: Op, call: Call, operands: Arrays, depth: int) -> Tolerance:
    """What is allowed of sums in f32, and on top what chains in f16 may be off by, taken through what follows sums."""
    sums = op.sums
    assert sums is not None  # routes with chains are of such ops
    gamma = f16_depth_tolerance(depth)
    with np.errstate(all="ignore"):
        factors = {name: np.asarray(operands[name], np.float64) for name in sums.names}
        exact = sums.products(call, factors)
        sizes = sums.products(call, {name: np.abs(factor) for name, factor in factors.items()})
        error = np.where(np.isfinite(sizes), gamma * sizes + op.terms(call) * _HALF_SUBNORMAL, 0.0)
        result, off, lost = _finished(sums, call, operands, exact, error)
        # A sum in f16 that may be too large: as large as all products are, or as so many of the largest.
        largest_product = math.prod(float(largest(factor).max(initial=0.0)) for factor in factors.values())
        lost |= np.minimum(sizes, depth * largest_product) * (1 + gamma) >= _BEYOND
        lost |= np.abs(result) + off >= _BEYOND
        off = np.where(np.isfinite(result), off, 0.0)
        magnitude = (off + made.relative * made.magnitude) / (gamma + made.relative)
    return Tolerance(gamma + made.relative, magnitude, made.floor, lost & np.isfinite(sizes) & np.isfinite(result))


def _finished(sums: Sums, call: Call, operands: Arrays, exact: F64, error: F64) -> tuple[F64, F64, BoolArray]:
    """What is made of exact sums, how far that is off where they are by as much as an error, and where it is then not
    finite."""
    result = sums.finish(call, operands, exact)
    off, lost = np.zeros(result.shape), np.zeros(result.shape, bool)
    for share in _SHARES:
        moved = sums.finish(call, operands, exact + share * error)
        lost |= ~np.isfinite(moved)
        off = np.fmax(off, np.minimum(np.abs(moved - result), _ANY))
    return result, off, lost


def _with_rounding(made: Tolerance, op: Op, call: Call, operands: Arrays, rounding: Rounding) -> Tolerance:
    """What is allowed of sums in f32, and on top what steps in 16 bits may move them by, taken through what follows."""
    sums = op.sums
    assert sums is not None  # routes with such steps are of such ops
    with np.errstate(all="ignore"):
        factors = {name: np.asarray(operands[name], np.float64) for name in sums.names}
        exact, error = sums.products(call, factors), np.nan_to_num(rounding(call, factors), nan=0.0, posinf=0.0)
        result, off, _ = _finished(sums, call, operands, exact, error)
        off = np.where(np.isfinite(result), off, 0.0)
    return dataclasses.replace(made, magnitude=made.magnitude + off / made.relative)


def largest(reference: F64) -> F64:
    """The magnitude of a sum: the largest finite result, for every element.

    Each addend may be as large as the largest result (composable_kernel's get_absolute_threshold).
    """
    most = float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0))
    return np.full(reference.shape, most)


def rounding_of_sum(addends: F64, terms: int, certain: bool = False) -> F64:
    """How far f32 sums of ``terms`` may be off, whatever cancels and in whatever order: by what the sizes of their
    ``addends`` add up to.

    That times gamma_n = n u / (1 - n u), u = 2^-24, is ``certain`` (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 4.2). Roundings that are independent come to lambda sqrt(n) u, each with probability
    1 - 2 exp(-lambda^2 / 2) (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci.
    Comput. 41, 2019, theorem 3.1): 6 sqrt(n) where n is more, and 512 where that is. Both with the four units of
    `relative_tolerance`. What is not finite does not round.
    """
    count = terms if certain else min(terms, math.ceil(_DEVIATIONS * math.sqrt(terms)), _MOST_ROUNDINGS)
    return np.asarray(relative_tolerance(count, DType.F32) * np.where(np.isfinite(addends), addends, 0.0))


def of_sum(call: Call, reference: F64, addends: F64, terms: int) -> F64:
    """The magnitude of a sum: the largest result, or what its own addends may make it off by where that is more, as in
    few results of much that cancels; never more than is certain."""
    with np.errstate(all="ignore"):
        likely, certain = (
            of_error(call, reference, rounding_of_sum(addends, terms, sure), terms) for sure in (False, True)
        )
        return np.fmin(certain, np.fmax(largest(reference), likely))


def shows_addends(result: F64) -> bool:
    """Whether there are so many sums of products that the largest of them is as large as what was added."""
    return result.size > _MANY


def of_error(call: Call, reference: F64, error: F64, terms: int) -> F64:
    """The magnitude by which a call of ``terms`` may be off by an error, which f32 has, and by storing it as less."""
    out = next(iter(call.outputs.values())).dtype
    storing = 0.0 if out is DType.F32 else _of_storing(out)
    with np.errstate(all="ignore"):
        return np.asarray((error + storing * np.abs(reference)) / relative_tolerance(terms, out))


def rounding_of_storing(values: F64, out: DType) -> F64:
    """How far storing each value as a type may move it: half a unit in the last place, relative to its size, or half
    the distance of subnormal numbers. What is not finite does not round."""
    sizes = np.where(np.isfinite(values), np.abs(values), 0.0)
    return np.asarray(np.fmax(_of_storing(out) * sizes, _floor(out)))


def addends(
    reference: Callable[[Call, Arrays], Outputs],
    call: Call,
    operands: Arrays,
) -> F64:
    """What the sizes of addends come to: the definition of a sum at the sizes of its operands and factors."""
    factors = {name: abs(float(call[name])) for name in _FACTORS if name in call.attrs}
    positive = dataclasses.replace(call, attrs={**call.attrs, **factors})
    sizes = {name: None if array is None else np.abs(array) for name, array in operands.items()}
    with np.errstate(all="ignore"):
        return np.asarray(reference(positive, sizes)[0], np.float64)


def _of_storing(out: DType) -> float:
    return 0.5 * 2.0**-out.mantissa_bits


def _floor(out: DType) -> float:
    """The smallest normal number, or half the distance of the subnormal ones where the output has coarser ones."""
    return 0.5 * 2.0**-24 if out is DType.F16 else _SMALLEST_NORMAL
