"""How many parts IREE cuts the axis of an arg_reduce into (SetSplitReductionSizes), and what it takes for one."""

import math

from vkconv.call import Call
from vkconv.core import ceil_div
from vkconv.device import Device
from vkconv.ops.core.published import Published, Rules
from vkconv.ops.core.requirements import scratch_budget
from vkconv.ops.kernels.split_rules import arg_bands

# A key and a place.
PART_BYTES = 8


def by_bands(call: Call, device: Device) -> tuple[int, str]:
    """Parts of the axis, and why; no more than the scratch holds."""
    axis, extent = call["axis"], call.shape("x")[call["axis"]]
    tile, why = arg_bands(extent, axis == 0)
    if tile is None:
        return 1, why
    wanted, most = ceil_div(extent, tile), scratch_budget(device) // (PART_BYTES * max(1, call.outputs["y"].size))
    if wanted <= most:
        return wanted, why
    parts = ceil_div(extent, ceil_div(extent, max(1, most)))
    return parts, f"{why}; {parts} fit the scratch"


def _iree(call: Call, device: Device) -> Published | None:
    """Slices of the axis in two passes, or all of it by a workgroup or an invocation for each output."""
    if not math.prod(call.shape("x")):
        return None
    parts, why = by_bands(call, device)
    return (
        Published(("two_pass",), why, {"parts": parts}) if parts > 1 else Published(("subgroup", "tree", "serial"), why)
    )


PUBLISHED: Rules = {"iree": _iree}
