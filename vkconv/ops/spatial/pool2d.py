"""Maximum, average and p-norm over sliding windows, with the rules of ONNX MaxPool, AveragePool and LpPool.

x is (N, C, H, W), y is (N, C, OH, OW). A 1-D pool comes as H = 1. NaN in a window makes its output NaN.
"""

import dataclasses
import itertools
import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import GraphError, ceil_div, shape_str
from vkconv.cost import Issued, issue_rate, lanes_of, launch_us
from vkconv.device import Device, target_of
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs, first
from vkconv.ops.core.requirements import FLOATS, ON_CPU, TILES_KEPT
from vkconv.ops.core.tolerance import addends, largest, of_sum
from vkconv.ops.kernels.prepack import MOST_SPAN, short_span
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.ops.kernels.windows import F64, WINDOW_ATTRS, explicit_padding, out_extent, pair, spanned, windows
from vkconv.policy import Policy
from vkconv.program import Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

KINDS = ("avg", "max", "lp")  # index is the shader's KIND


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x = specs["x"]
    assert x is not None
    if len(x.shape) != 4 or not x.dtype.is_float:
        raise GraphError(f"pool2d takes x (N, C, H, W) of a float dtype, not {x}")
    if attrs["kind"] not in KINDS:
        raise GraphError(f"kind is {attrs['kind']!r}; it is one of {', '.join(KINDS)}")
    if not (isinstance(attrs["norm"], float) and 0 < attrs["norm"] < math.inf):
        raise GraphError(f"norm is {attrs['norm']}; it is a finite number above 0")
    n, c, h, w = x.dims
    kernel, stride, dilation = pair(attrs, "kernel"), pair(attrs, "stride"), pair(attrs, "dilation")
    padding = explicit_padding(attrs, (h, w), kernel)
    out: list[int] = []
    for i, (axis, extent) in enumerate((("h", h), ("w", w))):
        pads, span = (padding[i], padding[i + 2]), dilation[i] * (kernel[i] - 1) + 1
        if extent < 1:
            raise GraphError(f"x has {extent} elements along {axis}; a window needs at least 1")
        if max(pads) >= span:
            raise GraphError(
                f"along {axis} the padding is {max(pads)}, but a window spans {span} and would lie in padding alone; "
                f"padding is at most {span - 1}"
            )
        out.append(out_extent(axis, extent, kernel[i], stride[i], pads, dilation[i], bool(attrs["ceil_mode"])))
    canonical: Attrs = {"kernel": kernel, "stride": stride, "dilation": dilation, "padding": padding}
    return {**attrs, **canonical, "auto_pad": "explicit"}, (TensorSpec((n, c, *out), x.dtype),)


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = np.asarray(arrays["x"], np.float64)
    t, left, b, r = call["padding"]
    oh, ow = call.shape("y")[2:]

    def view(array: F64, padding: tuple[int, int, int, int], fill: float) -> F64:
        return windows(array, call["kernel"], call["stride"], padding, call["dilation"], (oh, ow), fill)

    if call["kind"] == "max":
        return [view(x, call["padding"], -np.inf).max(axis=(4, 5))]
    if call["kind"] == "lp":
        powers = np.abs(view(x, call["padding"], 0.0)) ** call["norm"]
        return [np.asarray(powers.sum(axis=(4, 5)) ** (1 / call["norm"]))]
    if call["count_include_pad"]:
        counts = view(np.ones((1, 1, x.shape[2] + t + b, x.shape[3] + left + r)), (0, 0, 0, 0), 0.0)
    else:
        counts = view(np.ones((1, 1, *x.shape[2:])), call["padding"], 0.0)
    with np.errstate(invalid="ignore"):
        return [view(x, call["padding"], 0.0).sum(axis=(4, 5)) / counts.sum(axis=(4, 5))]


def _terms(call: Call) -> int:
    return 1 if call["kind"] == "max" else math.prod(call["kernel"])


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    """Averages may cancel; of powers none do, and a maximum is as it was."""
    if call["kind"] != "avg":
        return np.abs(reference) if call["kind"] == "max" else largest(reference)
    return of_sum(call, reference, addends(_reference, call, arrays), _terms(call))


POOL, COLUMNS = Shader(shaders.spatial.POOL2D), Shader(shaders.spatial.POOL2D_COLUMNS)
TILES = Shader(shaders.spatial.POOL2D_TILES)


