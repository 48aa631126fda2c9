"""The routes of separable_conv2d, and the kernel that inverted_residual shares: all convolutions in one launch, with
what lies between them in shared memory, and each in turn."""

import dataclasses
import math
from collections.abc import Sequence

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.conv.conv2d.op import CONV2D
from vkconv.ops.core.activation import activation
from vkconv.ops.core.base import most_shared_bytes, over_workgroups
from vkconv.ops.core.requirements import FLOATS, ON_GPU, loop_iterations
from vkconv.ops.fused.convolutions import InRow, Link
from vkconv.ops.fused.saved import Saving, pays
from vkconv.ops.fused.separable_tiles import TILES, Problem, SeparableTile, needed, repeated, tiles_by_rule
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.epilogue import EPILOGUE_ATTRS, Epilogue, finishing
from vkconv.ops.kernels.prepack import PACK_TILES, Packing
from vkconv.ops.kernels.strided import strided_copy, walk_defaults
from vkconv.ops.kernels.windows import WINDOW_ATTRS
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route

KERNEL = shaders.fused.SEPARABLE_CONV2D
SEPARABLE = Shader(KERNEL)
EXPANDING = SEPARABLE.having(("EXPAND", ""))
_EXPANDING, _BIASES, _VEC4 = "expanding", "biases", 4
# Taps that the shader unrolls at most, and rows of windows under a column of outputs.
_MOST_TAPS, _MOST_REACH = 49, 20
_LAST = ("b", "slope", "residual")


def depthwise_link(call: Call, x: TensorSpec, source: str) -> Link:
    """The depthwise convolution of an op that has one, of the operand or link ``source``."""
    attrs = {attr.name: call[attr.name] for attr in WINDOW_ATTRS}
    attrs |= {"groups": x.dims[1], "act": call["between"], "act_a": call["between_a"], "act_b": call["between_b"]}
    operands = {"x": x, "w": call.operands["wd"], "b": call.operands.get("bd")}
    reads = {"x": source, "w": "wd", **({"b": "bd"} if call.has("bd") else {})}
    return Link("depthwise", CONV2D.call(operands, attrs), reads, depthwise=True)


def pointwise_link(call: Call, x: TensorSpec, source: str) -> Link:
    """The 1x1 convolution that ends an op, of the link ``source``."""
    there = {name: name for name in _LAST if call.has(name)}
    operands = {"x": x, "w": call.operands["w"], **{name: call.operands[name] for name in there}}
    attrs = {attr.name: call[attr.name] for attr in EPILOGUE_ATTRS}
    return Link("pointwise", CONV2D.call(operands, attrs), {"x": source, "w": "w", **there})


def links(call: Call) -> Sequence[Link]:
    """The two convolutions of a separable one."""
    x = call.operands["x"]
    assert x is not None
    first = depthwise_link(call, x, "x")
    return first, pointwise_link(call, first.call.outputs["y"], first.name)


IN_ROW = InRow(links)


def problem(call: Call) -> Problem:
    """What tiles depend on."""
    return Problem.of(call, "we" in call.operands)


def tile_params(call: Call, device: Device) -> Legal:
    """The tiles, the one of the rule first."""
    return {"tile": tiles_by_rule(problem(call), KERNEL, element_of(call), device)}


def estimated_us(call: Call, device: Device, params: Params) -> float:
    """Microseconds by a tile, with the launch."""
    return TILES[params["tile"]].us(problem(call), device)


def saving(call: Call, tile: SeparableTile, between: Sequence[TensorSpec]) -> Saving:
    """What a tile saves, and what it repeats; each tensor ``between`` is written and read in turn."""
    p, image = problem(call), math.prod(call.shape("x")[2:])
    nbytes = 2 * sum(spec.nbytes for spec in between)
    return Saving(nbytes, len(between), needed(p, image), repeated(tile, p, image))


def separable(call: Call, device: Device, params: Params) -> Program:
    """The program of one launch; with weights ``we`` it expands its input first."""
    tile, p = TILES[params["tile"]], problem(call)
    c_in, h, w = call.shape("x")[1:]
    e = Epilogue.of(call, device)
    pack = Packing(p.channels, p.between, tile.channels, p.between, 1, inner_step=tile.depth)
    push = {
        **{"n": p.images, "c_in": c_in, "h": h, "w": w},
        **{"c_between": p.between, "c_out": p.channels, "oh": p.rows, "ow": p.columns},
        **dict(zip(("pt", "pl"), call["padding"][:2], strict=True)),
        **e.push,
        **{"between_a": float(call["between_a"]), "between_b": float(call["between_b"])},
    }
    constants = {
        **e.constants,
        **tile.constants(p),
        **{"BETWEEN": activation(str(call["between"])).id, "HAS_BETWEEN_BIAS": call.has("bd")},
    }
    bound = {"x": "x", "depthwise": "wd", "biases": _biases(call), "weight": "packed"}
    if p.expands:
        push |= {"expand_a": float(call["expand_a"]), "expand_b": float(call["expand_b"])}
        constants |= {"EXPAND_ACT": activation(str(call["expand"])).id, "HAS_EXPAND_BIAS": call.has("be")}
        bound |= {"expand": _EXPANDING}
    step = Dispatch(
        e.variant(EXPANDING if p.expands else SEPARABLE),
        {**bound, "y": e.target, **e.buffers},
        *over_workgroups(tile.workgroups(p), tile.local, device),
        push,
        constants,
        tile.shared_bytes(p),
        tile.loop_iterations(p),
    )
    made = e.complete(pack.program(device, step), call.shape("y"), device)
    made = _with_expanding(made, p, device) if p.expands else made
    return _with_biases(made, p, device) if _biases(call) == _BIASES else made


