"""Routes of conv2d whose input and weights are textures: each input is copied into one, weights are packed once.

An input (N, C, H, W) is a texture of W x H texels of four channels, its slices of channels, image by image, one behind
the other in three dimensions or one below the other in two. Weights (M, C, KH, KW) are one of C columns, four output
channels a texel, with a row for each tap of each slice of output channels; of depthwise ones, a column for each tap and
a row for each slice.
"""

import dataclasses
import math
from collections.abc import Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.conv import common
from vkconv.ops.core.base import local_sizes, over_workgroups
from vkconv.ops.core.requirements import FLOATS
from vkconv.ops.kernels.epilogue import Epilogue, finishing
from vkconv.ops.kernels.prepack import Sizes
from vkconv.ops.kernels.textures import TEXTURE_2D, TO_TEXTURE_2D, TO_TEXTURE_3D, Texels, has_format, texel_format
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Params, Route
from vkconv.texture import CHANNELS, VULKAN_FORMATS, extents, fits

POINTWISE = Shader(shaders.conv2d.CONV2D_TEXTURE_POINTWISE)
TILE = Shader(shaders.conv2d.CONV2D_TEXTURE_TILE)
DEPTHWISE = Shader(shaders.conv2d.CONV2D_TEXTURE_DEPTHWISE)
_INPUT, _PACKED = "input_texels", "weight_texels"
# Texels of an input row that an invocation of texture_depthwise keeps, four registers each.
_MOST_TEXELS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class TextureTiles:
    """Of routes of textures: whether they are taken unasked, dimensions of the input's texture, the default first,
    lanes of a workgroup, slices of output channels and columns (or pixels) of an invocation."""

    preferred: bool
    dims: tuple[int, ...]
    local: tuple[int, ...]
    slices: Sizes
    columns: Sizes


_TILES = Policy("conv2d.textures", TextureTiles)


def _input(call: Call, dims: int) -> Texels:
    n, c, h, w = call.shape("x")
    return Texels(w, h, c, 1, w, h * w, dims, outer=n, outer_stride=c * h * w)


def _weights(call: Call) -> Texels:
    c_out, c_group, kh, kw = call.shape("w")
    taps = kh * kw
    if call["groups"] > 1:
        return Texels(taps, 1, c_out, 1, taps, taps, 2)
    return Texels(c_group, taps, c_out, taps, 1, c_group * taps, 2, column_step=CHANNELS)


def _is_half(call: Call) -> bool:
    return call.half is DType.F16


def _dims(call: Call, device: Device) -> tuple[int, ...]:
    """Dimensions that the input's texture may have, the policy's first."""
    return tuple(dims for dims in _TILES.of(device).dims if fits(_input(call, dims).texture, device))


def _fit(call: Call, device: Device) -> bool:
    return has_format(_is_half(call), device) and fits(_weights(call).texture, device) and bool(_dims(call, device))


def _shown(call: Call, device: Device) -> str:
    """What the textures of a call ask for, and what the device allows."""
    if not has_format(_is_half(call), device):
        return f"{VULKAN_FORMATS[texel_format(_is_half(call))]} is not both sampled and stored here"
    asked = {"weights": _weights(call).texture}
    asked |= {f"input in {dims}-D": _input(call, dims).texture for dims in _TILES.of(device).dims}
    sides = ((what, texture, *next(extents(texture, device))) for what, texture in asked.items())
    return "; ".join(f"{what} {texture}, {limit} {most}" for what, texture, limit, _, most in sides)


TEXTURES_FIT = Requirement("an input and weights that fit textures of the device", _fit, _shown)
PREFERRED = Requirement(
    "a device whose evidence says that textures gain more than the copy of the input costs",
    lambda call, device: _TILES.of(device).preferred,
    lambda call, device: "taken only where forced or measured",
)
ONE_EACH = Requirement.of(
    "as many output channels as input channels, each from its own",
    lambda call: (call.shape("x")[1], *call.shape("w")[:2]),
    lambda sizes: sizes[0] == sizes[1] and sizes[2] == 1,
    lambda sizes: f"{sizes[0]} channels, {sizes[1]} from {sizes[2]} each",
)
SHORT_ROW = Requirement.of(
    f"an output from at most {_MOST_TEXELS} input columns",
    lambda call: common.span(call, 1, 1),
    lambda count: count <= _MOST_TEXELS,
    "{} columns".format,
)


def _params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = _TILES.of(device)
    matrix = call.shape("w")[2:] == (1, 1)
    extent = ceil_div(math.prod(call.shape("y")[2:]), t.local[0]) if matrix else call.shape("y")[3]
    return {
        "dims": _dims(call, device),
        "slices": t.slices.values(ceil_div(call.shape("y")[1], CHANNELS), device),
        "columns": t.columns.values(extent, device),
        "local": local_sizes(device, *t.local),
    }


