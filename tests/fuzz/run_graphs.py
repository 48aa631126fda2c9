"""Random graphs on the device, every node on a random one of its routes, against the references."""

import dataclasses
import json

import numpy as np
from graph_kit import evaluate

from vkconv.check import compare, expect
from vkconv.core import LimitError
from vkconv.graph.vkc import load_vkc, save_vkc
from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.passes import PASSES
from vkconv.plan.planner import Options, plan
from vkconv.session import Session

ROUTES_THAT_ROUND = ("winograd", "flipped_winograd")  # they scale by thirds and the like


def drawn(graph, exact, seed):
    rng = np.random.default_rng(seed)
    made = {name: rng.integers(-4, 5, spec.dims).astype(np.float32) for name, spec in graph.inputs.items()}
    return made if exact else {name: rng.uniform(-3, 3, array.shape).astype(np.float32) for name, array in made.items()}


def random_options(graph, facts, exact, rng, theme):
    """Passes, sometimes without some of them, and shared memory or not, and for every node that is planned a route,
    sometimes parameters."""
    options = Options(passes=rng.random() < 0.4, share_memory=rng.random() < 0.6, measured={})
    if options.passes:
        optional = [entry.name for entry in PASSES if not entry.required]
        options = dataclasses.replace(options, skip_passes=rng.sample(optional, rng.choice((0, 0, 1, 3))))
    routes, params = {}, {}
    for node in plan(graph, facts, options).plan.nodes:
        if node.choice:
            allowed = [v.route for v in node.choice.verdicts if v.allowed]
            allowed = [route for route in allowed if not (exact and route.name in ROUTES_THAT_ROUND)]
            route = rng.choice(theme.routes(node.call.op, allowed))
            routes[f"node:{node.name}"] = route.name
            if rng.random() < theme.params:
                legal = route.params(node.call, facts)
                params[f"node:{node.name}"] = {name: rng.choice(values) for name, values in legal.items()}
    return dataclasses.replace(options, routes=routes, params=params)


def run_graph(device, graph, exact, options, seed=4, careful=True):
    """Run it: AssertionError unless it agrees with the references. If ``careful``, it runs in poisoned memory, then on
    other numbers, and then again, with the bytes of the first run. The routes that ran, with their ops; none where a
    route does not fit the device."""
    arrays, others = drawn(graph, exact, seed), drawn(graph, exact, seed + 1)
    try:
        session = Session(graph, device, options=options, poison=careful)
    except LimitError:
        return []
    with session:
        first = session.run(arrays)
        if exact or options.share_memory or options.passes:
            _agree_at_the_end(graph, exact, first, arrays)
        else:
            _agree_one_by_one(graph, session, arrays)
        if careful:
            session.run(others)
            again = session.run(arrays)
        nodes = [node for node in session.plan.nodes if node.choice]
        assert {f"node:{node.name}": node.route for node in nodes} == options.routes
        if careful and (exact or all(node.choice.route.deterministic for node in nodes)):
            for name in graph.outputs:
                assert first[name].tobytes() == again[name].tobytes(), f"{name} changes from run to run"
        return [(node.call.op, node.route) for node in nodes]


def _agree_at_the_end(graph, exact, got, arrays):
    for name, want in zip(graph.outputs, evaluate(bind(graph, OPS), arrays), strict=True):
        assert got[name].shape == want.shape
        if exact:
            np.testing.assert_array_equal(got[name], want, err_msg=name)
        elif want.size:
            atol = 1e-4 * max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=atol, err_msg=name)


def _agree_one_by_one(graph, session, arrays):
    """Each node against its reference on what the device gave it, within its derived tolerance."""
    bound = bind(graph, OPS)
    values = {**bound.constants, **arrays}
    for node in bound.nodes:
        if node.call.is_empty:
            made = [np.zeros(spec.dims, spec.dtype.numpy) for spec in node.call.outputs.values()]
        else:
            made = [session.value(value) for value in node.writes.values()]
        operands = {operand: values[value] for operand, value in node.reads.items()}
        values |= dict(zip(node.writes.values(), made, strict=True))
        if not (OPS[node.call.op].alias or node.call.is_empty):
            checked = compare(node.call, made, expect(node.call, operands))
            assert checked.ok, f"{node}: {checked.problem}"


def keep(graph, exact, options, folder):
    """A file in the folder that holds the graph, its constants, and how it was run."""
    how = {
        "exact": exact,
        "passes": options.passes,
        "skip_passes": list(options.skip_passes),
        "share_memory": options.share_memory,
        "routes": dict(options.routes),
        "params": {key: dict(params) for key, params in options.params.items()},
    }
    path = folder / f"{''.join(c if c.isalnum() else '-' for c in graph.name)}.vkc"
    folder.mkdir(parents=True, exist_ok=True)
    save_vkc(graph.replace(metadata={"run": json.dumps(how)}), path)
    return path


def kept(path):
    """What `keep` wrote: the graph, whether it is exact, and its options."""
    graph = load_vkc(path)
    how = json.loads(graph.metadata["run"])
    exact = how.pop("exact")
    return graph, exact, Options(**how, measured={})