def _with_expanding(made: Program, p: Problem, device: Device) -> Program:
    """The program with the weights that expand packed too: [channels / 4][inputs][4]."""
    pack = Packing(p.between, p.inputs, _VEC4, p.inputs, 1)
    return dataclasses.replace(
        made,
        prepack=(*made.prepack, pack.dispatch("we", _EXPANDING, device)),
        packed={**made.packed, _EXPANDING: 4 * pack.size},
        elements=made.elements | {_EXPANDING},
    )


def _biases(call: Call) -> str | None:
    """The buffer with the biases of what is expanded and what is convolved."""
    there = [name for name in ("be", "bd") if call.has(name)]
    return _BIASES if len(there) == 2 else next(iter(there), None)


def _with_biases(made: Program, p: Problem, device: Device) -> Program:
    """The program with both of them put side by side once."""
    prepack, size = made.prepack, (p.between,)
    for i, source in enumerate(("be", "bd")):
        prepack += strided_copy(
            device, walk_defaults(device), source, _BIASES, size, (1,), (1,), target_base=i * p.between
        )
    packed = {**made.packed, _BIASES: 2 * 4 * p.between}
    return dataclasses.replace(made, prepack=prepack, packed=packed, elements=made.elements | {_BIASES})


def _few_taps(call: Call) -> bool:
    p = problem(call)
    return p.taps <= _MOST_TAPS and 3 * p.stride[0] + (p.kernel[0] - 1) * p.dilation[0] < _MOST_REACH


def _least_bytes(call: Call) -> int:
    return min(tile.shared_bytes(problem(call)) for tile in TILES.values())


FEW_TAPS = Requirement(
    f"a kernel of at most {_MOST_TAPS} taps, 4 outputs of a column from at most {_MOST_REACH} rows",
    lambda call, device: _few_taps(call),
    lambda call, device: "{} taps, stride {}, dilation {}".format(
        problem(call).taps, call["stride"][0], call["dilation"][0]
    ),
)
HOLDS = Requirement(
    "shared memory that holds a tile and its windows",
    lambda call, device: any(tile.fits(problem(call), device) for tile in TILES.values()),
    lambda call, device: f"{bytes_str(_least_bytes(call))} of {bytes_str(most_shared_bytes(device))}",
)


def bound_buffers(call: Call) -> int:
    """Storage buffers that the launch binds: input, weights of each convolution, biases, output, residual."""
    return 6 + ("we" in call.operands) + call.has("residual")


BINDS = Requirement(
    "storage buffers for input, weights of each convolution, biases, what is per channel, output and residual",
    lambda call, device: bound_buffers(call) <= int(device.limit("maxPerStageDescriptorStorageBuffers")),
    lambda call, device: (
        f"{bound_buffers(call)} buffers, and it allows {device.limit('maxPerStageDescriptorStorageBuffers')}"
    ),
)
ENDS = loop_iterations(
    lambda call, device: max(
        tile.loop_iterations(problem(call)) for tile in TILES.values() if tile.fits(problem(call), device)
    )
)


def by_rule(call: Call, device: Device) -> SeparableTile:
    """The tile that is taken without being asked for."""
    return TILES[tile_params(call, device)["tile"][0]]


RATE = Policy("fused.separable", float)


def one_launch(shader: Shader, in_row: InRow, rate: Policy[float], why: str) -> Route:
    """The route by the kernel, which pays by the launches and bytes that it saves."""
    return Route(
        "one_launch",
        separable,
        finishing(shader, PACK_TILES),
        why=why,
        must=(FLOATS, FEW_TAPS, HOLDS, BINDS, ENDS),
        prefer=(
            ON_GPU,
            pays(lambda call, device: saving(call, by_rule(call, device), in_row.middle(call)), rate),
        ),
        params=tile_params,
        estimated_us=estimated_us,
        note=lambda call, device, params: str(saving(call, TILES[params["tile"]], in_row.middle(call))),
    )


ROUTES: tuple[Route, ...] = (
    one_launch(
        SEPARABLE,
        IN_ROW,
        RATE,
        "the depthwise result of a tile of pixels stays in shared memory, where the product reads it: it is not "
        "written and read once more, and a launch less runs; workgroups of other output channels convolve it again",
    ),
    IN_ROW.unfused("the depthwise convolution into scratch, then the 1x1, by their best routes: what fusing must beat"),
)
