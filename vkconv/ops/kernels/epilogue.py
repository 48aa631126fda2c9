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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError, shape_str
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core.activation import activation, apply, check_numbers
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Operand, Outputs, over_invocations
from vkconv.ops.core.tolerance import addends, largest, of_error, rounding_of_storing, rounding_of_sum, shows_addends
from vkconv.ops.kernels.strided import STRIDED_COPY, strided_copy, walk_defaults
from vkconv.program import Composite, Dispatch, Program, Word
from vkconv.requirement import Requirement
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
_PACKED, _UNFINISHED = "per_channel", "unfinished"
AnyMade = TypeVar("AnyMade", Program, Composite)
RESIDUAL_ADDED = ("RESIDUAL", "")
SUM_SPLIT_K = Shader(shaders.kernels.SUM_SPLIT_K)
# Split-K factors that it adds up.
SPLIT_K_SLICES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_BUFFERS, _WITH_RESIDUAL = "maxPerStageDescriptorStorageBuffers", 5


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


RESIDUAL_BOUND = Requirement(
    "no residual, or five storage buffers in a launch",
    lambda call, device: not call.has("residual") or binds_residual(device),
    lambda call, device: f"{device.limit(_BUFFERS)} storage buffers",
)


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


def finished(call: Call, arrays: Arrays, sums: F64) -> F64:
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


def with_residual(arrays: Arrays, sums: F64) -> F64:
    """Sums and the residual of a call, where it has one."""
    residual = arrays.get("residual")
    return sums if residual is None else sums + np.asarray(residual, np.float64)


Reference = Callable[[Call, Arrays], Outputs]


def rounding_of_products(
    reference: Reference, terms: int, call: Call, arrays: Arrays, stored: DType = DType.F32
) -> F64:
    """How far each sum of products of a call may be off, as `rounding_of_sum` has it, behind its activation and scale:
    by how far that moves them. Factors that are ``stored`` in 16 bits before they are multiplied add what that takes
    from them."""
    bare = dataclasses.replace(call, attrs={**call.attrs, **NO_EPILOGUE})
    operands = {**arrays, "slope": None}
    sizes = addends(reference, bare, operands)
    error = rounding_of_sum(sizes, terms)
    if stored is not DType.F32:
        error = error + rounding_of_storing(sizes, stored)
    if call["act"] == "none":
        return np.asarray(error * abs(float(call["out_scale"])))
    sums, slope = np.asarray(reference(bare, operands)[0], np.float64), {"slope": arrays.get("slope")}
    with np.errstate(all="ignore"):
        stays = finished(call, slope, sums)
        moved = (np.abs(finished(call, slope, sums + e) - stays) for e in (error, -error))
        return np.asarray(np.nan_to_num(np.fmax(*moved), nan=0.0, posinf=0.0))


