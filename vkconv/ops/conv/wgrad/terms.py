"""What is added to a gradient by launches of its own, to the sum in f32: further tensors, and where 16-bit operands
make a gradient of f32 also the first, which the kernels that read those would take for theirs."""

import dataclasses
from collections.abc import Callable

from vkconv.call import Call
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.ops.conv.wgrad.combine import plus
from vkconv.program import Made, Program
from vkconv.requirement import Requirement
from vkconv.route import Params

TERM = "term"
Build = Callable[[Call, Device, Params], Made]


def with_operands_of_one_type(need: Requirement) -> Requirement:
    """The need of one element type for all, where f32 results and what is added to them may stand beside 16 bits."""

    def alike(call: Call) -> Call:
        dtype = call.specs["x"].dtype
        kept = {"x": call.operands["x"], "dy": call.operands["dy"]}
        outputs = {name: TensorSpec(spec.shape, dtype) for name, spec in call.outputs.items()}
        return dataclasses.replace(call, operands=kept, outputs=outputs) if call["dw_dtype"] else call

    return dataclasses.replace(need, test=lambda call, device: need.test(alike(call), device))


def by_themselves(call: Call) -> tuple[tuple[str, float], ...]:
    """The operands that such launches add, in their order, and what each is multiplied by."""
    first = (("add", float(call["beta"])),) if call["dw_dtype"] and call.has("add") else ()
    return (*first, *((f"{TERM}{i}", float(factor)) for i, factor in enumerate(call["factors"])))


def with_terms(build: Build) -> Build:
    """The program of a route, and behind it the launches that add."""

    def made(call: Call, device: Device, params: Params) -> Made:
        terms = by_themselves(call)
        if not terms:
            return build(call, device, params)
        rest = {name: spec for name, spec in call.operands.items() if name not in dict(terms)}
        attrs = {**call.attrs, "factors": (), "beta": call["beta"] if rest.get("add") else 0.0}
        program = build(dataclasses.replace(call, operands=rest, attrs=attrs), device, params)
        # Two sums in turn: what a launch reads, it does not write.
        sums = [f"sum{i % 2}" for i in range(len(terms))]
        size = call.outputs["dw"].size
        steps = tuple(
            plus(source, name, factor, target, size, device)
            for source, (name, factor), target in zip(sums, terms, [*sums[1:], "dw"], strict=True)
        )
        assert isinstance(program, Program)
        first = program.renamed({"dw": sums[0]})
        scratch = dict.fromkeys(sums, 4 * size)
        return dataclasses.replace(first, steps=(*first.steps, *steps), scratch={**first.scratch, **scratch})

    return made
