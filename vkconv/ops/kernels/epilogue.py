"""What becomes of the sums of a convolution: the bias of the channel is added, then the activation applied, then the
result times ``out_scale`` plus ``out_shift`` is taken. Kernels have two floats for all of that, so that only an
activation without parameters can have a scale and shift behind it. A ``residual`` of the shape of the result, as
networks with shortcuts have it, is added before the activation.

b and slope are (C_out) each. ``act=prelu`` is x, times the slope of its channel where x is negative; every other
activation is a row of activation.py. Kernels read both from one buffer, [bias][slope] (shaders/include/epilogue.glsl):
a fifth buffer beside x, w and y would be one more than the storage buffers that Vulkan 1.1 promises to a shader. A
residual is that fifth one, in variants of the shaders; where a device binds only four, one launch more adds it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core.activation import activation, apply, check_numbers
from vkconv.ops.core.base import F64, Attr, Attrs, Operand, linear_groups
from vkconv.ops.core.tolerance import addends, largest, of_error, rounding_of_sum, shows_addends
from vkconv.ops.kernels.strided import STRIDED_COPY, strided_copy
from vkconv.program import Composite, Dispatch, Inner, Made, Program, Word, positional, read, write
from vkconv.route import Params, Route
from vkconv.storage import Y_F32

PRELU = "prelu"
BIAS, SLOPE = Operand("b", optional=True), Operand("slope", optional=True)
RESIDUAL = Operand("residual", optional=True)
EPILOGUE_ATTRS = (
    Attr("act", "act", str, "none"),
    Attr("act_a", "act_a", float, 0.0),
    Attr("act_b", "act_b", float, 0.0),
    Attr("out_scale", "out_scale", float, 1.0),
    Attr("out_shift", "out_shift", float, 0.0),
)
NO_EPILOGUE: Attrs = {attr.name: attr.default for attr in EPILOGUE_ATTRS if attr.default is not None}
_PACKED = "per_channel"
_COPY: Params = {"local": 64, "items": 1}
SUM_SPLITS = Shader(shaders.kernels.SUM_SPLITS)
# In how many parts sums may be cut that it adds up.
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_BUFFERS, _WITH_RESIDUAL = "maxPerStageDescriptorStorageBuffers", 5
# Shaders that may be the last of a route, and then add a residual.
_FINISHING: tuple[str, ...] = (
    "conv2d_depthwise",
    "conv2d_direct",
    "conv2d_gemm",
    "conv2d_pointwise",
    "conv2d_subgroup",
    "conv2d_tile",
)
_FINISHING += (
    "conv2d_cooperative",
    "conv2d_held",
    "matmul_cooperative",
    "matmul_narrow",
    "matmul_register",
    "matmul_shared",
    "matmul_subgroup",
    "sum_splits",
    "winograd_output",
)


def check_epilogue(b: TensorSpec | None, slope: TensorSpec | None, attrs: Attrs, channels: int, kind: str) -> None:
    """GraphError unless bias and slope have one value for each of the ``kind`` (output, input) channels, a slope comes
    with ``act=prelu``, and there is such an activation."""
    for name, spec in (("bias", b), ("slope", slope)):
        if spec is not None and spec.dims != (channels,):
            raise GraphError(f"the {name} is {shape_str(spec.shape)}; with {channels} {kind} channels it is {channels}")
    act = str(attrs["act"])
    check_rescaling(attrs)
    if act == PRELU and slope is None:
        raise GraphError(f"act is prelu, which needs a slope: one value for each of the {channels} {kind} channels")
    check_numbers(act, attrs["act_a"], attrs["act_b"])
    if act != PRELU:
        activation(act)
        if slope is not None:
            raise GraphError(f"there is a slope of {shape_str(slope.shape)}, but act is {act!r}; only prelu takes one")


def check_residual(residual: TensorSpec | None, y: TensorSpec) -> None:
    """GraphError unless a residual has the shape and dtype of the result that it is added to."""
    if residual is not None and residual != y:
        raise GraphError(f"the residual is {residual}, and the result that it is added to {y}; both must be the same")


def binds_residual(device: Device) -> bool:
    """Whether kernels of the device may bind a residual beside all else."""
    return int(device.limit(_BUFFERS)) >= _WITH_RESIDUAL


def check_rescaling(attrs: Attrs) -> None:
    """GraphError where there is no such activation, or one with parameters comes with a scale or shift."""
    act = str(attrs["act"])
    row = activation("none" if act == PRELU else act)
    if row.params and rescales(attrs):
        raise GraphError(
            f"act is {act!r}, which has parameters ({', '.join(row.params)}), and out_scale is {attrs['out_scale']}, "
            f"out_shift {attrs['out_shift']}; only an activation without parameters takes a scale and shift"
        )


def rescales(attrs: Mapping[str, Any]) -> bool:
    """True where the attributes have a scale or shift."""
    return (attrs["out_scale"], attrs["out_shift"]) != (1.0, 0.0)


def activated(call: Call, sums: F64) -> F64:
    """The activation, scale and shift of a call without slopes, by definition in float64."""
    with np.errstate(all="ignore"):
        y = apply(call["act"], sums, call["act_a"], call["act_b"])
        return np.asarray(y * call["out_scale"] + call["out_shift"])


def finished(call: Call, arrays: Mapping[str, Array | None], sums: F64) -> F64:
    """Sums (N, C, H, W), with bias, activation, scale and shift, by definition in float64."""
    b, slope = (arrays.get(name) for name in ("b", "slope"))
    if b is not None:
        sums = sums + np.asarray(b, np.float64)[:, None, None]
    sums = with_residual(arrays, sums)
    if slope is None:
        return activated(call, sums)
    with np.errstate(all="ignore"):
        y = np.where(sums < 0, np.asarray(slope, np.float64)[:, None, None] * sums, sums)
        return np.asarray(y * call["out_scale"] + call["out_shift"])


def with_residual(arrays: Mapping[str, Array | None], sums: F64) -> F64:
    """Sums and the residual of a call, where it has one."""
    residual = arrays.get("residual")
    return sums if residual is None else sums + np.asarray(residual, np.float64)


Reference = Callable[[Call, Mapping[str, Array | None]], Sequence[Array]]


def rounding_of_products(reference: Reference, terms: int, call: Call, arrays: Mapping[str, Array | None]) -> F64:
    """How far each sum of products of a call may be off, as `rounding_of_sum` has it, behind its activation and scale:
    by how far that moves them."""
    bare = dataclasses.replace(call, attrs={**call.attrs, **NO_EPILOGUE})
    operands = {**arrays, "slope": None}
    error = rounding_of_sum(addends(reference, bare, operands), terms)
    if call["act"] == "none":
        return np.asarray(error * abs(float(call["out_scale"])))
    sums, slope = np.asarray(reference(bare, operands)[0], np.float64), {"slope": arrays.get("slope")}
    with np.errstate(all="ignore"):
        stays = finished(call, slope, sums)
        moved = (np.abs(finished(call, slope, sums + e) - stays) for e in (error, -error))
        return np.asarray(np.nan_to_num(np.fmax(*moved), nan=0.0, posinf=0.0))


def magnitude_of_products(
    reference: Reference, terms: Callable[[Call], int]
) -> Callable[[Call, Mapping[str, Array | None], F64], F64]:
    """The magnitude of an op whose sums of products an activation may follow, and a scale and shift that: what rounds
    before counts for every element, so that only a single product that stays as it is has its own; what the shift is
    added to may be larger than the result by as much; and where so much cancelled that none of the results is as large
    as what was added, that counts."""

    def magnitude(call: Call, arrays: Mapping[str, Array | None], result: F64) -> F64:
        shift, count = abs(float(call["out_shift"])), terms(call)
        if count == 1 and call["act"] == "none" and not shift:
            return np.abs(result)
        if shows_addends(result):
            return largest(result) + shift
        error = rounding_of_products(reference, count, call, arrays)
        return np.asarray(np.fmax(largest(result) + shift, of_error(call, result, error, count)))

    return magnitude


def keeps_zeros(call: Call) -> bool:
    """True where bias, activation, scale and shift leave a 0 as it is."""
    if call.has("b"):
        return False
    if call["act"] == PRELU:
        return bool(call["out_shift"] == 0)
    return bool(activated(call, np.zeros(1))[0] == 0)


def epilogue_constants(act: str, has_bias: bool, is_rescaled: bool) -> tuple[Word, ...]:
    """The two specialization constants of a kernel that finishes sums."""
    row = activation("leaky_relu" if act == PRELU else act)
    return row.id, has_bias + 2 * (act == PRELU) + 4 * is_rescaled


def epilogue_numbers(call: Call) -> tuple[float, float]:
    """The two floats of a kernel that finishes sums: the activation's parameters, or the scale and shift behind one
    that has none."""
    names = ("out_scale", "out_shift") if rescales(call.attrs) else ("act_a", "act_b")
    return float(call[names[0]]), float(call[names[1]])


def per_channel(call: Call) -> str | None:
    """The buffer with the bias and slope of a call; None for one that has neither."""
    if call.has("b") and call.has("slope"):
        return _PACKED
    return "b" if call.has("b") else "slope" if call.has("slope") else None


def packs_per_channel(route: Route) -> Route:
    """The route, with bias and slope put side by side once where a call has both."""

    def program(call: Call, device: Device, params: Params) -> Made:
        made = route.program(call, device, params)
        b, slope = call.operands.get("b"), call.operands.get("slope")
        if b is None or slope is None:
            return made
        copies = (
            *strided_copy(device, _COPY, "b", _PACKED, b.dims, (1,), (1,)),
            *strided_copy(device, _COPY, "slope", _PACKED, slope.dims, (1,), (1,), target_base=b.size),
        )
        packed = {**made.packed, _PACKED: b.nbytes + slope.nbytes}
        return dataclasses.replace(
            made, prepack=(*made.prepack, *copies), packed=packed, elements=made.elements | {_PACKED}
        )

    return dataclasses.replace(route, program=program, shaders=tuple(dict.fromkeys((*route.shaders, STRIDED_COPY))))


def takes_residual(route: Route) -> Route:
    """The route, with the residual of a call added before the activation: by the launch that writes y, or by one more
    where the device binds no fifth buffer."""

    def program(call: Call, device: Device, params: Params) -> Made:
        if not call.has("residual"):
            return route.program(call, device, params)
        if not binds_residual(device):
            return _in_two(route, call, device, params)
        made = route.program(call, device, params)
        steps = (_adding(step) if "y" in step.buffers.values() else step for step in made.steps)
        return _with_steps(made, steps)

    shaders = *route.shaders, SUM_SPLITS
    finishing = (s for s in shaders if s.stem in _FINISHING and Y_F32 not in s.defines)  # those write to scratch
    shaders = *shaders, *map(_variant, finishing)
    return dataclasses.replace(route, program=program, shaders=tuple(dict.fromkeys(shaders)))


def _variant(shader: Shader) -> Shader:
    return dataclasses.replace(shader, defines=(*shader.defines, ("RESIDUAL", "")))


def _with_steps(made: Made, steps: Iterable[Dispatch | Inner]) -> Made:
    if isinstance(made, Composite):
        return dataclasses.replace(made, steps=tuple(steps))
    return dataclasses.replace(made, steps=tuple(step for step in steps if isinstance(step, Dispatch)))


def _adding(step: Dispatch | Inner) -> Dispatch:
    """A launch whose last buffer is y, with the residual behind that."""
    assert isinstance(step, Dispatch)
    return dataclasses.replace(step, shader=_variant(step.shader), buffers={**step.buffers, "residual": "residual"})


def _in_two(route: Route, call: Call, device: Device, params: Params) -> Made:
    """The sums with their bias into scratch, then what follows."""
    operands = {**call.operands, "residual": None, **({"slope": None} if "slope" in call.operands else {})}
    bare = dataclasses.replace(call, operands=operands, attrs={**call.attrs, **NO_EPILOGUE})
    made = route.program(bare, device, params)
    y = call.outputs["y"]
    assert isinstance(made, Program)
    steps = [step.renamed({"y": "unfinished"}) for step in made.steps]
    last = _adding(sum_splits(call, "unfinished", 1, "slope" if call.has("slope") else None, False, device))
    return dataclasses.replace(made, steps=(*steps, last), scratch={**made.scratch, "unfinished": y.nbytes})


def sum_splits(
    call: Call,
    parts: str,
    splits: int,
    bound: str | None,
    has_bias: bool,
    device: Device,
    *,
    axis: int = 1,
    beta: float = 1.0,
) -> Dispatch:
    """The launch that sums ``splits`` parts of all outputs into y and finishes them; ``bound`` has what is per
    channel, which lie along an axis of y, with a bias that is taken ``beta`` times."""
    y = call.shape("y")
    return positional(
        SUM_SPLITS,
        (*read(parts, bound), *write("y")),
        linear_groups(math.prod(y), 128, device),
        (128, 1, 1),
        (math.prod(y), y[axis], math.prod(y[axis + 1 :]), *epilogue_numbers(call), beta),
        (*epilogue_constants(call["act"], has_bias, rescales(call.attrs)), splits),
        loop_iterations=splits,
    )
