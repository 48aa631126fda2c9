"""Quirks: what a driver does that its reported limits do not say. One row each, with its source and a test that
reproduces it (tests/gpu/test_quirks.py), so that a driver that was mended is noticed."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Quirk:
    """A row: ``driver_id`` is the VkDriverId it applies to; ``limits`` what the planner must keep to there."""

    id: str
    driver_id: str
    effect: str
    source: str
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        "llvmpipe-loop-limit",
        "VK_DRIVER_ID_MESA_LLVMPIPE",
        "an invocation leaves its loops after 65535 iterations of all of them together, without an error: sums over "
        "more terms come out too small",
        "Mesa, src/gallium/auxiliary/gallivm/lp_bld_limits.h, LP_MAX_TGSI_LOOP_ITERATIONS; measured with Mesa 22.3.6",
        {"loop iterations": 65535},
    ),
)
