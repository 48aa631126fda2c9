"""Calls whose tensors lie in another layout than the kernels take: ``layout=NHWC``, ``layout=NHWGC,w_layout=GKYXC``.

Such a call has the shapes, and shape attributes, of its layout. Each route of the op takes it as the call with channels
first that it is beside: launches of its program bring the operands into that order, in scratch, and what it makes into
the order of the call. What stays as it is in memory is bound where it lies. Weights that are constant are brought into
order when they are prepacked.

Layouts are named by letters, any order of them: N images, C channels, D, H and W, with G, groups, apart or not; of
weights K output channels, C input channels of a group, Z, Y and X, and G. Calls in the default layout have none in
their attributes, so that nothing else needs to know of layouts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from vkconv.call import Call
from vkconv.core import Array, GraphError, bytes_str, did_you_mean, shape_str
from vkconv.device import Device
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Outputs, Resolved, Specs, Sums
from vkconv.ops.core.shapes import ints, row_major
from vkconv.ops.kernels.strided import STRIDED_COPY
from vkconv.ops.kernels.tiled import TRANSPOSE_TILES, reordering_copy
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Requirement, Route, Sub, once
from vkconv.storage import check_types, stored

LAYOUT, W_LAYOUT = "layout", "w_layout"
_COPY: Params = {"local": 64, "items": 8}
_GROUPS = "G"
# An op and its attributes.
Rewrite = tuple[str, Mapping[str, AttrValue]]


@dataclasses.dataclass(frozen=True)
class Order:
    """The layout of a kind of tensor that kernels take, as ``letters``, of which ``grouped`` counts the groups too, and
    others that are usual."""

    letters: str
    grouped: str
    usual: tuple[str, ...]

    def layout(self, op: str, name: str, given: str) -> "Layout":
        """The layout of that name. GraphError for letters that are not those of the tensor."""
        known = sorted(self.letters), sorted(self.letters + _GROUPS)
        if sorted(given) not in known:
            raise GraphError(
                f"{op}: {name} is {given!r}{did_you_mean(given, (self.letters, *self.usual))}; it is the letters "
                f"{', '.join(self.letters)} in any order, with G where groups are apart: {', '.join(self.usual)}"
            )
        return Layout(self, given)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the dimensions of an `Order` lie."""

    order: Order
    letters: str

    @property
    def is_first(self) -> bool:
        return self.letters == self.order.letters

    @property
    def is_apart(self) -> bool:
        return _GROUPS in self.letters

    @cached_property
    def full(self) -> str:
        """The letters in the order that kernels take, groups ahead of what they are groups of."""
        before = _GROUPS + self.order.grouped if self.is_apart else self.order.grouped
        return self.order.letters.replace(self.order.grouped, before)

    @cached_property
    def perm(self) -> tuple[int, ...]:
        """Dimension i of the full order is dimension perm[i] here."""
        return tuple(map(self.letters.index, self.full))

    def groups(self, shape: Sequence[int]) -> int:
        """The groups of a tensor here that has them apart."""
        return shape[self.letters.index(_GROUPS)]

    def first(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape, of what lies so, that kernels take."""
        there = [shape[p] for p in self.perm]
        if self.is_apart:
            at = self.full.index(_GROUPS)
            there[at : at + 2] = [there[at] * there[at + 1]]
        return tuple(there)

    def here(self, shape: Sequence[int], groups: int) -> tuple[int, ...]:
        """The shape here of what kernels make with that shape, in so many groups."""
        dims = self._split(shape, groups)
        return tuple(dims[self.full.index(letter)] for letter in self.letters)

    def _split(self, shape: Sequence[int], groups: int) -> list[int]:
        dims = list(shape)
        if self.is_apart:
            at = self.full.index(_GROUPS)
            reduced = dims[at] == 1  # all channels are: no groups of them stay
            dims[at : at + 1] = [1, 1] if reduced else [groups, dims[at] // groups]
        return dims

    def to_first(self, array: Array) -> Array:
        """The array, which lies so, as the reference takes it."""
        return np.transpose(array, self.perm).reshape(self.first(array.shape))

    def to_here(self, array: Any, groups: int) -> Any:
        """What the reference makes, as it lies here."""
        return np.transpose(np.reshape(array, self._split(array.shape, groups)), np.argsort(self.perm))

    def steps_to_first(self, shape: Sequence[int]) -> list[Rewrite]:
        """The ops, with attributes, that bring a tensor of this shape here into the order of kernels, one on the other.
        Without groups apart they need no shape."""
        merge: list[Rewrite] = [("reshape", {"shape": self.first(shape)})] if self.is_apart else []
        return [("transpose", {"perm": self.perm}), *merge]

    def steps_to_here(self, shape: Sequence[int]) -> list[Rewrite]:
        """The same from the order of kernels back."""
        part: list[Rewrite] = [("reshape", {"shape": tuple(shape[p] for p in self.perm)})] if self.is_apart else []
        back = tuple(sorted(range(len(self.perm)), key=self.perm.__getitem__))
        return [*part, ("transpose", {"perm": back})]

    def moves(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape here lies otherwise in memory than kernels take it."""
        order = [p for p in self.perm if shape[p] != 1]
        return order != sorted(order) and 0 not in shape

    def copy(self, device: Device, source: str, target: str, shape: Sequence[int], *, back: bool) -> Dispatch:
        """The launch that brings a tensor of this shape here into the order of kernels, or with ``back`` from it."""
        dims = [shape[p] for p in self.perm]
        if back:
            there = row_major(dims)
            of_letter = [there[self.perm.index(i)] for i in range(len(shape))]
            return reordering_copy(device, _COPY, source, target, shape, of_letter)
        lies = row_major(shape)
        return reordering_copy(device, _COPY, source, target, dims, [lies[p] for p in self.perm])


@dataclasses.dataclass(frozen=True)
class Layouts:
    """Of an op, which of its tensors are ``data`` and which ``weights``, the orders of both, and the attributes that
    are the shape of one. ``prepacked`` are operands that most calls have constant; outputs ``if_kept`` are data where
    the attribute keepdims is on, and else without dimensions to name."""

    op: Op
    data: tuple[str, ...]
    data_order: Order
    weights: tuple[str, ...] = ()
    weights_order: Order | None = None
    shapes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prepacked: tuple[str, ...] = ()
    if_kept: tuple[str, ...] = ()

    @property
    def attrs(self) -> tuple[Attr, ...]:
        own = Attr(LAYOUT, LAYOUT, str, self.data_order.letters)
        return (own, Attr(W_LAYOUT, W_LAYOUT, str, self.weights_order.letters)) if self.weights_order else (own,)

    def _layouts(self, attrs: Mapping[str, AttrValue]) -> tuple[Layout, Layout | None]:
        order = self.weights_order
        data = self.data_order.layout(self.op.name, LAYOUT, str(attrs.get(LAYOUT, self.data_order.letters)))
        if order is None:
            return data, None
        return data, order.layout(self.op.name, W_LAYOUT, str(attrs.get(W_LAYOUT, order.letters)))

    def of(self, name: str, attrs: Mapping[str, AttrValue]) -> Layout | None:
        """The layout of an operand or output; None for one that has but one order."""
        data, weights = self._layouts(attrs)
        stem = name.rstrip("0123456789")
        if name in self.data or (name in self.if_kept and attrs["keepdims"]):
            return data
        return weights if name in self.weights or f"{stem}*" in self.weights else None

    def is_first(self, attrs: Mapping[str, AttrValue]) -> bool:
        return LAYOUT not in attrs and W_LAYOUT not in attrs

    # ---- shapes

    def resolve(self, specs: Specs, attrs: Attrs) -> Resolved:
        """As the op's own, of shapes in the layouts of the attributes, which those of a default layout are taken out
        of."""
        data, weights = self._layouts(attrs)
        rest = {name: value for name, value in attrs.items() if name not in (LAYOUT, W_LAYOUT)}
        if data.is_first and (weights is None or weights.is_first):
            return self.op.resolve(specs, rest)
        groups = self._groups(specs, attrs)
        rest |= {"groups": groups} if "groups" in attrs else {}
        there = {name: self._spec(name, spec, attrs) for name, spec in specs.items()}
        for name, tensor in self.shapes.items():
            layout, shape = self.of(tensor, attrs), ints(attrs[name])
            if layout is not None and (len(shape) == len(layout.letters) or tensor in self.weights):
                self._check(name, shape, layout)
                rest[name] = layout.first(shape)
        canonical, made = self.op.resolve(there, rest)
        named = zip(self.op.outputs, made, strict=False)
        outputs = tuple(self._back(name, spec, attrs, groups) for name, spec in named)
        for name, tensor in self.shapes.items():
            layout = self.of(tensor, attrs)
            canonical[name] = layout.here(ints(canonical[name]), groups) if layout else canonical[name]
        names = {LAYOUT: data} | ({W_LAYOUT: weights} if weights else {})
        return {**canonical, **{name: one.letters for name, one in names.items() if not one.is_first}}, outputs

    def _groups(self, specs: Specs, attrs: Attrs) -> int:
        """The groups that tensors have apart, which all must have, and the attribute unless it is 1; that without."""
        given = int(attrs.get("groups", 1))  # type: ignore[arg-type]
        found: dict[str, int] = {}
        for name, spec in specs.items():
            layout = self.of(name, attrs)
            if spec is not None and layout is not None:
                self._check(name, spec.dims, layout)
                found |= {name: layout.groups(spec.dims)} if layout.is_apart else {}
        for name, tensor in self.shapes.items():
            layout, shape = self.of(tensor, attrs), ints(attrs[name])
            if layout is not None and layout.is_apart and len(shape) == len(layout.letters):
                found[name] = layout.groups(shape)
        has = set(found.values()) | ({given} - {1} if found else {given})
        if len(has) > 1:
            said = ", ".join(f"{name} {count}" for name, count in found.items())
            raise GraphError(
                f"{self.op.name}: groups apart are one number, and here they are {said}; groups is {given}"
            )
        return has.pop()

    def _check(self, name: str, shape: Sequence[int], layout: Layout) -> None:
        if len(shape) != len(layout.letters):
            raise GraphError(
                f"{self.op.name}: {name} is {shape_str(shape)}; in the layout {layout.letters} it has "
                f"{len(layout.letters)} dimensions ({', '.join(layout.letters)})"
            )

    def _spec(self, name: str, spec: TensorSpec | None, attrs: Attrs) -> TensorSpec | None:
        layout = self.of(name, attrs)
        return spec if spec is None or layout is None else TensorSpec(layout.first(spec.dims), spec.dtype)

    def _back(self, name: str, spec: TensorSpec | None, attrs: Attrs, groups: int) -> TensorSpec | None:
        layout = self.of(name, attrs)
        return spec if spec is None or layout is None else TensorSpec(layout.here(spec.dims, groups), spec.dtype)

    def first(self, call: Call) -> Call:
        """The call with channels first, the same object each time; the call itself where it is that."""
        return call if self.is_first(call.attrs) else once(("first",), (self.op, call), lambda: self._first(call))

    def _first(self, call: Call) -> Call:
        attrs = {name: value for name, value in call.attrs.items() if name not in (LAYOUT, W_LAYOUT)}
        for name, tensor in self.shapes.items():
            layout = self.of(tensor, call.attrs)
            attrs[name] = layout.first(call[name]) if layout else call[name]
        operands = {name: self._spec(name, spec, dict(call.attrs)) for name, spec in call.operands.items()}
        return self.op.call(operands, attrs)

    def _groups_of(self, call: Call) -> int:
        """The groups of a call that has some apart."""
        return next(
            (
                layout.groups(spec.dims)
                for name, spec in call.specs.items()
                if (layout := self.of(name, call.attrs)) and layout.is_apart
            ),
            1,
        )

    # ---- values

    def _arrays(self, call: Call, arrays: Mapping[str, Any]) -> dict[str, Any]:
        moved = dict(arrays)
        for name, array in arrays.items():
            layout = self.of(name, call.attrs)
            if array is not None and layout is not None:
                moved[name] = layout.to_first(np.asarray(array))
        return moved

    def _made(self, call: Call, name: str, array: Any) -> Any:
        layout = self.of(name, call.attrs)
        return array if layout is None else layout.to_here(array, self._groups_of(call))

    def reference(self, call: Call, arrays: Arrays) -> Outputs:
        if self.is_first(call.attrs):
            return self.op.reference(call, arrays)
        made = self.op.reference(self.first(call), self._arrays(call, arrays))
        return [self._made(call, name, array) for name, array in zip(call.outputs, made, strict=True)]

    def magnitude(self, of: Callable[[Call, Arrays, F64], F64], output: str) -> Callable[[Call, Arrays, F64], F64]:
        """The magnitude of an output in the layout of the call."""

        def made(call: Call, arrays: Arrays, reference: F64) -> F64:
            layout = self.of(output, call.attrs)
            if self.is_first(call.attrs):
                return of(call, arrays, reference)
            there: Any = layout.to_first(reference) if layout else reference
            found: F64 = of(self.first(call), self._arrays(call, arrays), there)
            return found if layout is None or found.shape != there.shape else self._made(call, output, found)

        return made

    def sums(self, sums: Sums) -> Sums:
        """The sums of products, and what is made of them, in the layout that the output has in the call."""

        def products(call: Call, factors: Mapping[str, F64]) -> F64:
            total = sums.products(self.first(call), self._arrays(call, factors))
            return total if self.is_first(call.attrs) else self._made(call, next(iter(call.outputs)), total)

        def finish(call: Call, arrays: Arrays, total: F64) -> F64:
            if self.is_first(call.attrs):
                return sums.finish(call, arrays, total)
            output = next(iter(call.outputs))
            layout = self.of(output, call.attrs)
            there: Any = layout.to_first(total) if layout else total
            made: F64 = self._made(call, output, sums.finish(self.first(call), self._arrays(call, arrays), there))
            return made

        return Sums(sums.names, products, finish)

    # ---- programs

    def moved(self, call: Call) -> dict[str, Layout]:
        """The operands and outputs that are brought into another order, with where they lie."""
        named = ((name, spec, self.of(name, call.attrs)) for name, spec in call.specs.items())
        return {name: layout for name, spec, layout in named if layout is not None and layout.moves(spec.dims)}

    def around(self, program: Program, call: Call, device: Device) -> Program:
        """The program of the call with channels first as one of the call."""
        moved, specs = self.moved(call), call.specs
        inside = {name: f"{name}.first" for name in moved}
        copies = {
            name: layout.copy(device, *_ends(name, inside, call), specs[name].dims, back=name in call.outputs)
            for name, layout in moved.items()
        }
        types = {name: spec.dtype for name, spec in specs.items()}
        types |= {inside[name]: specs[name].dtype for name in moved}
        if call.half is not None:
            names = list(copies)
            steps = stored(Program(tuple(copies.values())), types, call.half, device).steps
            copies = dict(zip(names, steps, strict=True))
        program = program.renamed(inside)
        early = [name for name in moved if name in self.prepacked]
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

    def launches(self, call: Call) -> tuple[int, int]:
        """The launches that reorder at every run of a call, before the others and behind them."""
        moved = self.moved(call)
        behind = sum(name in call.outputs for name in moved)
        return len(moved) - behind - sum(name in self.prepacked for name in moved), behind

    def said(self, call: Call) -> str:
        """What a call's program reorders; empty where that is nothing."""
        moved = self.moved(call)
        if not moved:
            return ""
        nbytes = sum(2 * call.specs[name].nbytes for name in moved)
        each = [
            f"{name} {'from' if name in call.outputs else 'to'} {layout.order.letters}"
            for name, layout in moved.items()
        ]
        return f"reorders {', '.join(each)} by a launch each, {bytes_str(nbytes)} read and written"


def _ends(name: str, inside: Mapping[str, str], call: Call) -> tuple[str, str]:
    """Source and target of the copy of an operand or output."""
    return (inside[name], name) if name in call.outputs else (name, inside[name])


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
            return "; ".join(filter(None, (own, layouts.said(call))))

        def inner(call: Call, device: Device, params: Params) -> Mapping[str, Sub]:
            return base.inner(first(call), device, params)

        depth = base.f16_depth
        own = {field.name: getattr(base, field.name) for field in dataclasses.fields(Route)}
        own |= {
            "program": lambda call, device, params: base.program(first(call), device, params),
            "shaders": tuple(dict.fromkeys((*base.shaders, STRIDED_COPY, TRANSPOSE_TILES))),
            "must": tuple(map(need, base.must)),
            "prefer": tuple(map(need, base.prefer)),
            "params": lambda call, device: base.params(first(call), device),
            "follow": lambda call, device, given: base.follow(first(call), device, given),
            "inner": inner,
            "note": note,
            "f16_depth": depth and (lambda call: depth(first(call))),
        }
        return cls(**own, base=base, layouts=layouts)

    def seen(self, call: Call) -> Call:
        assert self.layouts is not None
        return self.layouts.first(call)

    def reorders(self, call: Call) -> tuple[int, int]:
        assert self.layouts is not None
        return self.layouts.launches(call)

    def build(self, call: Call, device: Device, params: Params | None = None) -> Program:
        """As every route's; of a call in another layout, with what reorders."""
        assert self.base is not None and self.layouts is not None
        first = self.layouts.first(call)
        program = self.base.build(first, device, params)
        return program if first is call else self.layouts.around(program, call, device)


def laid_out(layouts: Layouts, cases: Sequence[str]) -> Op:
    """The op with calls in any layout; ``cases`` are such calls, without the op's name."""
    op = layouts.op
    published = {
        name: lambda call, device, rule=rule: rule(layouts.first(call), device) for name, rule in op.published.items()
    }
    return dataclasses.replace(
        op,
        resolve=layouts.resolve,
        reference=layouts.reference,
        attrs=(*op.attrs, *layouts.attrs),
        routes=tuple(LaidOutRoute.of(route, layouts) for route in op.routes),
        terms=lambda call: op.terms(layouts.first(call)),
        flops=lambda call: op.flops(layouts.first(call)),
        magnitude=op.magnitude and layouts.magnitude(op.magnitude, op.outputs[0]),
        magnitudes={name: layouts.magnitude(of, name) for name, of in op.magnitudes.items()},
        sums=op.sums and layouts.sums(op.sums),
        published=published,
        cases=(*op.cases, *(f"{op.name}:{case}" for case in cases)),
    )
