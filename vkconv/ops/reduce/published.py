"""What IREE takes for a reduction over axes."""

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.published import Published, Rules
from vkconv.ops.reduce.problem import Problem, by_bands

_WHOLE = ("subgroup", "tree", "serial")


def _iree(call: Call, device: Device) -> Published:
    """SetSplitReductionSizes for outer reductions: about the square root of the sum, or all of it. A sum over inner
    dimensions alone is never cut."""
    outermost = next((axis for axis, extent in enumerate(call.shape("x")) if extent > 1), None)
    if outermost is not None and outermost not in call["axes"]:
        return Published(_WHOLE, f"no sum over the outermost dimension, of {call.shape('x')[outermost]}")
    split, why = by_bands(Problem.of(call))
    return Published(("split",) if split else _WHOLE, why)


PUBLISHED: Rules = {"iree": _iree}
