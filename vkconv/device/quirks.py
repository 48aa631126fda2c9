"""Quirks: what a driver does that its reported limits do not say.

One row each: when it applies, what it does there, what vkconv does about it, its source, and a command that shows it.
Rows of drivers that the tests run on are reproduced by them (tests/gpu/test_quirks.py), so that a driver that was
mended is noticed; the others are reports of others, and the command is for whoever has the device.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

Version = tuple[int, ...]


class DriverFacts(Protocol):
    """What rows ask of a device; `vkconv.device.Device` has it."""

    @property
    def name(self) -> str: ...

    @property
    def vendor(self) -> str: ...

    @property
    def driver_version(self) -> Version: ...

    def fact(self, struct: str, name: str) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Avoid:
    """A route that is not taken by itself where ``test`` holds for a call; forced, it still is. ``when`` in words."""

    op: str
    route: str
    when: str
    test: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Quirk:
    """A row. It applies where everything that it names holds: the VkDriverId, the vendor, a pattern in the device's
    name, the driver's version (from the first to before the second, None for open ends).

    ``limits`` is what the planner must keep to there, ``avoid`` the routes it passes over, ``off`` the extensions that
    count as absent."""

    id: str
    effect: str
    action: str
    source: str
    reproducer: str
    driver_id: str = ""
    vendor: str = ""
    name: str = ""
    driver: tuple[Version | None, Version | None] = (None, None)
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    avoid: tuple[Avoid, ...] = ()
    off: frozenset[str] = frozenset()

    def applies(self, device: DriverFacts) -> bool:
        """Whether the row is about this device and driver."""
        first, before = self.driver
        return (
            self.driver_id in ("", str(device.fact("VkPhysicalDeviceDriverProperties", "driverID")))
            and self.vendor in ("", device.vendor)
            and re.search(self.name, device.name) is not None
            and (first is None or device.driver_version >= first)
            and (before is None or device.driver_version < before)
        )

    @property
    def when(self) -> str:
        """What it applies to, in words."""
        first, before = (None if v is None else ".".join(map(str, v)) for v in self.driver)
        parts = [
            self.vendor,
            self.name and f"device /{self.name}/",
            self.driver_id.removeprefix("VK_DRIVER_ID_"),
            first and f"driver from {first}",
            before and f"driver before {before}",
        ]
        return ", ".join(filter(None, parts))


def _output_channels(call: Any) -> int:
    return int(call.shape("y")[1])


_COOPERATIVE = frozenset({"VK_KHR_cooperative_matrix"})

QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        "llvmpipe-loop-limit",
        "an invocation leaves its loops after 65535 iterations of all of them together, without an error: sums over "
        "more terms come out too small",
        "no dispatch with longer loops is planned",
        "https://gitlab.freedesktop.org/mesa/mesa/-/blob/22.3/src/gallium/auxiliary/gallivm/lp_bld_limits.h "
        "(LP_MAX_TGSI_LOOP_ITERATIONS); measured with Mesa 22.3.6, no longer so in 25.0.7 and 26.1.6",
        "vkconv check reduce:x=1x3000000,op=sum,axes=1 --route reduce=serial --no-quirks",
        driver_id="VK_DRIVER_ID_MESA_LLVMPIPE",
        driver=(None, (25,)),
        limits={"loop iterations": 65535},
    ),
    Quirk(
        "llvmpipe-in-order",
        "dispatches run one after another whatever the barriers between them: a missing one does not show",
        "none: use the validation layer's synchronization validation",
        "https://github.com/ggml-org/llama.cpp/pull/21901; measured with Mesa 22.3.6, 25.0.7 and 26.1.6",
        "vkconv doctor",
        driver_id="VK_DRIVER_ID_MESA_LLVMPIPE",
    ),
    Quirk(
        "adreno-im2col-band",
        "conv2d through im2col and a matrix product differs from run to run for 168 to 192 output channels, on every "
        "device of one tester; the direct route does not",
        "im2col_gemm is not taken by itself for these",
        "https://github.com/pytorch/executorch/issues/21938",
        "vkconv check conv2d:x=1x48x64x64,w=168x48x3x3,p=1 --route conv2d=im2col_gemm --repeat 200",
        vendor="qualcomm",
        driver_id="VK_DRIVER_ID_QUALCOMM_PROPRIETARY",
        avoid=(
            Avoid(
                "conv2d",
                "im2col_gemm",
                "161 to 199 output channels",
                # The tester's clean neighbours are 160 and 200.
                lambda call: 160 < _output_channels(call) < 200,
            ),
        ),
    ),
    Quirk(
        "adreno-840-workgroup-shape",
        "matrix products of independent invocations come out with whole workgroups corrupt in a tenth of the runs, "
        "with workgroups of 8x8 and 4x16; 16x4, 32x2 and flat ones of as many invocations do not",
        "none needed: vkconv's workgroups are flat",
        "https://github.com/pytorch/executorch/issues/22327, https://github.com/pytorch/executorch/pull/22328",
        "vkconv check matmul:a=1500x384,b=384x384 --sweep route,local --repeat 60",
        vendor="qualcomm",
        driver_id="VK_DRIVER_ID_QUALCOMM_PROPRIETARY",
        name=r"Adreno.* 840\b",
    ),
    Quirk(
        "adreno-drift",
        "networks of convolutions give other results in some runs, more of them in some power states of the GPU",
        "none: repeat and compare",
        "https://github.com/pytorch/executorch/issues/21939",
        "vkconv check MODEL --repeat 25",
        vendor="qualcomm",
        driver_id="VK_DRIVER_ID_QUALCOMM_PROPRIETARY",
    ),
    Quirk(
        "adreno-840-842.19",
        "a shared array whose length is a specialization-constant Select holds wrong values, and cooperative matrices "
        "fail with lane indices from gl_SubgroupInvocationID or packed strides",
        "no shader sizes an array so; cooperative matrices count as absent",
        "https://github.com/Tencent/ncnn/pull/6972",
        "vkconv check --all-ops",
        vendor="qualcomm",
        driver_id="VK_DRIVER_ID_QUALCOMM_PROPRIETARY",
        name=r"Adreno.* 840\b",
        driver=((512, 842, 19), (512, 842, 20)),
        off=_COOPERATIVE,
    ),
    Quirk(
        "powervr-d-zeros",
        "ExecuTorch 1.1 gave zeros where an image was larger than the device allows; 1.4 does not",
        "limits are checked for every dispatch when it is planned, and vkconv uses no images",
        "https://github.com/pytorch/executorch/issues/17299, "
        "https://github.com/abdelaziz-mahdy/executorch_flutter/issues/26",
        "vkconv check --all-ops",
        vendor="imagination",
        name="PowerVR D-Series",
    ),
    Quirk(
        "amd-proprietary-coopmat",
        "large tiles of cooperative matrices are wrong or slow",
        "cooperative matrices count as absent",
        "https://github.com/ggml-org/llama.cpp/pull/18763, https://github.com/ggml-org/llama.cpp/pull/22750",
        "vkconv check --all-ops --no-quirks",
        driver_id="VK_DRIVER_ID_AMD_PROPRIETARY",
        off=_COOPERATIVE,
    ),
    Quirk(
        "arc-a-coopmat",
        "cooperative matrices are no faster than plain shaders, and slower in some",
        "cooperative matrices count as absent",
        "https://github.com/ggml-org/llama.cpp/pull/14001, https://github.com/ggml-org/llama.cpp/pull/24404",
        "vkconv check --all-ops --no-quirks",
        vendor="intel",
        name=r"Arc.* A\d{3}",
        off=_COOPERATIVE,
    ),
)