def window_push(call: Call, shader: Shader) -> dict[str, Word]:
    """The push constants that a pooling shader declares."""
    n, c, h, w = call.shape("x")
    values: dict[str, Word] = {"planes": n * c, "h": h, "w": w}
    rows = zip(
        ("oh ow", "kh kw", "sh sw", "dh dw", "pt pl pb pr"),
        (call.shape("y")[2:], *(call[name] for name in ("kernel", "stride", "dilation", "padding"))),
        strict=True,
    )
    for names, row in rows:
        values |= dict(zip(names.split(), row, strict=True))
    return {field.name: values[field.name] for field in shader.interface.push if field.name in values}


def _constants(call: Call) -> dict[str, Word]:
    return {"KIND": KINDS.index(call["kind"]), "COUNT_PADDING": bool(call["count_include_pad"])}


def _build_window(call: Call, device: Device, params: Params) -> Program:
    (kh, kw), push = call["kernel"], {**window_push(call, POOL), "p": float(call["norm"])}
    outputs, iterations = call.outputs["y"].size, kh * (1 + kw)
    step = dispatch_each(POOL, outputs, device, params, push, _constants(call), loop_iterations=iterations)
    return Program((step,))


# Outputs of a row that an invocation makes. lavapipe, us of 3x3 windows of stride 2:
#                   8     4     2     1  route window
#   24x112x112    580   704  1023  1531          4134
#   136x28x28     279   314   466   660          1949
_COLUMNS = (8, 4, 2, 1)


def _span(call: Call, columns: int) -> int:
    """Inputs of a row from the first to the last that so many neighbouring outputs touch."""
    return spanned(columns, int(call["stride"][1]), int(call["kernel"][1]), int(call["dilation"][1]))


def _column_params(call: Call, device: Device) -> Legal:
    fitting = [px for px in _COLUMNS if _span(call, px) <= MOST_SPAN]
    best = min(fitting, key=lambda px: ceil_div(call.shape("y")[3], px) * _span(call, px))
    return {"columns": first(best, fitting), **local_params(call, device)}


def _build_columns(call: Call, device: Device, params: Params) -> Program:
    (n, c, _, w), (oh, ow) = call.shape("x"), call.shape("y")[2:]
    (kh, kw), px, sw = call["kernel"], params["columns"], call["stride"][1]
    constants = {
        **_constants(call),
        **{"PX": px, "KH": kh, "KW": kw, "SW": sw, "DW": call["dilation"][1], "LEFT": call["padding"][1]},
        "X_VEC4": w % 4 == 0 and px * sw % 4 == 0,
        "Y_VEC4": ow % 4 == 0 and px % 4 == 0,
    }
    invocations, push = n * c * oh * ceil_div(ow, px), window_push(call, COLUMNS)
    return Program((dispatch_each(COLUMNS, invocations, device, params, push, constants, loop_iterations=kh),))


# Rows and columns of outputs that an invocation may make, the loops unrolled over at most so many inputs.
_TILE_ROWS, _TILE_COLUMNS = (1, 2, 4), (1, 2, 4, 8)
_MOST_INPUTS = 160


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """Inputs and outputs of a tile at most, by rule: its registers. Instructions of an invocation: for itself, for each
    load or store, for each input of a maximum, and for each output beside the steps that combine inputs."""

    inputs: int
    outputs: int
    invocation: int
    access: int
    compared: int
    output: int


_TILES = Policy("spatial.pool_tiles", Tiles)


def _reach(call: Call, rows: int) -> int:
    """Input rows from the first to the last that so many neighbouring outputs touch."""
    return spanned(rows, int(call["stride"][0]), int(call["kernel"][0]), int(call["dilation"][0]))


def _inputs(call: Call, rows: int, columns: int) -> int:
    """Inputs of the rows and columns that a tile of outputs touches."""
    return _reach(call, rows) * _span(call, columns)


def _tiles(call: Call) -> list[tuple[int, int]]:
    """Rows and columns of outputs that an invocation may make."""
    oh, ow = call.shape("y")[2:]
    sizes = itertools.product(_TILE_ROWS, _TILE_COLUMNS)
    fitting = [(ry, px) for ry, px in sizes if ry < 2 * oh and px < 2 * ow and _inputs(call, ry, px) <= _MOST_INPUTS]
    return fitting or [(1, 1)]


def _whole(*lengths: int) -> int:
    """Elements, up to eight, of which these lengths are whole multiples."""
    return math.gcd(8, *lengths)