def _depthwise_params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
    t = _TILES.of(device)
    columns = (px for px in t.columns.values(call.shape("y")[3], device) if common.span(call, 1, px) <= _MOST_TEXELS)
    return {"dims": _dims(call, device), "columns": tuple(columns) or (1,), "local": local_sizes(device, *t.local)}


def _built(
    call: Call, device: Device, params: Params, shader: Shader, tiles: int, units: int, sizes: Mapping[str, Word]
) -> Program:
    """A kernel over (image, tile of output channels, block of ``local`` units) that samples input and weights."""
    n, local = call.shape("x")[0], params["local"]
    x, weights, e = _input(call, params["dims"]), _weights(call), Epilogue.of(call, device)
    kernel = e.variant(shader if params["dims"] == 3 else shader.having(TEXTURE_2D))
    taps = math.prod(call.shape("w")[2:])
    step = Dispatch(
        kernel,
        common.buffers(e, _PACKED, _INPUT),
        *over_workgroups(n * tiles * ceil_div(units, local), local, device),
        kernel.taking({**common.push(call, e), "slice_rows": x.rows}),
        {**e.constants, **sizes},
        loop_iterations=taps * (1 + ceil_div(call.shape("w")[1], CHANNELS)),
    )
    program = Program(
        (x.dispatch("x", _INPUT, device), step),
        (weights.dispatch("w", _PACKED, device),),
        {_PACKED: weights.texture.f32_bytes},
        {_INPUT: x.texture.f32_bytes},
        textures={_INPUT: x.texture, _PACKED: weights.texture},
    )
    return e.complete(program, call.shape("y"), device)


def _tiles(call: Call, params: Params) -> int:
    return ceil_div(ceil_div(call.shape("y")[1], CHANNELS), params["slices"])


def _build_pointwise(call: Call, device: Device, params: Params) -> Program:
    px = params["columns"]
    units = ceil_div(math.prod(call.shape("y")[2:]), px)
    sizes = {"SLICES": params["slices"], "PX": px}
    return _built(call, device, params, POINTWISE, _tiles(call, params), units, sizes)


def _build_tile(call: Call, device: Device, params: Params) -> Program:
    (oh, ow), px = call.shape("y")[2:], params["columns"]
    sizes = {"SLICES": params["slices"], "PX": px}
    return _built(call, device, params, TILE, _tiles(call, params), oh * ceil_div(ow, px), sizes)


def _build_depthwise(call: Call, device: Device, params: Params) -> Program:
    (oh, ow), px = call.shape("y")[2:], params["columns"]
    sizes = {"PX": px, "KW": call.shape("w")[3], "SW": call["stride"][1], "DW": call["dilation"][1]}
    slices = ceil_div(call.shape("y")[1], CHANNELS)
    return _built(call, device, params, DEPTHWISE, slices, oh * ceil_div(ow, px), sizes)


def _variants(shader: Shader) -> tuple[Shader, ...]:
    return finishing(shader, shader.having(TEXTURE_2D), TO_TEXTURE_3D, TO_TEXTURE_2D)


_SOURCE = "ExecuTorch's Vulkan backend keeps activations and weights in textures"
TEXTURE_POINTWISE = Route(
    "texture_pointwise",
    _build_pointwise,
    _variants(POINTWISE),
    why="a 1x1 convolution whose input and weights are sampled: four channels a fetch, by the texture cache of GPUs "
    "that have one beside that of buffers",
    must=(FLOATS, common.GROUPS_1, common.KERNEL_1X1, common.NO_PADDING, TEXTURES_FIT),
    prefer=(PREFERRED,),
    params=_params,
    source=_SOURCE,
)
TEXTURE_DEPTHWISE = Route(
    "texture_depthwise",
    _build_depthwise,
    _variants(DEPTHWISE),
    why="four channels of a depthwise convolution a fetch, by the texture cache; texels of a row serve all its taps",
    must=(FLOATS, common.GROUPED, ONE_EACH, SHORT_ROW, TEXTURES_FIT),
    prefer=(PREFERRED,),
    params=_depthwise_params,
    source=_SOURCE,
)
TEXTURE_TILE = Route(
    "texture_tile",
    _build_tile,
    _variants(TILE),
    why="any window of one group whose input and weights are sampled, four channels a fetch; what taps share the "
    "texture cache keeps",
    must=(FLOATS, common.GROUPS_1, TEXTURES_FIT),
    prefer=(PREFERRED,),
    params=_params,
    source=_SOURCE,
)
