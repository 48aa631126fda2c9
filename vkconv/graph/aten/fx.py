"""Nodes of torch's FX graphs as the rules see calls, and torch's tensors as arrays. Needs ``torch``."""

import dataclasses
from typing import Any

import torch

from vkconv.core import Array, DType
from vkconv.graph.aten.view import Builder, CallView, RefusedError, TensorType, Value

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int16: DType.I16,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
}


def dtype_of(dtype: torch.dtype) -> DType:
    """vkconv's element type for torch's; RefusedError where there is none."""
    if dtype not in DTYPES:
        raise RefusedError(f"it has {str(dtype).removeprefix('torch.')}; vkconv has {', '.join(DTYPES.values())}")
    return DTYPES[dtype]


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor's elements on the host, as they lie there if they lie in order."""
    held = tensor.detach().cpu().contiguous()
    dtype = dtype_of(held.dtype)
    if dtype is DType.BF16:
        held = held.view(torch.uint16)
    made: Array = held.numpy()
    return made.view(dtype.numpy)


def rule_name(node: torch.fx.Node) -> str:
    """The name by which `rules.RULES` has a node's operator."""
    return str(node.target).removeprefix("aten.")


def _type_of(tensor: torch.Tensor) -> TensorType:
    sizes_known = all(type(d) is int for d in tensor.shape)
    return TensorType(tuple(tensor.shape), dtype_of(tensor.dtype), sizes_known and bool(tensor.is_contiguous()))


@dataclasses.dataclass
class FxView(CallView):
    """A call of an FX graph; `Builder.values` has what each node makes."""

    builder: Builder
    node: torch.fx.Node

    @property
    def name(self) -> str:  # type: ignore[override]
        return str(self.node.name)

    @property
    def operator(self) -> str:  # type: ignore[override]
        return rule_name(self.node)

    def arg(self, i: int, default: Any = None) -> Any:
        if i < len(self.node.args):
            return self.node.args[i]
        schema = getattr(self.node.target, "_schema", None)
        name = schema.arguments[i].name if schema is not None and i < len(schema.arguments) else ""
        return self.node.kwargs.get(name, default)

    def option(self, name: str, i: int, default: Any = None) -> Any:
        return self.node.args[i] if i < len(self.node.args) else self.node.kwargs.get(name, default)

    def tensor_type(self, given: Any) -> TensorType | None:
        val = given.meta.get("val") if isinstance(given, torch.fx.Node) else None
        return _type_of(val) if isinstance(val, torch.Tensor) else None

    @property
    def made(self) -> Any:
        val = self.node.meta["val"]
        return tuple(_type_of(v) for v in val) if isinstance(val, tuple | list) else _type_of(val)

    def used(self) -> set[int]:
        return {int(user.args[1]) for user in self.node.users if user.users}

    def finish(self, value: Value) -> None:
        self.builder.values[self.node] = value
