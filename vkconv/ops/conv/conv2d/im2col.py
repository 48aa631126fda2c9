"""im2col for conv2d: windows gathered into scratch as columns of a matrix, which a matrix product then reads."""

import dataclasses
import math

from vkconv import shaders
from vkconv.call import Call
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv.common import GROUPS_1, LARGER_THAN_1X1, NO_DILATION
from vkconv.ops.core.base import over_invocations
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.core.workgroups import alone_by_default
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.gemm import VEC4, GemmProblem
from vkconv.ops.kernels.prepack import PACK_TILES, Packing
from vkconv.ops.kernels.products import SCRATCH_BYTES, SHADERS, TILES, Slab, params, product, slabs
from vkconv.ops.kernels.split_k import able_slices, launches, slices_by_rule
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

IM2COL = Shader(shaders.conv2d.IM2COL)


@dataclasses.dataclass(frozen=True, slots=True)
class Threshold:
    """Output channels from which on im2col is taken; None: never."""

    least_c_out: int | None = None

    def __str__(self) -> str:
        return "never" if self.least_c_out is None else f"from {self.least_c_out} output channels on"


THRESHOLD = Policy("conv2d.im2col", Threshold)


def _pays(call: Call, device: Device) -> bool:
    least = THRESHOLD.of(device).least_c_out
    return least is not None and call.shape("y")[1] >= least


ENOUGH_CHANNELS = Requirement(
    "as many output channels as im2col takes on such devices",
    _pays,
    lambda call, device: f"{call.shape('y')[1]}; im2col is taken {THRESHOLD.of(device)} ({THRESHOLD.said(device)})",
)


def _layout(call: Call, slab: Slab) -> GemmProblem:
    """w (C_out, K) by the columns (K, pixels) of each image."""
    c_out, k = call.shape("w")[0], math.prod(call.shape("w")[1:])
    plane = math.prod(call.shape("y")[2:])
    base = (0, 0, slab.image * c_out * plane + slab.first)
    batch = ((slab.images, 0, k * slab.count),) if slab.images > 1 else ()
    return GemmProblem(c_out, slab.count, k, (1, c_out), (slab.count, 1), (plane, 1), batch, True, base)


def _slabs(call: Call) -> list[Slab]:
    """Whole rows of the output, as many as the scratch holds, and parts of a row where it holds none."""
    oh, ow = call.shape("y")[2:]
    most = SCRATCH_BYTES // (4 * math.prod(call.shape("w")[1:]))
    return list(slabs(call.shape("x")[0], oh * ow, most, ow))


def _params(call: Call, device: Device) -> Legal:
    """The tile, and how many slices of the sums keep the device busy: of calls whose columns the scratch holds at once,
    as others make many tiles."""
    cuts = _slabs(call)
    g = _layout(call, cuts[0])
    tiles = params(g, device, element_of(call))
    shared = TILES[tiles["tile"][0]].shared
    slices = slices_by_rule(g, shared, device) if shared else able_slices(g, VEC4)
    return {**tiles, "split_k": slices if len(cuts) == 1 else (1,)}


def _build(call: Call, device: Device, params: Params) -> Program:
    _, c_in, h, w = call.shape("x")
    c_out, _, kh, kw = call.shape("w")
    taps = c_in * kh * kw
    cuts = _slabs(call)
    t, left, _, _ = call["padding"]
    (sh, sw), (dh, dw) = call["stride"], call["dilation"]
    window = {"c_in": c_in, "h": h, "w": w, "ow": call.shape("y")[3], "sh": sh, "sw": sw, "dh": dh, "dw": dw}
    epilogue, slices = Epilogue.of(call, device), params["split_k"]
    e = epilogue if slices == 1 else Epilogue(target="slices")
    steps: list[Dispatch] = []
    for slab in cuts:
        which = {"first_image": slab.image, "images": slab.images, "first_pixel": slab.first, "count": slab.count}
        gather = Dispatch(
            IM2COL,
            {"x": "x", "columns": "columns"},
            *over_invocations(slab.images * c_in * slab.count, alone_by_default(device), device),
            {**which, **window, "pt": t, "pl": left},
            {"KH": kh, "KW": kw},
            loop_iterations=kh * (1 + kw),
        )
        parts = launches(
            *(_layout(call, slab), slices, VEC4, device),
            lambda g: product(params["tile"], g, ("packed", "columns"), e, device),
        )
        steps += [gather, *parts]
    # [K][C_out]: rows of a tile lie side by side.
    packing = Packing(rows=c_out, inner=taps, tile=c_out, row_stride=taps, inner_stride=1)
    scratch = {"columns": 4 * taps * max(slab.images * slab.count for slab in cuts)}
    if slices > 1:
        steps.append(epilogue.sum("slices", slices, call.shape("y"), device))
        scratch["slices"] = 4 * slices * call.outputs["y"].size
    made = packing.program(device, *steps, scratch=scratch, half="columns")
    return epilogue.complete(made, call.shape("y"), device)


IM2COL_GEMM = Route(
    "im2col_gemm",
    _build,
    finishing(IM2COL, PACK_TILES, *SHADERS),
    why="windows gathered once make a plain matrix product of the rest; tiles of output rows keep the gathered matrix "
    "within 16 MiB, and long sums of few tiles are cut in slices, which a last launch adds up in a fixed order",
    must=(FLOATS, GROUPS_1, NO_DILATION, LARGER_THAN_1X1),
    prefer=(ENOUGH_CHANNELS,),
    source="executorch#20059, executorch#20653",
    params=_params,
)
