"""What a model comes to when its local functions are inlined, told before that is done: a few bytes can say millions of
nodes, since functions call functions."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx

from vkconv.core import MAX_NODES, ModelError

# onnx's own limit, in the versions that have one.
MAX_DEPTH = 100
# Beside the bytes of the model itself. Attributes and names of a call are copied to each place that reads them.
MAX_GROWTH_BYTES = 64 << 20
# What inlining adds to a name to make it unlike all others.
_SUFFIX_BYTES = 8

_Key = tuple[str, str, str]
# A parameter of a function, as the kind of its name, ``value`` or ``attribute``, and the name.
_Parameter = tuple[str, str]


@dataclasses.dataclass
class _Size:
    """Nodes when all is inlined, their bytes without those of parameters, and how often each parameter is read."""

    nodes: int = 0
    nbytes: int = 0
    reads: Counter[_Parameter] = dataclasses.field(default_factory=Counter)
    depth: int = 0


def check_growth(model: onnx.ModelProto) -> None:
    """Raises ModelError where inlining would make more than `MAX_NODES` nodes or `MAX_GROWTH_BYTES` more bytes, or go
    deeper than `MAX_DEPTH` functions; also where functions call themselves."""
    functions = {_key(f.domain, f.name, f): f for f in model.functions}
    sizes: dict[_Key, _Size] = {}
    for key in _callees_first(model.graph.node, functions):
        sizes[key] = _size(functions[key].node, _parameters(functions[key]), functions, sizes)
        if sizes[key].depth >= MAX_DEPTH:
            raise ModelError(f"functions call functions {MAX_DEPTH + 1} deep or more; vkconv takes {MAX_DEPTH}")
    whole = _size(model.graph.node, frozenset(), functions, sizes)
    if whole.nodes > MAX_NODES:
        raise ModelError(f"the model has {whole.nodes} nodes once they are inlined, vkconv takes {MAX_NODES}")
    most = model.ByteSize() + MAX_GROWTH_BYTES
    if whole.nbytes > most:
        raise ModelError(f"the model has {whole.nbytes} bytes once they are inlined; vkconv takes {most} of this one")


def _key(domain: str, name: str, of: onnx.NodeProto | onnx.FunctionProto) -> _Key:
    return ("" if domain == "ai.onnx" else domain, name, getattr(of, "overload", ""))


def _parameters(function: onnx.FunctionProto) -> frozenset[str]:
    return frozenset((*function.input, *function.output))


def _callees_first(nodes: Iterable[onnx.NodeProto], functions: Mapping[_Key, onnx.FunctionProto]) -> Iterator[_Key]:
    """The functions that these nodes call, or others inside them, each once and after those that it calls."""
    done: set[_Key] = set()
    path: dict[_Key, Iterator[_Key]] = {}

    def calls(inside: Iterable[onnx.NodeProto]) -> Iterator[_Key]:
        keys = (_key(node.domain, node.op_type, node) for node in _all_nodes(inside))
        return (key for key in keys if key in functions)

    for first in calls(nodes):
        todo = [first]
        while todo:
            key = todo[-1]
            if key in done:
                todo.pop()
                continue
            inner = path.setdefault(key, calls(functions[key].node))
            following = next((other for other in inner if other not in done), None)
            if following is None:
                del path[key]
                done.add(key)
                yield key
            elif following in path:
                raise ModelError(f"the function {following[1]!r} calls itself")
            else:
                todo.append(following)


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _subgraphs(node):
            yield from _all_nodes(graph.node)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _size(
    nodes: Iterable[onnx.NodeProto],
    parameters: frozenset[str],
    functions: Mapping[_Key, onnx.FunctionProto],
    sizes: Mapping[_Key, _Size],
) -> _Size:
    """The size of nodes, those of the functions that they call known, inside a function of these ``parameters``."""
    total = _Size()

    def read(name: str, times: int) -> None:
        if name in parameters:
            total.reads["value", name] += times
        else:
            total.nbytes += times * (len(name.encode()) + _SUFFIX_BYTES)

    for node in nodes:
        key = _key(node.domain, node.op_type, node)
        given = {attribute.name: attribute for attribute in node.attribute}
        if key in functions:
            callee, body = functions[key], sizes[key]
            total.nodes += body.nodes
            total.nbytes += body.nbytes
            total.depth = max(total.depth, body.depth + 1)
            for formals, actuals in ((callee.input, node.input), (callee.output, node.output)):
                for i, formal in enumerate(formals):
                    read(actuals[i] if i < len(actuals) else "", body.reads["value", formal])
            given = {a.name: a for a in getattr(callee, "attribute_proto", ())} | given
            times = {name: body.reads["attribute", name] for name in given}
        else:
            total.nodes += 1
            total.nbytes += node.ByteSize() - sum(graph.ByteSize() for graph in _subgraphs(node))
            for name in (*node.input, *node.output):
                read(name, 1)
            times = dict.fromkeys(given, 1)
        for name, attribute in given.items():
            if attribute.ref_attr_name:
                total.reads["attribute", attribute.ref_attr_name] += times[name]
            elif key in functions:
                total.nbytes += times[name] * attribute.ByteSize()
        for graph in _subgraphs(node):
            inner = _size(graph.node, parameters, functions, sizes)
            total.nodes += inner.nodes
            total.nbytes += inner.nbytes + graph.ByteSize() - sum(n.ByteSize() for n in graph.node)
            total.reads.update(inner.reads)
            total.depth = max(total.depth, inner.depth)
    return total
