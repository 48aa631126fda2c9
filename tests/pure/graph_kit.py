"""Small graphs for tests of the planner, a float64 evaluator of bound graphs, passes alone, and a made-up device."""

import copy

import numpy as np

from vkconv.core import DType
from vkconv.device import Device, load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.plan.bound import bind, value_inputs, widen, with_values
from vkconv.plan.control import run_control
from vkconv.plan.passes import PASSES, Context
from vkconv.plan.stages import cut_stages, stage_graph

# Those that fold and fuse by a rule for each node: all before the ones that know the device's bindings, or routes.
NAMES = [entry.name for entry in PASSES]
_UP_TO_CHAINS = PASSES[NAMES.index("drop_neutral") : NAMES.index("fuse_chain") + 1]
FOLDING = tuple(entry for entry in _UP_TO_CHAINS if entry.name != "fuse_attention")  # which asks for a route


def make_graph(inputs, nodes, outputs, constants=None):
    """A graph from input shapes (or specs) and nodes ``(op, reads, writes[, attrs])``, names separated by blanks;
    ``-`` is an absent input. Nodes are named ``OP_WRITES``."""
    specs = {k: v if isinstance(v, TensorSpec) else TensorSpec(tuple(v)) for k, v in inputs.items()}
    made = []
    for op, reads, writes, *attrs in nodes:
        names = tuple("" if r == "-" else r for r in reads.split())
        made.append(Node(f"{op}_{writes.split()[0]}", op, names, tuple(writes.split()), attrs[0] if attrs else {}))
    return Graph(specs, tuple(outputs.split()), tuple(made), constants or {}, "g")


def make_bound(*args, shapes=None, **kwargs):
    """`make_graph`, bound."""
    return bind(make_graph(*args, **kwargs), OPS, shapes)


def evaluate(bound, arrays):
    """Outputs of a bound graph by the ops' float64 references, nothing rounded in between."""
    values = {name: widen(array) for name, array in {**bound.constants, **arrays}.items()}
    for node in bound.nodes:
        operands = dict.fromkeys(node.call.operands) | {k: values[v] for k, v in node.reads.items()}
        with np.errstate(all="ignore"):
            results = OPS[node.call.op].reference(node.call, operands)
        for (output, spec), result in zip(node.call.outputs.items(), results, strict=True):
            assert result.shape == spec.dims, f"{node}: {output} is {result.shape}, the call says {spec}"
            if output in node.writes:
                values[node.writes[output]] = widen(result)
    return [values[name] for name in bound.outputs]


def run_stages(graph, arrays):
    """All outputs of a graph by the ops' references, stage by stage, each bound to what those before it found."""
    values = dict(arrays)
    for stage in cut_stages(graph, OPS):
        if stage.control:
            node, bodies = stage.control, graph.bodies[stage.control.name]
            known = {**graph.constants, **{name: np.asarray(values[name]) for name in stage.inputs}}
            values |= run_control(
                node,
                bodies,
                known,
                lambda i, made, of=bodies: run_stages(of[i], dict(zip(of[i].inputs, made, strict=True))),
            )
            continue
        given = {name: np.asarray(values[name]) for name in stage.inputs}
        part = stage_graph(graph, stage, {n: TensorSpec(a.shape, DType.of(a.dtype)) for n, a in given.items()})
        known = {name: given[name] for name in value_inputs(part, OPS)}
        assert set(stage.steered_by) <= set(known)
        bound = bind(with_values(part, known), OPS)
        rest = {name: widen(array) for name, array in given.items() if name not in known}
        made = zip(stage.outputs, evaluate(bound, rest), strict=True)
        values |= {name: array.astype(bound.specs[name].dtype.numpy) for name, array in made}
    return [values[name] for name in graph.outputs]


def draw(specs, seed=3):
    """Seeded normals for float specs, small integers for the others."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(s.dims).astype(s.dtype.numpy)
        if s.dtype.is_float
        else rng.integers(0, 2, s.dims).astype(s.dtype.numpy)
        for name, s in specs.items()
    }


def f32(*shape, seed=1, low=None):
    """Seeded float32 normals; with ``low`` uniform in [low, low + 1)."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) if low is None else low + rng.random(shape)).astype(np.float32)


def i64(*values):
    return np.array(values, np.int64)


def made_up_device(base="h200", *, allocation=None, heap=None, **limits):
    """A shipped device with some limits, its largest allocation (bytes) or its heaps (bytes) changed."""
    facts = copy.deepcopy(dict(load_device(base).facts))
    facts["properties"]["VkPhysicalDeviceProperties"]["limits"] |= limits
    if allocation is not None:
        facts["properties"]["VkPhysicalDeviceMaintenance3Properties"] = {"maxMemoryAllocationSize": allocation}
    if heap is not None:
        facts["memory"]["memoryHeaps"] = [{"size": heap, "flags": ["VK_MEMORY_HEAP_DEVICE_LOCAL_BIT"]}]
    return Device(facts)


# The least that Vulkan promises.
FOUR_BUFFERS = made_up_device(maxPerStageDescriptorStorageBuffers=4)


def run_pass(graph, entry, device=FOUR_BUFFERS):
    """A graph after one of these passes."""
    return entry.run(graph, Context(OPS, device, None, {}))


def optimize(graph, device=FOUR_BUFFERS):
    """A graph after all passes that fold and fuse by a rule for each node."""
    for entry in FOLDING:
        graph = run_pass(graph, entry, device)
    return graph
