"""Calls whose tensors lie in another layout than the kernels take: ``layout=NHWC``, ``layout=NHWGC,w_layout=GKYXC``.

Such a call has the shapes, and shape attributes, of its layout; what it means is that of the call with channels first
that it is beside. Calls in the default layout have none in their attributes, so that nothing else needs to know of
layouts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkconv.call import Call
from vkconv.core import GraphError, shape_str
from vkconv.graph.ir import AttrValue, TensorSpec
from vkconv.once import once
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Outputs, Resolved, Specs, Sums
from vkconv.ops.core.shapes import ints
from vkconv.ops.kernels.layout import Layout, Order

_OfFactors = Callable[[Call, Mapping[str, F64]], F64]

LAYOUT, W_LAYOUT = "layout", "w_layout"


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

        def finish(call: Call, arrays: Arrays, total: F64) -> F64:
            if self.is_first(call.attrs):
                return sums.finish(call, arrays, total)
            output = next(iter(call.outputs))
            layout = self.of(output, call.attrs)
            there: Any = layout.to_first(total) if layout else total
            made: F64 = self._made(call, output, sums.finish(self.first(call), self._arrays(call, arrays), there))
            return made

        return Sums(sums.names, self.in_layout(sums.products), finish)

    def in_layout(self, of_factors: _OfFactors) -> _OfFactors:
        """What is made of the factors of a sum, for calls in any layout: as large as the output, laid out as that."""

        def made(call: Call, factors: Mapping[str, F64]) -> F64:
            total = of_factors(self.first(call), self._arrays(call, factors))
            return total if self.is_first(call.attrs) else self._made(call, next(iter(call.outputs)), total)

        return made
