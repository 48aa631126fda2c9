"""The graph after each pass as text: two files in a row differ in the lines of the nodes that the pass rewrote.

A file begins with a line that counts what changed. Then come the inputs and constants, the nodes in order, and the
outputs. A node is its name, its call string, what it reads by operand and what it writes by output.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from vkconv.core import Shape, atomic_write, counted
from vkconv.device import Device
from vkconv.graph.ir import Graph
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.bound import BoundGraph, BoundNode, bind
from vkconv.plan.passes import PASSES, Pass
from vkconv.plan.planner import Options, rewritten

WRITTEN = "as_written"


def dump_passes(
    graph: Graph, device: Device, options: Options, folder: Path, shapes: Mapping[str, Shape] | None = None
) -> list[str]:
    """Write the graph as it is bound, and as it is after each pass that `plan` runs with the same arguments.

    The names of the files, which begin with the number of the pass in the list of all. Files of passes that are left
    out are removed, since they are of an earlier dump. What is written stays where a later pass raises what `plan`
    raises. Raises OSError too.
    """
    device = device if options.quirks else dataclasses.replace(device, own_quirks=())
    before = bind(graph, OPS, shapes)
    names = {entry.name: f"{number:02d}-{entry.name}.txt" for number, entry in enumerate(PASSES, 1)}
    for name in options.skipped:
        (folder / names[name]).unlink(missing_ok=True)
    written = [f"00-{WRITTEN}.txt"]
    _write(folder / written[0], f"{WRITTEN}: {counted(len(before.nodes), 'node')}", before)

    def seen(entry: Pass, after: BoundGraph) -> None:
        nonlocal before
        _write(folder / names[entry.name], f"{entry.name}: {_changes(before, after)}", after)
        written.append(names[entry.name])
        before = after

    rewritten(before, device, options, seen)
    return written


def _write(path: Path, title: str, graph: BoundGraph) -> None:
    with atomic_write(path) as file:
        file.write("".join(f"{line}\n" for line in (f"# {title}", *_lines(graph))).encode())


def _lines(graph: BoundGraph) -> Iterator[str]:
    yield from (f"input {_name(value)}: {spec}" for value, spec in graph.inputs.items())
    yield from (f"constant {_name(value)}: {graph.specs[value]}" for value in graph.constants)
    yield from (_line(node) for node in graph.nodes)
    yield from (f"output {_name(value)}: {graph.specs[value]}" for value in graph.outputs)


def _line(node: BoundNode) -> str:
    return f"{_name(node.name)}: {format_call(node.call, OPS)}; {_values(node.reads)} -> {_values(node.writes)}"


def _changes(before: BoundGraph, after: BoundGraph) -> str:
    """How many nodes there were and are, and how many of them are other than they were; nodes are told by name."""
    old, new = ({node.name: _line(node) for node in graph.nodes} for graph in (before, after))
    counts = {
        "rewritten": sum(name in old and old[name] != line for name, line in new.items()),
        "new": len(new.keys() - old.keys()),
        "gone": len(old.keys() - new.keys()),
    }
    changed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{counted(len(before.nodes), 'node')} before, {len(after.nodes)} after: {changed or 'nothing changed'}"


def _values(named: Mapping[str, str]) -> str:
    return " ".join(f"{key}={_name(value)}" for key, value in named.items())


def _name(name: str) -> str:
    """A name as it is, or quoted where a line could not be read with it."""
    return name if name.isprintable() and not any(c in " =" for c in name) else json.dumps(name)
