"""A product whose reduction goes further than one launch of its tiles: what the tiles come to is reduced once more."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from vkconv.call import Call
from vkconv.core import DType, Shape, bytes_str
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.requirements import F32_OR_I32, FLOATS, NUMBERS
from vkconv.ops.fused.in_turn import REDUCE_ROUTES
from vkconv.ops.reduce.op import REDUCE
from vkconv.program import Composite, Inner
from vkconv.requirement import Requirement
from vkconv.route import Params, Route, Sub, judge

# A first stage: the call, which reduces axes of the product and keeps none of them, and these axes.
Stage = tuple[Call, tuple[int, ...]]


def begun(call: Call, full: TensorSpec, done: tuple[int, ...], **attrs: AttrValue) -> Stage:
    """The call that reduces its product, ``full``, over the axes ``done`` alone, which ``attrs`` say."""
    dims = tuple(extent for axis, extent in enumerate(full.dims) if axis not in done)
    outputs = {"y": TensorSpec(dims, full.dtype)}
    return dataclasses.replace(call, attrs={**call.attrs, **attrs, "keepdims": False}, outputs=outputs), done


def _of_one_type(call: Call) -> Call:
    """The call as if an f32 operand or result beside 16-bit floats had 16 bits too."""
    half = call.half
    if half is None:
        return call

    def narrow(spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.shape, half) if spec.dtype.is_float else spec

    operands = {name: spec and narrow(spec) for name, spec in call.operands.items()}
    return dataclasses.replace(call, operands=operands, outputs={k: narrow(spec) for k, spec in call.outputs.items()})


def _beside_f32(route: Route) -> Route:
    """A route whose kernels take f32 on one side and 16 bits on the other, where elements are to be of one type."""

    def loose(need: Requirement) -> Requirement:
        if need not in (FLOATS, F32_OR_I32, NUMBERS):
            return need
        return dataclasses.replace(need, test=lambda call, device: need.test(_of_one_type(call), device))

    return dataclasses.replace(route, must=tuple(map(loose, route.must)))


REDUCING = tuple(map(_beside_f32, REDUCE_ROUTES))


def _in_f32(call: Call) -> Call:
    """The call with a result of f32, whatever its operands are: nothing is rounded between two stages."""
    return dataclasses.replace(call, outputs={"y": TensorSpec(call.outputs["y"].shape, DType.F32)})


def _rest(call: Call, stage: Stage, axes: Sequence[int]) -> Call:
    """The reduction of a stage's result that is left."""
    first, done = stage
    left = [axis - sum(other < axis for other in done) for axis in axes if axis not in done]
    return _again(call, first.shape("y"), left)


def rest_of(call: Call, part: Call, parts: int) -> Call:
    """The reduction of so many parts of equal weight, each the result of ``part``."""
    return _again(call, (parts, *part.shape("y")), (0,))


def _again(call: Call, shape: Shape, axes: Sequence[int]) -> Call:
    """The reduction of what was reduced before: sums of squares are added up, and norms make a norm."""
    function = "sum" if call["op"] == "sum_square" else call["op"]
    attrs = {"op": function, "axes": tuple(axes), "keepdims": False}
    made = REDUCE.call({"x": TensorSpec(shape, DType.F32)}, attrs)
    return dataclasses.replace(made, outputs={"y": call.outputs["y"]})


def in_stages(
    op: str,
    first_of: Callable[[Call], Stage | None],
    axes: Callable[[Call], Sequence[int]],
    routes: Sequence[Route],
    why: str,
) -> Route:
    """The route of ``op`` that reduces by two of its inner calls: as far as ``first_of`` says, by one of ``routes``,
    into scratch of f32, and that over the rest of ``axes``."""
    repeating = tuple(_beside_f32(route) for route in routes if route.deterministic)

    def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
        stage = first_of(call)
        assert stage is not None
        return {op: Sub(_in_f32(stage[0]), repeating), "reduce": Sub(_rest(call, stage, axes(call)), REDUCING)}

    def program(call: Call, device: Device, params: Params) -> Composite:
        stage = first_of(call)
        assert stage is not None
        made = Inner(op, {"y": "stage"}), Inner("reduce", {"x": "stage"})
        return Composite(made, scratch={"stage": 4 * stage[0].outputs["y"].size})

    def note(call: Call, device: Device, params: Params) -> str:
        stage = first_of(call)
        assert stage is not None
        return f"{bytes_str(4 * stage[0].outputs['y'].size)} of scratch between the two"

    def takes(call: Call, device: Device) -> bool:
        stage = first_of(call)
        return stage is not None and any(judge(route, stage[0], device).preferred for route in repeating)

    def refused(call: Call, device: Device) -> str:
        stage = first_of(call)
        verdicts = [judge(route, stage[0], device) for route in repeating] if stage else []
        return "; ".join(f"{v.route.name} needs {v.refused_by}, and here it is {v.actual}" for v in verdicts)

    further = Requirement(
        "a reduction that tiles begin and others go on with",
        lambda call, device: first_of(call) is not None,
        lambda call, device: " and ".join(map(str, axes(call))),
    )
    fused = Requirement("a first stage that is fused", takes, refused)
    shaders = dict.fromkeys(s for route in (*repeating, *REDUCING) for s in route.shaders)
    return Route("fused_stages", program, tuple(shaders), why, (FLOATS, further), (fused,), inner=inner, note=note)
