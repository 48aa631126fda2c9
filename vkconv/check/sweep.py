"""One call by all its routes and values of their parameters: right, and the same each time?

Drivers have bugs that only one workgroup size shows (executorch#22328): a sweep finds which.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vkconv.call import Call
from vkconv.check.calls import Checked, compare, expect, on_route, run_call
from vkconv.check.inputs import draw
from vkconv.check.model import NodeCheck
from vkconv.combinations import every_setting, inner_routes
from vkconv.core import Array, LimitError, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.plan.planner import Options, choose_route
from vkconv.plan.single import CALL_NODE, WEIGHTS
from vkconv.route import Params, may_take

ROUTE = "route"


@dataclasses.dataclass(frozen=True)
class Swept:
    """One way to compute a call: what was checked, and how many distinct outputs its replays gave."""

    call: Call
    route: str
    params: Params
    checked: Checked
    runs: int
    distinct: int
    declared: bool
    refused: str = ""

    @property
    def problem(self) -> str:
        """What is wrong; empty where nothing is, or a limit of the device forbids it."""
        if self.refused:
            return ""
        said = [f"{self.checked.problem} ({self.checked.pattern})"] if not self.checked.ok else []
        if self.distinct > 1 and not self.declared:
            said.append(f"{self.distinct} different outputs in {self.runs} runs")
        return "; ".join(said)


def sweep_call(
    call: Call,
    arrays: Mapping[str, Array],
    names: Sequence[str],
    *,
    device: str | int = "auto",
    facts: Device,
    runs: int = 2,
    options: Options | None = None,
    limits: Device | None = None,
    constant: tuple[str, ...] = WEIGHTS,
    node: str = "call",
) -> Iterator[Swept]:
    """Check a call with every legal value of the named parameters, all combined, the others at their defaults; with
    ``route`` among the names by every route that may take it, else by the one that the options lead to.

    ``facts`` is the device that is planned for. Raises UsageError for names that no such route has.
    """
    options = options or Options()
    op = OPS[call.op]
    able = [route for route in op.routes if may_take(route, call, facts)]
    routes = able if ROUTE in names else [choose_route(call, node, facts, options).route]
    wanted_params = [name for name in names if name != ROUTE]
    known = sorted({name for route in able for name in route.legal(call, facts)})
    for name in wanted_params:
        if not any(name in route.legal(call, facts) for route in routes):
            taken = ", ".join(route.name for route in routes)
            others = [route.name for route in able if name in route.legal(call, facts)]
            if others:
                hint = f", as {', '.join(others)} has: sweep route too, or force one with --route"
            else:
                hint = f"{did_you_mean(name, [*known, ROUTE])}; sweep {', '.join([*known, ROUTE])}"
            raise UsageError(f"{call.op} by {taken} has no parameter {name!r}{hint}")
    wanted = expect(call, arrays)
    for route in routes:
        here = on_route(call, wanted, route.name)
        insides = inner_routes(route, call, facts) if ROUTE in names else ({},)
        settings = (
            route.resolve(call, facts, {**swept, **inside})
            for inside in insides
            for swept in (_only(way, wanted_params) for way in every_setting(route, call, facts, wanted_params))
        )
        for params in settings:
            try:
                ran = run_call(
                    call,
                    arrays,
                    device=device,
                    route=route.name,
                    params=params,
                    replays=runs,
                    constant=constant,
                    limits=limits,
                    quirks=options.quirks,
                    fixed_push=options.fixed_push,
                )
            except LimitError as error:
                yield Swept(call, route.name, params, Checked(None, None, 0.0), runs, 0, True, str(error))
                continue
            outputs = {tuple(array.tobytes() for array in replay) for replay in ran.outputs}
            checked = next(
                (c for c in (compare(call, replay, here) for replay in _distinct(ran.outputs)) if not c.ok),
                compare(call, ran.outputs[0], here),
            )
            yield Swept(call, route.name, params, checked, runs, len(outputs), not route.deterministic)


def _only(params: Params, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name in names}


def _distinct(replays: Sequence[Sequence[Array]]) -> Iterator[Sequence[Array]]:
    """Each different result once."""
    seen: set[tuple[bytes, ...]] = set()
    for replay in replays:
        key = tuple(array.tobytes() for array in replay)
        if key not in seen:
            seen.add(key)
            yield replay


def _in_types(call: Call, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays of a call's operands in the types that the call has them in."""
    specs = {name: spec for name, spec in call.operands.items() if spec is not None}
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: arrays[name].astype(spec.dtype.numpy, copy=False) for name, spec in specs.items()}


def sweep_nodes(
    nodes: Sequence[NodeCheck],
    names: Sequence[str],
    *,
    arrays: Mapping[str, Array] | None,
    device: str | int,
    facts: Device,
    runs: int,
    options: Options,
    limits: Device | None,
    seed: int,
    seen: Callable[[str, int, int], None] = lambda text, done, count: None,
) -> Iterator[tuple[str, Swept]]:
    """`sweep_call` for each distinct call of nodes that were checked, with the text of the call, of inputs drawn from
    ``seed``. ``arrays`` are those of a single call: its own node is swept, in the type that it runs in, and not the
    casts around it. Calls whose route has none of the named parameters are left out, where there are others; ``seen``
    is told of each call."""
    if arrays is not None:
        nodes = [node for node in nodes if node.node == CALL_NODE]
    distinct = {node.text: node for node in nodes if node.params or ROUTE in names}
    distinct = {text: node for text, node in distinct.items() if node.route not in ("alias", "empty")}
    for done, (text, node) in enumerate(distinct.items(), 1):
        mine = [name for name in names if name == ROUTE or name in node.params]
        if not mine and len(distinct) > 1:
            continue
        given = draw(node.call, seed) if arrays is None else _in_types(node.call, arrays)
        forced = options.routes.get(f"node:{node.node}", options.routes.get(node.call.op))
        routes = {} if forced is None else {f"node:{node.node}": forced}
        for row in sweep_call(
            node.call,
            given,
            mine or names,
            device=device,
            facts=facts,
            runs=runs,
            options=dataclasses.replace(options, routes=routes),
            limits=limits,
            node=node.node,
        ):
            yield text, row
        seen(text, done, len(distinct))
