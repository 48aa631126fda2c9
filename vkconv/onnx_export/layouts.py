"""Nodes in layouts of their own as ONNX has them: with channels first, between transposes."""

import dataclasses
from collections.abc import Iterator

from vkconv.core import Shape
from vkconv.graph.ir import Node
from vkconv.onnx_export.view import Export, RefusedError
from vkconv.ops import OPS
from vkconv.ops.kernels.laid_out import LAYOUT, W_LAYOUT, Layout
from vkconv.ops.laid_out import LAYOUTS


def spelled(node: Node, export: Export) -> Iterator[Node]:
    """The nodes that a node stands for, itself where it is of channels first. RefusedError where groups that are apart
    are of a size that the graph does not tell."""
    layouts = LAYOUTS.get(node.op)
    if layouts is None or not {LAYOUT, W_LAYOUT} & set(node.attrs):
        yield node
        return
    inputs, outputs = list(node.inputs), list(node.outputs)
    for place, (operand, value) in enumerate(zip(OPS[node.op].operands, node.inputs, strict=False)):
        layout = layouts.of(operand.name, node.attrs)
        if value and layout is not None and not layout.is_first:
            inputs[place] = made = export.fresh(f"{value}/first")
            dims = _dims(value, export) if layout.is_apart else ()
            turned = export.fresh(f"{value}/turned") if layout.is_apart else made
            yield Node(f"{node.name}/{operand.name}", "transpose", (value,), (turned,), {"perm": layout.perm})
            if layout.is_apart:
                yield _reshape(f"{node.name}/{operand.name}/merge", turned, made, layout.first(dims))
    behind: list[tuple[str, str, Layout]] = []
    for place, (name, value) in enumerate(zip(OPS[node.op].outputs, node.outputs, strict=False)):
        layout = layouts.of(name, node.attrs)
        if value and layout is not None and not layout.is_first:
            outputs[place] = export.fresh(f"{value}/first")
            behind.append((outputs[place], value, layout))
    attrs = {name: value for name, value in node.attrs.items() if name not in (LAYOUT, W_LAYOUT)}
    if any(layout.is_apart for _, _, layout in behind):
        layout = behind[0][2]
        attrs["groups"] = layout.groups(_dims(node.inputs[0], export))
    yield dataclasses.replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs)
    for made, value, layout in behind:
        turned = made
        if layout.is_apart:
            turned = export.fresh(f"{value}/apart")
            dims = _dims(value, export)
            yield _reshape(f"{node.name}/{value}/part", made, turned, tuple(dims[p] for p in layout.perm))
        back = tuple(sorted(range(len(layout.perm)), key=layout.perm.__getitem__))
        yield Node(f"{node.name}/{value}/back", "transpose", (turned,), (value,), {"perm": back})


def _reshape(name: str, x: str, y: str, shape: Shape) -> Node:
    return Node(name, "reshape", (x,), (y,), {"shape": shape})


def _dims(value: str, export: Export) -> Shape:
    spec = export.specs.get(value)
    if spec is None:
        raise RefusedError("groups are apart, and their size is open: give the graph its shapes")
    return spec.dims
