"""A part of a graph as a graph: what lies between some of its tensors and others."""

from collections.abc import Iterable, Mapping, Sequence

from vkconv.core import Shape, UsageError, did_you_mean
from vkconv.graph.ir import Graph, Node, TensorSpec
from vkconv.ops.core.base import Op
from vkconv.plan.bound import bind


def extract(
    graph: Graph,
    ops: Mapping[str, Op],
    sources: Sequence[str] = (),
    targets: Sequence[str] = (),
    shapes: Mapping[str, Shape] | None = None,
) -> Graph:
    """The graph that makes ``targets`` (none: the outputs) of ``sources`` (none: the inputs).

    A source in the middle of the graph gets the shape that it has for inputs of ``shapes``. Raises UsageError for a
    tensor that is not there, that is none between nodes, or that is not connected, and what binding the graph raises.
    """
    makers = {value: node for node in graph.nodes for value in node.outputs if value}
    sources, targets = tuple(dict.fromkeys(sources)), tuple(dict.fromkeys(targets))
    for option, names in (("--from", sources), ("--to", targets)):
        for name in names:
            _check(graph, makers, option, name)
    for name in targets:
        if name in graph.inputs:
            raise UsageError(f"--to {name}: it is an input of {graph.name!r}, which no node makes; name a later tensor")
        if name in sources:
            raise UsageError(f"{name!r} is both in --from and in --to: there is nothing between")
    ends = targets or graph.outputs
    needed, kept, read = set(ends), list[Node](), set[str]()
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs) or any(value in sources for value in node.outputs if value in needed):
            continue
        kept.append(node)
        read.update(value for value in node.inputs if value)
        needed.update(value for value in node.inputs if value and value not in sources)
    unread = [name for name in sources if name not in read]
    if unread:
        raise UsageError(
            f"--from {unread[0]}: nothing leads from it to {', '.join(ends)}"
            + (", unless through another tensor of --from" if len(sources) > 1 else "")
            + _after(graph, unread[0])
        )
    begins = sources or tuple(name for name in graph.inputs if name in read)
    others = [name for name in graph.inputs if name in read and name not in begins]
    if others:
        raise UsageError(
            f"{', '.join(ends)} needs the input {others[0]!r} too, by a way past {', '.join(sources)}; add "
            f"--from {others[0]}, or the tensor where that way begins"
        )
    inner = [name for name in begins if name not in graph.inputs]
    specs = bind(graph, ops, shapes).specs if inner else {}
    used = read | set(ends)
    return Graph(
        {
            name: TensorSpec(specs[name].shape, specs[name].dtype) if name in inner else graph.inputs[name]
            for name in begins
        },
        ends,
        tuple(reversed(kept)),
        {name: array for name, array in graph.constants.items() if name in used},
        graph.name,
        graph.metadata,
        {name: declared for name, declared in graph.declared.items() if name in ends},
        {node.name: graph.bodies[node.name] for node in kept if node.name in graph.bodies},
    )


def _check(graph: Graph, makers: Mapping[str, Node], option: str, name: str) -> None:
    if name in graph.constants:
        raise UsageError(f"{option} {name}: it is a constant of {graph.name!r}; name a tensor that depends on an input")
    if name not in makers and name not in graph.inputs:
        node = next((node for node in graph.nodes if node.name == name), None)
        hint = (
            f": that is a node, which makes {', '.join(filter(None, node.outputs))}"
            if node
            else did_you_mean(name, (*graph.inputs, *makers))
        )
        raise UsageError(f"{option} {name}: {graph.name!r} has no such tensor{hint}; vkconv show lists all")


def _after(graph: Graph, name: str) -> str:
    """What reads a tensor, for those who look for one that leads on."""
    readers: Iterable[Node] = [node for node in graph.nodes if name in node.inputs]
    made = [value for node in readers for value in node.outputs if value]
    return f"; what is made of it is {', '.join(made)}" if made else "; nothing reads it"
