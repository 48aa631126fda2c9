"""How far a result may be from its float64 reference: composable_kernel's derived thresholds, not constants."""

import numpy as np

from vkconv.core import Array, DType
from vkconv.route import Call


def relative_tolerance(terms: int, out: DType, accumulate: DType = DType.F32) -> float:
    """The larger of the accumulated rounding of ``terms`` addends and the rounding of the stored result.

    rtol = max(2^-mant(acc)/2 * terms, 2^-mant(out)/2), the formula of composable_kernel's check_err helpers
    (include/ck/library/utility/check_err.hpp, get_relative_threshold); the leading product and the function
    evaluations of an f32 GPU are allowed four units in the last place on top.
    """
    acc = 0.5 * 2.0**-accumulate.mantissa_bits * terms
    store = 0.5 * 2.0**-out.mantissa_bits
    return max(acc, store) + 4 * 2.0**-accumulate.mantissa_bits


def tolerance(call: Call, reference: Array, terms: int) -> float:
    """Largest allowed absolute difference to ``reference`` for one output of a call (0 for integers).

    atol = rtol * max |finite reference|: every one of the ``terms`` addends may be as large as the largest
    result (composable_kernel's get_absolute_threshold).
    """
    out = next(iter(call.outputs.values())).dtype
    if not out.is_float:
        return 0.0
    finite = np.abs(np.asarray(reference, np.float64)[np.isfinite(reference)])
    largest = float(finite.max()) if finite.size else 0.0
    return relative_tolerance(terms, out) * largest