def _accesses(call: Call, ry: int, px: int) -> int:
    """Loads and stores of a tile."""
    (w, ow), left = (call.shape(name)[3] for name in ("x", "y")), int(call["padding"][1])
    most = 4 if call.half is None else 8
    loaded, stored = (min(most, size) for size in (_whole(w, px * call["stride"][1]), _whole(ow, px)))
    return _reach(call, ry) * ceil_div(-left % loaded + _span(call, px), loaded) + ry * px // stored


def _tile_us(call: Call, device: Device, ry: int, px: int) -> float:
    """Microseconds by such tiles: of the compute unit with the most subgroups, and of one subgroup, which waits for
    each of its instructions."""
    cost, target, lanes = _TILES.of(device), target_of(device), lanes_of(device)
    (n, c), (oh, ow) = call.shape("x")[:2], call.shape("y")[2:]
    kh, kw = pair(call.attrs, "kernel")
    compared = cost.compared if call["kind"] == "max" else 0
    steps = px * (_reach(call, ry) * (kw - 1) + ry * (kh - 1))
    made = cost.access * _accesses(call, ry, px) + compared * _inputs(call, ry, px) + cost.output * ry * px
    issued = cost.invocation + steps + made
    subgroups = ceil_div(n * c * ceil_div(oh, ry) * ceil_div(ow, px), lanes)
    unit = Issued(issued / issue_rate(device), wait=issued * target.value("dependent_cycles"))
    return launch_us(unit, subgroups, 1, target, launches=1)


def _best_tile(call: Call, device: Device) -> tuple[int, int]:
    """The tile that costs the least of those that registers hold."""
    cost, tiles = _TILES.of(device), _tiles(call)
    few = [tile for tile in tiles if _inputs(call, *tile) <= cost.inputs and math.prod(tile) <= cost.outputs]
    return min(few or tiles[:1], key=lambda tile: _tile_us(call, device, *tile))


def _tile_params(call: Call, device: Device) -> Legal:
    best, tiles = _best_tile(call, device), _tiles(call)
    names = [f"{ry}x{px}" for ry, px in tiles]
    return {"tile": first("{}x{}".format(*best), names), **local_params(call, device)}


def _sizes(params: Params) -> tuple[int, int]:
    """Rows and columns of a tile."""
    ry, px = map(int, params["tile"].split("x"))
    return ry, px


