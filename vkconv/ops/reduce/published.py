"""What IREE takes for a reduction over axes."""

from vkconv.call import Call
from vkconv.device import Device
from vkconv.ops.core.published import Published, Rules
from vkconv.ops.reduce.problem import Problem, by_bands


def _iree(call: Call, device: Device) -> Published:
    """SetSplitReductionSizes for outer reductions: about the square root of the sum, or all of it."""
    split, why = by_bands(Problem.of(call))
    return Published(("split",) if split else ("subgroup", "tree", "serial"), why)


PUBLISHED: Rules = {"iree": _iree}
