"""Running a plan on tokens instead of numbers, to see that every value reaches its readers through shared memory."""

import dataclasses

import numpy as np

from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.commands import Copy, Launch
from vkconv.plan.planner import Options, plan, rewritten


def commands(done, kind):
    return [c for c in done if isinstance(c, kind)]


def check_flow(graph, device, options=None, ops=OPS):
    """Run the plan on tokens instead of numbers: whatever a command reads must be what the value's producer
    wrote, whole, and nothing that came later may have touched it. With staging too, where the options leave that open;
    returns the plan that the options make."""
    options = options or Options()
    if options.staging is None:
        check_flow(graph, device, dataclasses.replace(options, staging=True), ops)
    result = plan(graph, device, options).plan
    bound, _ = rewritten(bind(graph, ops), device, options)
    nodes = {node.name: node for node in bound.nodes}
    producer = {v: node.name for node in bound.nodes for v in node.writes.values()}
    staged = {name for name, (_, region) in result.inputs.items() if result.buffers[region.buffer][1] == "upload"}
    producer |= {name: f"upload {name}" if name in staged else "host" for name in bound.inputs}
    alias = {n.writes["y"]: n.reads["x"] for n in bound.nodes if ops[n.call.op].alias}

    def made_by(value):
        while value in alias:
            value = alias[value]
        return producer.get(value)

    memory = {name: np.full(nbytes, "", object) for name, (nbytes, _) in result.buffers.items()}

    def view(region):
        assert region.offset >= 0 and region.offset + region.nbytes <= len(memory[region.buffer])
        return memory[region.buffer][region.offset : region.offset + region.nbytes]

    for region in [r for _, r in result.inputs.values()] + list(result.stage.values()):
        view(region)[:] = "host"
    for command in (*result.load, *result.run):
        if isinstance(command, Copy):
            (found,) = set(view(command.source))
            what, _, name = command.node.partition(" ")
            assert found == ("host" if what in ("upload", "load") else made_by(name)), command
            view(command.target)[:] = command.node
        elif isinstance(command, Launch):
            reads = nodes[command.node].reads.values()
            expected = {made_by(v) for v in reads} | {command.node, "host", *(f"load {v}" for v in reads)}
            if any(bound.specs[v].size == 0 for v in reads):
                expected.add("")  # bound and never read
            for region, access in command.binds:
                assert region.offset % device.limit("minStorageBufferOffsetAlignment") == 0
                if access != "w":
                    found = set(view(region))
                    assert len(found) == 1 and found <= expected, f"{command.node} reads {found}, not {expected}"
            for region, access in command.binds:
                if access != "r":
                    view(region)[:] = command.node
    for name in result.outputs:
        spec, region = result.outputs[name]
        if spec.size:
            copied = result.buffers[region.buffer][1] == "download"
            assert set(view(region)) == {f"download {name}" if copied else made_by(name)}
    return result
