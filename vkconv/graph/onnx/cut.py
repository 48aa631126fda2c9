"""Cutting an ONNX model in regions that follow each other, each a model of its own: some taken, the others not."""

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
import onnx.helper

from vkconv.core import UnsupportedError


@dataclasses.dataclass(frozen=True)
class Piece:
    """A region: whether it is taken, the places of its nodes in the model, the values that go in and come out."""

    taken: bool
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: onnx.ModelProto = dataclasses.field(repr=False)


def cut(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    refused: Collection[int],
    infos: Mapping[str, onnx.ValueInfoProto],
) -> list[Piece]:
    """The regions of a model, in an order in which they can run, as few as can be without one waiting for itself.

    ``nodes`` are in executable order, ``refused`` the places of those that are not taken; ``infos`` are the types of
    the values. Raises UnsupportedError for a value between regions whose type is unknown.
    """
    levels = _levels(nodes, refused)
    return [
        _piece(model, nodes, [i for i in range(len(nodes)) if levels[i] == level], level % 2 == 0, infos)
        for level in sorted(set(levels))
    ]


def unknown_types(
    nodes: Sequence[onnx.NodeProto], refused: Collection[int], infos: Mapping[str, onnx.ValueInfoProto]
) -> dict[int, str]:
    """Nodes that read what a refused one makes where nobody can tell its type, and so can be in no other region: the
    value, by place."""
    unknown: dict[str, int] = {}
    found: dict[int, str] = {}
    for i, node in enumerate(nodes):
        value = next((name for name in reads(node) if name in unknown), None)
        if value is not None and i not in refused:
            found[i] = value
        if value is not None or i in refused:
            unknown |= {name: i for name in node.output if name and not is_known(infos.get(name))}
    return found


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Values that a node reads, those that its subgraphs take from outside among them."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inside = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                yield from (name for name in reads(inner) if name not in inside)
                inside.update(inner.output)
            yield from (info.name for info in graph.output if info.name not in inside)


def _levels(nodes: Sequence[onnx.NodeProto], refused: Collection[int]) -> list[int]:
    """The region of each node: even ones are taken. A node comes in the first that its operands allow."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    levels: list[int] = []
    for i, node in enumerate(nodes):
        parity = int(i in refused)
        before = max((levels[maker[name]] for name in reads(node) if name in maker), default=parity)
        levels.append(before + (before % 2 != parity))
    return levels


def _piece(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    members: Sequence[int],
    taken: bool,
    infos: Mapping[str, onnx.ValueInfoProto],
) -> Piece:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    inside, own = set(members), [nodes[i] for i in members]
    made = [name for node in own for name in node.output if name]
    read = dict.fromkeys(name for node in own for name in reads(node))
    elsewhere = {name for i, node in enumerate(nodes) if i not in inside for name in reads(node)}
    elsewhere |= {output.name for output in model.graph.output}
    inputs = tuple(name for name in read if name not in made and name not in constants)
    outputs = tuple(name for name in made if name in elsewhere)
    part = onnx.ModelProto(ir_version=max(8, model.ir_version), opset_import=model.opset_import)
    part.graph.name = model.graph.name or "graph"
    part.graph.node.extend(own)
    part.graph.initializer.extend(constants[name] for name in read if name in constants)
    part.graph.input.extend(_info(name, infos) for name in inputs)
    part.graph.output.extend(_info(name, infos) for name in outputs)
    return Piece(taken, tuple(members), inputs, outputs, part)


def is_known(info: onnx.ValueInfoProto | None) -> bool:
    """Whether that tells the element type and rank of a tensor."""
    return info is not None and bool(info.type.tensor_type.elem_type) and info.type.tensor_type.HasField("shape")


def _info(name: str, infos: Mapping[str, onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    info = infos.get(name)
    if info is None or not info.type.WhichOneof("value"):
        raise UnsupportedError(f"{name!r} goes from one region to another, and onnx cannot tell its type")
    return info


def without_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its Constant nodes of tensors as initializers, which every region can have for itself."""
    made = copy.deepcopy(model)
    kept = []
    for node in model.graph.node:
        tensors = [a.t for a in node.attribute if a.name == "value" and a.type == onnx.AttributeProto.TENSOR]
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and tensors:
            made.graph.initializer.add().CopyFrom(tensors[0])
            made.graph.initializer[-1].name = node.output[0]
        else:
            kept.append(node)
    del made.graph.node[:]
    made.graph.node.extend(kept)
    return made


def with_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """The model with these shapes of inputs in place of its own."""
    made = copy.deepcopy(model)
    for info in made.graph.input:
        if info.name in shapes:
            del info.type.tensor_type.shape.dim[:]
            for size in shapes[info.name]:
                info.type.tensor_type.shape.dim.add().dim_value = size
    return made
