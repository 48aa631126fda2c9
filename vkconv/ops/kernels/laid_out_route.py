"""Routes for calls in any layout: that of the call with channels first, between launches that reorder.

They bring the operands into that order, in scratch, and what the route makes into the order of the call. What stays as
it is in memory is bound where it lies. Weights that are constant are brought into order when they are prepacked.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from vkconv.call import Call
from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.ops.core.shapes import row_major
from vkconv.ops.kernels.layout import Layout
from vkconv.ops.kernels.op_layouts import Layouts
from vkconv.ops.kernels.strided import STRIDED_COPY, walk_defaults
from vkconv.ops.kernels.tiled import TRANSPOSE_TILES, reordering_copy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route, Sub, nothing_inside
from vkconv.storage import check_types, stored


@dataclasses.dataclass(frozen=True)
class LaidOutRoute(Route):
    """A route of an op for calls in any layout: ``base`` between launches that reorder."""

    base: Route | None = dataclasses.field(default=None, compare=False, repr=False)
    layouts: Layouts | None = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, base: Route, layouts: Layouts) -> "LaidOutRoute":
        """The route that takes what ``base`` takes, in any layout."""
        first = layouts.first

        def need(one: Requirement) -> Requirement:
            return dataclasses.replace(
                one,
                test=lambda call, device: one.test(first(call), device),
                actual=lambda call, device: one.actual(first(call), device),
            )

        def note(call: Call, device: Device, params: Params) -> str:
            own = base.note(first(call), device, params)
            return "; ".join(filter(None, (own, _said(layouts, call))))

        def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
            return base.subs(first(call), device, params)

        depth, rounding = base.f16_depth, base.rounding
        own = {field.name: getattr(base, field.name) for field in dataclasses.fields(Route)}
        own |= {
            "program": lambda call, device, params: base.program(first(call), device, params),
            "shaders": tuple(dict.fromkeys((*base.shaders, STRIDED_COPY, TRANSPOSE_TILES))),
            "must": tuple(map(need, base.must)),
            "prefer": tuple(map(need, base.prefer)),
            "params": lambda call, device: base._params(first(call), device),
            "follow": lambda call, device, given: base.follow(first(call), device, given),
            "inner": base.inner if base.inner is nothing_inside else inner,
            "note": note,
            "estimated_us": lambda call, device, params: base.estimated_us(first(call), device, params),
            "f16_depth": depth and (lambda call: depth(first(call))),
            "rounding": rounding and layouts.in_layout(rounding),
        }
        return cls(**own, base=base, layouts=layouts)

    def seen(self, call: Call) -> Call:
        assert self.layouts is not None
        return self.layouts.first(call)

    def reorders(self, call: Call) -> tuple[int, int]:
        assert self.layouts is not None
        return _launches(self.layouts, call)

    def build(self, call: Call, device: Device, params: Params | None = None) -> Program:
        """As every route's; of a call in another layout, with what reorders."""
        assert self.base is not None and self.layouts is not None
        first = self.layouts.first(call)
        program = self.base.build(first, device, params)
        return program if first is call else _around(program, self.layouts, call, device)


def _moved(layouts: Layouts, call: Call) -> dict[str, Layout]:
    """The operands and outputs that are brought into another order, with where they lie."""
    named = ((name, spec, layouts.of(name, call.attrs)) for name, spec in call.specs.items())
    return {name: layout for name, spec, layout in named if layout is not None and layout.moves(spec.dims)}


def _around(program: Program, layouts: Layouts, call: Call, device: Device) -> Program:
    """The program of the call with channels first as one of the call."""
    moved, specs = _moved(layouts, call), call.specs
    inside = {name: f"{name}.first" for name in moved}
    copies = {
        name: _copy(layout, device, *_ends(name, inside, call), specs[name].dims, back=name in call.outputs)
        for name, layout in moved.items()
    }
    types = {name: spec.dtype for name, spec in specs.items()}
    types |= {inside[name]: specs[name].dtype for name in moved}
    if call.half is not None:
        names = list(copies)
        steps = stored(Program(tuple(copies.values())), types, call.half, device).steps
        copies = dict(zip(names, steps, strict=True))
    program = program.renamed(inside)
    early = [name for name in moved if name in layouts.prepacked]
    before = [copies[name] for name in moved if name in call.operands and name not in early]
    behind = [copies[name] for name in moved if name in call.outputs]
    made = dataclasses.replace(
        program,
        steps=(*before, *program.steps, *behind),
        prepack=(*(copies[name] for name in early), *program.prepack),
    )
    read = {buffer for step in made.steps for buffer in step.buffers.values()}
    sizes = {inside[name]: specs[name].nbytes for name in moved}
    kept = {inside[name] for name in early} & read
    packed = {**made.packed, **{name: nbytes for name, nbytes in sizes.items() if name in kept}}
    scratch = {**made.scratch, **{name: nbytes for name, nbytes in sizes.items() if name not in kept}}
    made = dataclasses.replace(made, packed=packed, scratch=scratch)
    check_types(made, types)
    return made


def _launches(layouts: Layouts, call: Call) -> tuple[int, int]:
    """The launches that reorder at every run of a call, before the others and behind them."""
    moved = _moved(layouts, call)
    behind = sum(name in call.outputs for name in moved)
    return len(moved) - behind - sum(name in layouts.prepacked for name in moved), behind


def _said(layouts: Layouts, call: Call) -> str:
    """What a call's program reorders; empty where that is nothing."""
    moved = _moved(layouts, call)
    if not moved:
        return ""
    nbytes = sum(2 * call.specs[name].nbytes for name in moved)
    each = [
        f"{name} {'from' if name in call.outputs else 'to'} {layout.order.letters}" for name, layout in moved.items()
    ]
    return f"reorders {', '.join(each)} by a launch each, {bytes_str(nbytes)} read and written"


def _ends(name: str, inside: Mapping[str, str], call: Call) -> tuple[str, str]:
    """Source and target of the copy of an operand or output."""
    return (inside[name], name) if name in call.outputs else (name, inside[name])


def _copy(layout: Layout, device: Device, source: str, target: str, shape: Sequence[int], *, back: bool) -> Dispatch:
    """The launch that brings a tensor of this shape there into the order of kernels, or with ``back`` from it."""
    dims = [shape[p] for p in layout.perm]
    if back:
        there = row_major(dims)
        of_letter = [there[layout.perm.index(i)] for i in range(len(shape))]
        return reordering_copy(device, walk_defaults(device), source, target, shape, of_letter)
    lies = row_major(shape)
    return reordering_copy(device, walk_defaults(device), source, target, dims, [lies[p] for p in layout.perm])
