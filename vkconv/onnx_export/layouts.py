"""Nodes in layouts of their own as ONNX has them: with channels first, between transposes."""

import dataclasses
from collections.abc import Iterator

from vkconv.core import Shape
from vkconv.graph.ir import Node
from vkconv.onnx_export.view import Export, RefusedError
from vkconv.ops import OPS
from vkconv.ops.kernels.layout import Layout
from vkconv.ops.kernels.op_layouts import LAYOUT, W_LAYOUT
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
            inputs[place] = value
            for op, attrs in layout.steps_to_first(_dims(value, export) if layout.is_apart else ()):
                made = export.fresh(f"{value}/{op}")
                yield Node(f"{node.name}/{operand.name}/{op}", op, (inputs[place],), (made,), attrs)
                inputs[place] = made
    behind: list[tuple[str, str, Layout]] = []
    for place, (name, value) in enumerate(zip(OPS[node.op].outputs, node.outputs, strict=False)):
        layout = layouts.of(name, node.attrs)
        if value and layout is not None and not layout.is_first:
            outputs[place] = export.fresh(f"{value}/first")
            behind.append((outputs[place], value, layout))
    own_attrs = {name: value for name, value in node.attrs.items() if name not in (LAYOUT, W_LAYOUT)}
    if any(layout.is_apart for _, _, layout in behind):
        layout = behind[0][2]
        own_attrs["groups"] = layout.groups(_dims(node.inputs[0], export))
    yield dataclasses.replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=own_attrs)
    for made, value, layout in behind:
        *others, (op, attrs) = layout.steps_to_here(_dims(value, export) if layout.is_apart else ())
        for first, own in others:
            source, made = made, export.fresh(f"{value}/{first}")
            yield Node(f"{node.name}/{value}/{first}", first, (source,), (made,), own)
        yield Node(f"{node.name}/{value}/back", op, (made,), (value,), attrs)


def _dims(value: str, export: Export) -> Shape:
    spec = export.specs.get(value)
    if spec is None:
        raise RefusedError("groups are apart, and their size is open: give the graph its shapes")
    return spec.dims
