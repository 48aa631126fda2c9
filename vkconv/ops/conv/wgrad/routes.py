"""The routes of a convolution's gradient by its weights: how each cuts the sum, and how the parts meet."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str, shape_str
from vkconv.device import Device
from vkconv.kernel import Access, Shader
from vkconv.ops.conv.wgrad import coopmat as cooperative
from vkconv.ops.conv.wgrad import winograd as winograd
from vkconv.ops.conv.wgrad.combine import COMBINE, combine
from vkconv.ops.conv.wgrad.kernels import ATOMIC_CAS, ATOMIC_FLOAT, SUBGROUPS, Output, launch, whole
from vkconv.ops.conv.wgrad.policy import (
    KERNELS,
    SPLITS,
    Cut,
    all_of_it,
    bands_of,
    by_bands,
    by_images,
    default_splits,
    default_tiles,
    equal,
    most_in_scratch,
)
from vkconv.ops.conv.wgrad.problem import Problem
from vkconv.ops.core.requirements import (
    FLOATS,
    INT32,
    MOST_INT,
    NO_HALVES,
    ON_GPU,
    float_atomics,
    loop_iterations,
    within_scratch,
)
from vkconv.ops.kernels.coopmat import NEEDS as MATRIX_NEEDS
from vkconv.ops.kernels.coopmat import TILES
from vkconv.ops.kernels.coopmat_gemm import PRODUCT_TO_F32, cooperative_params, cooperative_product
from vkconv.ops.kernels.gemm import Epilogue, Layout
from vkconv.ops.kernels.products import SHADERS as PRODUCTS
from vkconv.ops.kernels.products import params as product_params
from vkconv.ops.kernels.products import product
from vkconv.ops.kernels.winograd import INPUT
from vkconv.ops.kernels.winograd import SOURCE as WINOGRAD_SOURCE
from vkconv.program import Bind, Program, read, write
from vkconv.route import Params, Requirement, Route

# From what on winograd is taken: channels of a group, in and out, and pixels of dy; and channels where what it
# transforms does not stay in a cache. H200, us, winograd and the next: 2x256x14x14 to 256 30 and 71,
# 2x23x13x13 to 64 38 and 55, 9x16x24x240 to 32 122 and 161; 16x16x225x225 to 64, 560 MiB, 658 and 603. lavapipe, ms:
# 4x128x28x28 to 128 14.2 and 21.4, 64x56x56 to 64 4.3 and 5.4; 48x64x64 to 48 4.8 and 4.2, 2x256x14x14 17.7 and 11.5.
_LEAST, _OTHER_LEAST, _CACHE_BYTES = {"cpu": (64, 3000, 64)}, (16, 256, 32), 64 << 20
_VARIANTS = (
    Shader(shaders.wgrad.BACKWARD_WEIGHT_GEMM),
    Shader(shaders.wgrad.BACKWARD_WEIGHT_ROWS),
    Shader(shaders.wgrad.BACKWARD_WEIGHT_NARROW),
    Shader(shaders.wgrad.BACKWARD_WEIGHT_ROWS, defines=SUBGROUPS),
)
_ATOMIC = tuple(dataclasses.replace(s, defines=(*d, *s.defines)) for s in _VARIANTS for d in (ATOMIC_CAS, ATOMIC_FLOAT))


def _binds(call: Call, target: str, access: Access = "w") -> tuple[Bind, ...]:
    # A call without add binds x there: it is never read.
    return (*read("x", "dy", "add" if call.has("add") else None), Bind(target, access))


def _in_parts(call: Call, device: Device, params: Params, cut: Cut) -> Program:
    p, kernel = Problem.of(call), KERNELS[params["tile"]]
    parts = cut(call, device, params.get("splits", 1))[0]
    count = parts.count(p)
    if count <= 1:
        output = Output(float(call["scale"]), float(call["beta"]), call.has("add"))
        return Program((launch(kernel, p, whole(p), output, _binds(call, "dw"), device),))
    made = launch(kernel, p, parts, Output(to_parts=True), _binds(call, "parts"), device)
    return Program((made, combine(call, count, device)), scratch={"parts": 4 * p.size * count})


def _atomic(call: Call, device: Device, params: Params) -> Program:
    p, kernel = Problem.of(call), KERNELS[params["tile"]]
    output = Output(float(call["scale"]), defines=ATOMIC_FLOAT if params["native"] else ATOMIC_CAS)
    parts = whole(p, params["splits"])
    added = launch(kernel, p, parts, output, _binds(call, "dw", "rw"), device)
    return Program((combine(call, 0, device), added))


def _params(call: Call, device: Device, cut: Cut, *, scratch: bool = True) -> Mapping[str, tuple[int, ...]]:
    p = Problem.of(call)
    legal: dict[str, tuple[int, ...]] = {"tile": tuple(default_tiles(cut, call, device))}
    if cut is all_of_it:
        return legal
    default = default_splits(cut, call, device)
    most = most_in_scratch(p, device) if scratch else MOST_INT // p.size
    most = min(most, max(p.n, 1)) if cut is by_images else most
    most = min(most, max(p.pixels, 1))
    return legal | {"splits": (default, *(s for s in SPLITS if s != default and s <= most))}


def _split_note(call: Call, device: Device, params: Params, cut: Cut) -> str:
    p = Problem.of(call)
    parts, why = cut(call, device, params["splits"])
    count = parts.count(p)
    boxes = f"boxes of {shape_str(parts.tile)} (n, d, h, w)" if parts.boxes(p) > 1 else "equal parts"
    scratch = bytes_str(4 * p.size * count) if count > 1 else "no"
    return f"{count} {boxes}: {why}; {scratch} scratch; {KERNELS[params['tile']]}"


def _scratch_bytes(cut: Cut, call: Call, device: Device) -> int:
    p = Problem.of(call)
    count = cut(call, device, default_splits(cut, call, device))[0].count(p)
    return 4 * p.size * count if count > 1 else 0


def _within_scratch(cut: Cut) -> Requirement:
    return within_scratch(functools.partial(_scratch_bytes, cut))


def _iterations(cut: Cut) -> Callable[[Call, Device], int]:
    def count(call: Call, device: Device) -> int:
        p = Problem.of(call)
        parts = cut(call, device, default_splits(cut, call, device))[0]
        return max(KERNELS[default_tiles(cut, call, device)[0]].iterations(p, parts), parts.count(p))

    return count


# Kernels round pixels up to slices: what they add must not overflow.
_MOST_PIXELS = MOST_INT - 512
PIXELS_INT32 = Requirement(
    f"sums over at most {_MOST_PIXELS} pixels",
    lambda call, device: Problem.of(call).pixels <= _MOST_PIXELS,
    lambda call, device: str(Problem.of(call).pixels),
)
PARTS_INT32 = Requirement(
    "fewer than 2^31 partial results to add",
    lambda call, device: default_splits(equal, call, device) * Problem.of(call).size <= MOST_INT,
    lambda call, device: f"{default_splits(equal, call, device)} parts of {Problem.of(call).size}",
)
POINTWISE = Requirement(
    "a kernel of one tap, stride 1 and no padding",
    lambda call, device: Problem.of(call).pointwise,
    lambda call, device: (
        f"{shape_str(call['w_shape'][2:])}, stride {shape_str(call['stride'])}, padding {shape_str(call['padding'])}"
    ),
)
BANDS = Requirement(
    "policy bands, and a sum that it cuts",
    lambda call, device: (
        call["policy"] == "bands"
        and (call["split"] > 1 or (not call["split"] and bands_of(Problem.of(call), device)[0] is not None))
    ),
    lambda call, device: f"policy {call['policy']}, {bands_of(Problem.of(call), device)[1]}",
)
SEVERAL_PARTS = Requirement(
    "another policy than bands, and more than one part",
    lambda call, device: call["policy"] != "bands" and default_splits(equal, call, device) > 1,
    lambda call, device: f"policy {call['policy']}, {default_splits(equal, call, device)} parts",
)
WINDOW_3X3 = Requirement(
    "a 3x3 kernel of two dimensions, stride 1 and no dilation",
    lambda call, device: _window_3x3(Problem.of(call)),
    lambda call, device: (
        f"{shape_str(call['w_shape'][2:])}, stride {shape_str(call['stride'])}, dilation {shape_str(call['dilation'])}"
    ),
)
WINOGRAD_INT32 = Requirement(
    "scratch of fewer than 2^31 elements",
    lambda call, device: winograd.scratch_elements(call, device) <= MOST_INT,
    lambda call, device: f"{winograd.scratch_elements(call, device)} elements",
)
WINOGRAD_SCRATCH = within_scratch(winograd.parts_bytes)
MANY_CHANNELS = Requirement(
    "as many channels of a group, and pixels, as pay on such devices",
    lambda call, device: _pays(Problem.of(call), device),
    lambda call, device: _extent(Problem.of(call), device),
)
BY_RULE = Requirement(
    "neither a split nor another policy than auto",
    lambda call, device: call["split"] == 0 and call["policy"] == "auto",
    lambda call, device: f"split {call['split']}, policy {call['policy']}",
)


def _layout(call: Call) -> Layout:
    """dy (C_out / groups, pixels) by x (pixels, C_in / groups) of each image and group."""
    p = Problem.of(call)
    plane = math.prod(p.out)
    each = ((p.n, p.c_out * plane, p.c_in * plane), (p.groups, p.rows * plane, p.channels * plane))
    batch = tuple(row for row in each if row[0] > 1)
    return Layout(p.rows, p.channels, plane, (plane, 1), (1, plane), (p.channels, 1), batch)


def _explicit(call: Call, device: Device, params: Params) -> Program:
    p = Problem.of(call)
    binds = (*read("dy", "x", None), *write("parts"))
    made = product(params["product"], _layout(call), Epilogue(), binds, device)
    return Program((made, combine(call, p.n, device)), scratch={"parts": 4 * p.size * p.n})


def _explicit_cooperative(call: Call, device: Device, params: Params) -> Program:
    p, tile = Problem.of(call), TILES[params["tile"]]
    binds = (*read("dy", "x", None), *write("parts"))
    made = cooperative_product(_layout(call), Epilogue(), binds, tile, device, PRODUCT_TO_F32)
    return Program((made, combine(call, p.n, device)), scratch={"parts": 4 * p.size * p.n})


def _explicit_bytes(call: Call) -> int:
    p = Problem.of(call)
    return 4 * p.size * p.n


IMAGES = Requirement("at least one image to multiply", lambda c, d: Problem.of(c).n > 0, lambda c, d: "an empty batch")
IMAGES_IN_SCRATCH = within_scratch(lambda call, device: _explicit_bytes(call), "a partial result of each image")
_LEAST_SIDE, _LEAST_PIXELS = 32, 64
FILLS_MATRICES = Requirement(
    f"at least {_LEAST_SIDE} channels of a group, in and out, and images of {_LEAST_PIXELS} pixels",
    lambda call, device: min(_layout(call).m, _layout(call).n) >= _LEAST_SIDE and _layout(call).k >= _LEAST_PIXELS,
    lambda call, device: f"{_layout(call).n} in, {_layout(call).m} out, {_layout(call).k} pixels",
)


def _extent(p: Problem, device: Device) -> str:
    channels, pixels, uncached = _LEAST.get(device.kind, _OTHER_LEAST)
    return (
        f"{p.channels} in, {p.rows} out, {p.pixels} pixels, {bytes_str(winograd.transformed_bytes(p))} transformed; at "
        f"least {channels} channels and {pixels} pixels, and {uncached} beyond {bytes_str(_CACHE_BYTES)}"
    )


def _window_3x3(p: Problem) -> bool:
    ones = (1, 1, 1)
    return not p.deep and (p.kernel, p.stride, p.dilation) == ((1, 3, 3), ones, ones)


def _pays(p: Problem, device: Device) -> bool:
    channels, pixels, uncached = _LEAST.get(device.kind, _OTHER_LEAST)
    fewer = min(p.channels, p.rows)
    cached = fewer >= uncached or winograd.transformed_bytes(p) <= _CACHE_BYTES
    return fewer >= channels and p.pixels >= pixels and cached


_MUST = (FLOATS, INT32, PIXELS_INT32)
_EXPLICIT = (
    POINTWISE,
    IMAGES,
    IMAGES_IN_SCRATCH,
    loop_iterations(lambda c, d: max(_layout(c).k, _layout(c).batches)),
)
ROUTES: tuple[Route, ...] = (
    Route(
        "explicit_cooperative",
        _explicit_cooperative,
        (COMBINE, PRODUCT_TO_F32),
        why="one tap of 16-bit floats: the product of each image and group by the GPU's matrix units, parts in f32, "
        "then the sum over images",
        must=(*MATRIX_NEEDS, INT32, PIXELS_INT32, *_EXPLICIT),
        prefer=(BY_RULE, ON_GPU, FILLS_MATRICES),
        source="composable_kernel#2947",
        params=lambda call, device: cooperative_params(_layout(call), device),
        note=lambda call, device, params: f"{Problem.of(call).n} images; {bytes_str(_explicit_bytes(call))} scratch",
    ),
    Route(
        "cooperative",
        cooperative.build,
        (COMBINE, cooperative.GRADIENT),
        why="implicit GEMM on the GPU's matrix units, f16 in and f32 sums, in as many parts as keep the device busy; "
        "windows are gathered eight channels at a time, and a second pass adds the parts in a fixed order",
        must=(
            *MATRIX_NEEDS,
            cooperative.SOME_TILE,
            INT32,
            PIXELS_INT32,
            within_scratch(cooperative.scratch_bytes),
            loop_iterations(cooperative.iterations),
        ),
        prefer=(BY_RULE, ON_GPU, cooperative.FILLS_TILES),
        source="composable_kernel#2947",
        params=cooperative.params,
        note=cooperative.note,
    ),
    Route(
        "winograd",
        winograd.build,
        (INPUT, winograd.GRADIENTS, winograd.TAPS, *_VARIANTS),
        why="3x3 with stride 1 takes 2.25 or 4 times fewer products between cheap transforms of tiles; an input that "
        "is not finite makes NaN of all taps that its tile meets",
        must=(*_MUST, WINDOW_3X3, WINOGRAD_INT32, WINOGRAD_SCRATCH, loop_iterations(winograd.iterations)),
        prefer=(BY_RULE, MANY_CHANNELS),
        source=WINOGRAD_SOURCE,
        params=winograd.params,
        note=winograd.note,
    ),
    Route(
        "explicit_gemm",
        _explicit,
        (COMBINE, *PRODUCTS),
        why="one tap: a plain matrix product of each image and group, dy by x transposed, then the sum over images",
        must=(*_MUST, *_EXPLICIT),
        opt_in="the split routes need no product of each image",
        source="composable_kernel#2947",
        params=lambda call, device: product_params(_layout(call), device),
        note=lambda call, device, params: f"{Problem.of(call).n} images; {bytes_str(_explicit_bytes(call))} scratch",
    ),
    Route(
        "split_n",
        functools.partial(_in_parts, cut=by_images),
        (COMBINE, *_VARIANTS),
        why="each part sums some of the images; a second pass adds the parts in a fixed order",
        must=(*_MUST, _within_scratch(by_images), loop_iterations(_iterations(by_images))),
        opt_in="two_stage fills the device",
        source="iree#22275",
        params=functools.partial(_params, cut=by_images),
        note=functools.partial(_split_note, cut=by_images),
    ),
    Route(
        "split_multi",
        functools.partial(_in_parts, cut=by_bands),
        (COMBINE, *_VARIANTS),
        why="each part sums a box of images, rows and columns, sized by bands of the output; a second pass adds the "
        "parts in a fixed order",
        must=(*_MUST, _within_scratch(by_bands), loop_iterations(_iterations(by_bands))),
        prefer=(BANDS,),
        source="iree#22491",
        params=functools.partial(_params, cut=by_bands),
        note=functools.partial(_split_note, cut=by_bands),
    ),
    Route(
        "two_stage",
        functools.partial(_in_parts, cut=equal),
        (COMBINE, *_VARIANTS),
        why="as many equal parts as keep the device busy, wherever an image ends; a second pass adds them in a fixed "
        "order, scales and adds",
        must=(*_MUST, _within_scratch(equal), loop_iterations(_iterations(equal))),
        prefer=(SEVERAL_PARTS,),
        source="composable_kernel#2947",
        params=functools.partial(_params, cut=equal),
        note=functools.partial(_split_note, cut=equal),
    ),
    Route(
        "one_stage",
        _atomic,
        (COMBINE, *_ATOMIC),
        why="equal parts that are added to dw by atomic operations: no scratch, but the order of the adds changes from "
        "run to run, and the last bits with it",
        must=(NO_HALVES, *_MUST, PARTS_INT32, loop_iterations(_iterations(equal))),
        opt_in="the parts are added in another order each time",
        source="composable_kernel#2947",
        params=lambda call, device: {
            **_params(call, device, equal, scratch=False),
            "native": (1, 0) if float_atomics(device) else (0,),
        },
        note=lambda call, device, params: (
            f"{params['splits']} parts, "
            f"{'float atomics' if params['native'] else 'compare-and-swap'}; not deterministic; no scratch; "
            f"{KERNELS[params['tile']]}"
        ),
        deterministic=False,
    ),
    Route(
        "direct",
        functools.partial(_in_parts, cut=all_of_it),
        _VARIANTS,
        why="each workgroup sums everything of its outputs: no scratch and no second pass",
        must=(*_MUST, loop_iterations(_iterations(all_of_it))),
        params=functools.partial(_params, cut=all_of_it),
        note=lambda call, device, params: f"{all_of_it(call, device, 1)[1]}; no scratch; {KERNELS[params['tile']]}",
    ),
)