def _build_tiles(call: Call, device: Device, params: Params) -> Program:
    (n, c, h, w), (oh, ow) = call.shape("x"), call.shape("y")[2:]
    ry, px = _sizes(params)
    (kh, kw), (sh, sw), (dh, dw), (top, left, bottom, right) = (
        call[name] for name in ("kernel", "stride", "dilation", "padding")
    )
    constants = {
        **_constants(call),
        **{"RY": ry, "PX": px, "X_WHOLE": _whole(w, px * sw), "Y_WHOLE": _whole(ow, px)},
        **{"H": h, "W": w, "OH": oh, "OW": ow, "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw},
        **{"TOP": top, "LEFT": left, "BOTTOM": bottom, "RIGHT": right},
    }
    invocations = n * c * ceil_div(oh, ry) * ceil_div(ow, px)
    return Program((dispatch_each(TILES, invocations, device, params, {"planes": n * c}, constants),))


NO_NORM = Requirement(
    "a maximum or an average", lambda call, device: call["kind"] != "lp", lambda call, device: call["kind"]
)
SHORT_SPAN = short_span("a row of taps over", lambda call: _span(call, 1))
SEVERAL_TAPS = Requirement.of(
    "windows of more than one column",
    lambda call: call["kernel"],
    lambda kernel: kernel[1] > 1,
    lambda kernel: f"a kernel of {shape_str(kernel)}",
)
FEW_INPUTS = Requirement.of(
    f"windows that reach over at most {_MOST_INPUTS} inputs",
    lambda call: _inputs(call, 1, 1),
    lambda inputs: inputs <= _MOST_INPUTS,
    "{} inputs".format,
)
FEW_BY_RULE = Requirement(
    "windows that reach over no more inputs than lie in registers",
    lambda call, device: _inputs(call, 1, 1) <= _TILES.of(device).inputs,
    lambda call, device: f"{_inputs(call, 1, 1)} inputs, {_TILES.of(device).inputs} is the most",
)

ROUTES = (
    Route(
        "tiles",
        _build_tiles,
        (TILES,),
        why="neighbouring outputs of rows and columns share the inputs that are loaded for them, as vectors where rows "
        "allow it, and what is reduced along a row; only the rows and columns at an edge are tested",
        must=(FLOATS, NO_NORM, FEW_INPUTS),
        prefer=(FEW_BY_RULE, TILES_KEPT),
        params=_tile_params,
        estimated_us=lambda call, device, params: _tile_us(call, device, *_sizes(params)),
    ),
    Route(
        "columns",
        _build_columns,
        (COLUMNS,),
        why="for windows of more inputs than tiles take: neighbouring outputs of a row share the inputs they load, as "
        "vec4 where rows allow it, and the taps of a row are no loop: where a load and a step of a loop go lane by "
        "lane, they are what a pool costs",
        must=(FLOATS, NO_NORM, SHORT_SPAN),
        prefer=(ON_CPU, SEVERAL_TAPS),
        params=_column_params,
    ),
    Route(
        "window",
        _build_window,
        (POOL,),
        why="one output per invocation: a pool moves far more bytes than it computes, and a cache holds the overlap "
        "of neighbouring windows; takes every call of floats",
        must=(FLOATS,),
        params=local_params,
    ),
)

POOL2D = Op(
    "pool2d",
    operands=(Operand("x"),),
    resolve=_resolve,
    reference=_reference,
    attrs=(
        Attr("kind", "kind", str),
        Attr("kernel", "k", tuple[int, ...]),
        *WINDOW_ATTRS,
        Attr("ceil_mode", "ceil", bool, False),
        Attr("count_include_pad", "cip", bool, False),
        Attr("norm", "norm", float, 2.0),
    ),
    routes=ROUTES,
    terms=_terms,
    magnitude=_magnitude,
    flops=lambda call: math.prod(call.shape("y")) * math.prod(call["kernel"]),
    cases=(
        "pool2d:x=2x3x13x17,kind=max,k=2,s=2",
        "pool2d:x=1x5x11x9,kind=max,k=3x2,s=2x1,p=1x0x2x1,ceil=1",
        "pool2d:x=1x2x12x10,kind=max,k=3,s=2,p=1,d=2x3",
        "pool2d:x=1x3x7x8,kind=max,k=2,s=3,auto=same_lower",
        "pool2d:x=1x1x4x4,kind=max,k=2,s=3,p=1,ceil=1",
        "pool2d:x=1x3x9x16,kind=max,k=3,p=1",
        "pool2d:x=2x2x14x48,kind=max,k=3,s=2,p=1",
        "pool2d:x=1x4x9x20,kind=max,k=5,p=2",
        "pool2d:x=1x3x6x28,kind=max,k=2,s=2",
        "pool2d:x=1x2x5x1,kind=max,k=1x2,d=1x2,p=0x1",
        "pool2d:x=1x3x10x32,kind=avg,k=3,s=2,p=1",
        "pool2d:x=1x2x9x40,kind=avg,k=3x5,s=2x1,p=1x2,d=1x2",
        "pool2d:x=2x3x7x24,kind=avg,k=3x5,s=2x1,p=1x2x0x1,cip=1",
        "pool2d:x=1x2x7x24,kind=avg,k=2x3,s=1x2,d=2x3,p=1x1x1x4",
        "pool2d:x=2x3x13x17,kind=avg,k=3,s=2,p=1",
        "pool2d:x=2x3x13x17,kind=avg,k=3,s=2,p=1,cip=1",
        "pool2d:x=1x2x10x11,kind=avg,k=3x4,s=2x3,p=0x1x2x2,cip=1,ceil=1",
        "pool2d:x=1x2x10x11,kind=avg,k=3x4,s=2x3,p=0x1x2x2,ceil=1",
        "pool2d:x=1x2x9x10,kind=avg,k=2,s=2,auto=same_upper",
        "pool2d:x=1x2x9x10,kind=avg,k=3x2,d=2x4,p=1",
        "pool2d:x=1x7x1x31,kind=avg,k=1x5,s=1x2,auto=valid",
        "pool2d:x=1x480x3x160,kind=avg,k=3x2,s=3x2",
        "pool2d:x=2x3x13x17,kind=lp,k=3,s=2,p=1",
        "pool2d:x=1x2x9x10,kind=lp,k=3x2,d=2x1,norm=3.5,ceil=1",
        "pool2d:x=1x2x1x12,kind=max,k=3x2,s=3x1,p=0x1x0x1,ceil=1",
        "pool2d:x=2x3x2x3,kind=avg,k=4x5,s=3x4,p=0x1x0x1,ceil=1,cip=1",
    ),
    doc="Maximum, average or p-norm over sliding windows, ONNX rules for padding, ceiling and counting.",
)
