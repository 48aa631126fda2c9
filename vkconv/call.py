"""One op with everything static: what is planned, computed and compared."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from vkconv.core import DType
from vkconv.graph.ir import AttrValue, TensorSpec

HALVES = (DType.F16, DType.BF16)


@dataclasses.dataclass(frozen=True)
class Call:
    """One op with static operand specs (None for an absent optional one), outputs and canonical attributes."""

    op: str
    operands: Mapping[str, TensorSpec | None]
    outputs: Mapping[str, TensorSpec]
    attrs: Mapping[str, AttrValue]

    def __getitem__(self, name: str) -> Any:
        """An attribute by name."""
        return self.attrs[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Static shape of an operand or output by name."""
        spec = self.operands.get(name) or self.outputs.get(name)
        if spec is None:
            raise KeyError(f"{self.op} has no operand or output {name!r} in this call")
        return spec.dims

    def has(self, operand: str) -> bool:
        """True when the optional operand is present."""
        return self.operands.get(operand) is not None

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Specs of the operands that are there and of the outputs, by name."""
        return {name: spec for name, spec in (*self.operands.items(), *self.outputs.items()) if spec is not None}

    @cached_property
    def elements(self) -> int:
        """Elements of all of them."""
        return sum(spec.size for spec in self.specs.values())

    @cached_property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def half(self) -> DType | None:
        """The 16-bit float type among its operands and outputs (the first of several), if there is one."""
        return next((spec.dtype for spec in self.specs.values() if spec.dtype in HALVES), None)

    def in_f32(self) -> "Call":
        """The call with its 16-bit floats as f32."""

        def wide(spec: TensorSpec | None) -> TensorSpec | None:
            return TensorSpec(spec.shape, DType.F32) if spec is not None and spec.dtype in HALVES else spec

        operands = {name: wide(spec) for name, spec in self.operands.items()}
        outputs = {name: wide(spec) or spec for name, spec in self.outputs.items()}
        return dataclasses.replace(self, operands=operands, outputs=outputs)

    @property
    def is_empty(self) -> bool:
        """True when no output has an element: nothing runs."""
        return all(spec.size == 0 for spec in self.outputs.values())