def magnitude_of_products(reference: Reference, terms: Callable[[Call], int]) -> Callable[[Call, Arrays, F64], F64]:
    """The magnitude of an op whose sums of products an activation may follow, and a scale and shift that: what rounds
    before counts for every element, so that only a single product that stays as it is has its own; what the shift is
    added to may be larger than the result by as much; and where so much cancelled that none of the results is as large
    as what was added, that counts."""

    def magnitude(call: Call, arrays: Arrays, result: F64) -> F64:
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


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """What a launch does with sums before it stores them in ``target``: act(sums + bias + residual), then a scale and
    shift.

    ``bias``, ``slope`` and ``residual`` are buffers, ``channels`` the length of the first two. ``numbers`` are the
    parameters of the activation or, where it ``is_rescaled``, the scale and shift. ``then`` is the epilogue of one
    launch more, on devices that cannot bind a residual beside all else.

    A builder asks for it with `of`, spreads `buffers`, `push` and `constants` over the arguments of the launch that
    ends its sums, takes `variant` of the shader, and returns what `complete` makes of its program.
    """

    act: str = "none"
    bias: str | None = None
    slope: str | None = None
    residual: str | None = None
    numbers: tuple[float, float] = (0.0, 0.0)
    is_rescaled: bool = False
    channels: int = 0
    target: str = "y"
    then: "Epilogue | None" = None

    @staticmethod
    def of(call: Call, device: Device, bias: str = "b", target: str = "y") -> "Epilogue":
        """That of a call, whose operand with the bias and whose output have these names."""
        b, slope, residual = (
            name if call.operands.get(name) is not None else None for name in (bias, "slope", "residual")
        )
        spec = call.operands.get(bias) or call.operands.get("slope")
        channels = spec.size if spec else 0
        numbers, is_rescaled = epilogue_numbers(call), rescales(call.attrs)
        whole = Epilogue(call["act"], b, slope, residual, numbers, is_rescaled, channels, target)
        if residual is None or binds_residual(device):
            return whole
        rest = dataclasses.replace(whole, bias=None)
        return Epilogue(bias=b, channels=whole.channels, target=_UNFINISHED, then=rest)

    @property
    def per_channel(self) -> str | None:
        """The buffer with the bias and slope."""
        return _PACKED if self.bias and self.slope else self.bias or self.slope

    @property
    def buffers(self) -> dict[str, str | None]:
        """What a launch binds for it; the residual in the variant that adds one."""
        residual = {"residual": self.residual} if self.residual else {}
        return {"per_channel": self.per_channel, **residual}

    @property
    def push(self) -> dict[str, float]:
        """Its push constants."""
        return dict(zip(("act_a", "act_b"), self.numbers, strict=True))

    @property
    def constants(self) -> dict[str, Word]:
        """Its specialization constants."""
        act, per_channel = epilogue_constants(self.act, self.bias is not None, self.is_rescaled)
        return {"ACT": act, "PER_CHANNEL": per_channel}

    def variant(self, shader: Shader) -> Shader:
        """The variant of a shader that does all of it."""
        return shader.having(RESIDUAL_ADDED) if self.residual else shader

    def storing(self, partial: str) -> "Epilogue":
        """That of a launch whose sums go to scratch, to be added up and finished by `sum`: no residual is bound."""
        return dataclasses.replace(self, residual=None, target=partial)

    def sum(
        self, partial: str, slices: int, shape: Sequence[int], device: Device, axis: int = 1, beta: float = 1.0
    ) -> Dispatch:
        """The launch that adds up ``slices`` partial sums of all outputs, which have this shape, and finishes them.
        Channels lie along ``axis``; the bias is taken ``beta`` times."""
        total, channels, plane = math.prod(shape), shape[axis], math.prod(shape[axis + 1 :])
        return Dispatch(
            self.variant(SUM_SPLIT_K),
            {"slices": partial, "y": self.target, **self.buffers},
            *over_invocations(total, 128, device),
            {"total": total, "channels": channels, "plane": plane, **self.push, "beta": beta},
            {**self.constants, "SPLIT_K": slices},
            loop_iterations=slices,
        )

    def complete(self, made: AnyMade, shape: Sequence[int], device: Device, axis: int = 1) -> AnyMade:
        """The program of a builder that used it, for outputs of this shape: with bias and slope put side by side once,
        and the launch that adds what the device could not bind."""
        prepack, packed, elements = made.prepack, dict(made.packed), made.elements
        both = (self.bias, self.slope) if self.bias and self.slope else ()
        for i, source in enumerate(both):
            base = i * self.channels
            prepack += strided_copy(
                device, walk_defaults(device), source, _PACKED, (self.channels,), (1,), (1,), target_base=base
            )
            packed[_PACKED], elements = 2 * 4 * self.channels, elements | {_PACKED}
        steps, scratch = made.steps, dict(made.scratch)
        if self.then:
            steps += (self.then.sum(self.target, 1, shape, device, axis),)
            scratch[self.target] = 4 * math.prod(shape)
        return dataclasses.replace(
            made, steps=steps, prepack=prepack, packed=packed, scratch=scratch, elements=elements
        )


def finishing(*shaders: Shader) -> tuple[Shader, ...]:
    """All that a route of these shaders may use, whose builder takes an `Epilogue`."""
    every = (*shaders, STRIDED_COPY, SUM_SPLIT_K)
    ending = (shader for shader in every if Y_F32 not in shader.defines)  # to scratch of f32, no sum ends
    adding = (
        s.having(RESIDUAL_ADDED) for s in ending if any(binding.name == "residual" for binding in s.kernel.bindings)
    )
    return tuple(dict.fromkeys((*every, *adding)))
