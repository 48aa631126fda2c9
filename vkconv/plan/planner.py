"""The planner: a pure function from a graph, a device and options to a plan. No Vulkan, no kp."""

import dataclasses
import numbers
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from types import UnionType
from typing import TypeVar

import numpy as np

from vkconv.call import Call
from vkconv.core import Array, DType, RouteError, Shape, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.graph.ir import Graph
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call
from vkconv.plan.bound import BoundGraph, BoundNode, bind
from vkconv.plan.checks import input_checks
from vkconv.plan.fixing import with_fixed_push
from vkconv.plan.limits import check_budget, check_values
from vkconv.plan.lowering import lower
from vkconv.plan.model import Plan, PlannedNode
from vkconv.plan.passes import ELIDE_COPIES, PASSES, Context, Pass, run_passes, skipped_passes
from vkconv.plan.precision import checked_type, checked_types
from vkconv.plan.transfers import Staging
from vkconv.plan.weights import Resident
from vkconv.program import Program
from vkconv.route import Candidate, Choice, Params, Route, choose, judge

POLICIES = tuple(sorted({name for op in OPS.values() for name in op.published}))
"""Systems whose published rules `Options.policy` may name."""


_BY_NAME = ("routes", "params", "dtypes")
# The types of options that are not checked where they are used, and what those are.
_TAKES: dict[str, tuple[UnionType | type, str]] = {
    **dict.fromkeys(_BY_NAME, (Mapping, "a dict by names of ops or nodes")),
    "measured": (Mapping | None, "a dict by calls, as a measured table is read to, or None"),
    **dict.fromkeys(("passes", "share_memory", "quirks", "half_sums"), (bool | np.bool_, "True or False")),
    "fixed_push": (bool | np.bool_ | None, "True, False or None"),
    "policy": (str, "the name of a system, or empty"),
    "memory_bytes": (int | np.integer | None, "a number of bytes, or None"),
    "skip_passes": (Collection, "a list of names of passes"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """How to plan.

    ``routes`` forces: an op name or ``node:NAME`` to a route name; behind either, ``/CALL`` is the call of that name
    inside the route that is taken (``conv_reduce/conv2d``). ``params`` sets parameters of routes, each name
    to a value, for an op (where the route that is taken has them), ``OP:ROUTE`` or ``node:NAME``; the later of these
    outranks the earlier. ``measured`` is what a measured table knows of the device, by call string; with None
    `plan` knows nothing, and a session looks for the user's table. ``skip_passes`` are names of passes to leave out
    (`vkconv.plan.passes`). ``policy`` is another system, one of `POLICIES`, whose published rules choose the routes of
    the ops that they are for: ahead of measured tables, behind ``routes``. ``passes`` off leaves out all that can be,
    and keeps every node as it was written.
    ``share_memory`` off gives every value memory of its own, so that all can be looked at afterwards.
    ``staging`` on copies inputs and outputs through buffers of their own also where kernels could use the memory that
    the host writes and reads; off does so only where no memory type is of both, and outputs may lie in memory of the
    host; "streamed" stages too, but has inputs copied to the device beside its other work; "imported" leaves staging
    out where a type is of both, and has kernels read inputs in the pages of the caller's own arrays where the device
    can; with None the policies ``transfers.in_place`` and ``transfers.imported`` decide.
    ``quirks`` off plans as if the driver had none of those that are known of it.
    ``dtype`` is what floats are stored in, in place of their own types, but for the graph's inputs and outputs.
    ``io_dtype`` is what floats are in that come in and go out.
    ``dtypes`` has others, for an op or ``node:NAME``. ``half_sums`` lets calls of f16 take routes that sum in f16, as
    far as their needs hold: faster on many GPUs, and less exact.
    ``pieces`` is into how many pieces at most the first launches are cut by images, so that they run on what has come
    of an input that is streamed while the rest is on its way; 1 for none, with None the policy ``transfers.early``
    decides.
    ``fixed_push`` on has the numbers that launches push as constants of their pipelines, which are compiled for them
    alone, but for tiles of the policy ``kernels.pushing_tiles``; off pushes them; with None the policies
    ``pipelines.fixed_push`` and ``pipelines.pushing`` decide, for as many sets of shapes of a session as
    ``pipelines.fixed_plans`` has it: plans of more of them push, and share their pipelines.
    ``memory_bytes`` is what a plan may take of device and host-visible memory together, and a session with all its
    plans; with None the device's heap is the limit.

    Raises UsageError for a value of the wrong type.
    """

    routes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    params: Mapping[str, Params] = dataclasses.field(default_factory=dict)
    measured: Mapping[str, Sequence[Candidate]] | None = None
    passes: bool = True
    policy: str = ""
    share_memory: bool = True
    staging: Staging = None
    quirks: bool = True
    memory_bytes: int | None = None
    dtype: DType | str | None = None
    dtypes: Mapping[str, DType | str] = dataclasses.field(default_factory=dict)
    io_dtype: DType | str | None = None
    half_sums: bool = False
    skip_passes: Collection[str] = ()
    pieces: int | None = None
    fixed_push: bool | None = None

    def __post_init__(self) -> None:
        for name, (kinds, takes) in _TAKES.items():
            if not isinstance(getattr(self, name), kinds):
                raise UsageError(f"{name} is {getattr(self, name)!r}; it is {takes}")
        for name in _BY_NAME:
            for key in getattr(self, name):
                if not isinstance(key, str):
                    raise UsageError(f"{name} has the key {key!r}; keys are names of ops and nodes")
        for key, route in self.routes.items():
            if not isinstance(route, str):
                raise UsageError(f"route {key}={route!r}; it is the name of a route")
        for key, given in self.params.items():
            for name, value in given.items() if isinstance(given, Mapping) else ():
                if not isinstance(value, str | numbers.Integral):  # 64.0 would be a legal 64, and no count of anything
                    raise UsageError(f"param {key}={name}:{value!r}; it is an integer or a name")
        for name in self.skip_passes:
            if not isinstance(name, str):
                raise UsageError(f"skip_passes has {name!r}; it is {_TAKES['skip_passes'][1]}")
        for key, wanted in {"the graph": self.dtype, **self.dtypes}.items():
            checked_type(wanted, key)
        checked_type(self.io_dtype, "inputs and outputs")
        if isinstance(self.memory_bytes, bool) or (self.memory_bytes is not None and self.memory_bytes < 1):
            raise UsageError(f"memory_bytes is {self.memory_bytes!r}; it is a number of bytes, at least 1, or None")

    @property
    def skipped(self) -> frozenset[str]:
        """The passes that are left out. UsageError for what is none, or cannot be left out."""
        optional = () if self.passes else [entry.name for entry in PASSES if not entry.required]
        return skipped_passes(self.skip_passes).union(optional)


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan and the constants it stages, which the caller drops once they are on the device."""

    plan: Plan
    constants: Mapping[str, Array]


def plan(
    graph: Graph,
    device: Device,
    options: Options | None = None,
    shapes: Mapping[str, Shape] | None = None,
    resident: Resident | None = None,
    caches: Collection[str] = (),
) -> Planned:
    """Plan a graph for a device: bind shapes, run passes, choose routes, lay out memory, derive barriers.

    ``resident`` is where earlier plans of the same session left constants on the device, to be shared; None where
    there will be no other plan. ``caches`` are inputs that stay on the device, each updated in place by a node.

    Raises GraphError, InputError or UnsupportedError for the graph, RouteError for a route that cannot run,
    LimitError for a device limit that would be exceeded, always naming the node; UsageError for a forced route or
    a parameter that does not exist or that no node takes.
    """
    options = options or Options()
    device = device if options.quirks else dataclasses.replace(device, own_quirks=())
    written = bind(graph, OPS, shapes)
    bound, remarks = rewritten(written, device, options, caches=caches)
    _check_policy(options.policy)
    nodes = {f"node:{node.name}": node.call.op for node in bound.nodes}
    _check_routes(options.routes, nodes)
    _check_params(options.params, nodes)
    check_values(bound, device)
    planned, programs, alike = [], [], dict[str, Call]()
    for node in bound.nodes:
        entry, program = _plan_node(node, device, options, bound, alike)
        planned.append(dataclasses.replace(entry, remark=remarks.get(node.name, "")))
        programs.append(program)
    _check_params_taken(options.params, planned)
    _check_inside_taken(options, planned)
    in_place = ELIDE_COPIES not in options.skipped
    result = lower(
        bound, OPS, device, planned, programs, options.share_memory, resident, in_place, options.staging, caches
    )
    result = dataclasses.replace(result, checks=input_checks(written, OPS, caches))
    result = with_fixed_push(result, options.fixed_push)
    if options.memory_bytes is not None:
        check_budget(bound.name, result.memory, options.memory_bytes)
    return Planned(result, {name: bound.constants[name] for name in result.stage})


def check_names(options: Options, graph: Graph) -> None:
    """UsageError for options that a graph refuses whatever its open dimensions come to: types that are no floats, and
    ops, nodes, routes, policies and passes that do not exist. A plan refuses them too, with all that hangs on shapes.
    """
    _ = options.skipped
    _check_pieces(options.pieces)
    _check_policy(options.policy)
    nodes = dict.fromkeys((f"node:{node.name}" for node in graph.nodes), "")
    # Passes name what they put in after a node or a value: "conv/moved", "x to f16", "x.f32 to f16".
    stems = {*nodes, *(f"node:{value}" for value in (*graph.inputs, *graph.constants))}
    stems |= {f"node:{value}" for node in graph.nodes for value in node.outputs if value}
    for key in (*options.routes, *options.params, *options.dtypes):
        if key not in nodes and any(key.startswith(f"{stem}{mark}") for stem in stems for mark in "/. "):
            nodes[key] = ""
    checked_types(options.dtype, options.dtypes, nodes, OPS)
    _check_routes(options.routes, nodes)
    _check_params(options.params, nodes)


def rewritten(
    bound: BoundGraph,
    device: Device,
    options: Options,
    seen: Callable[[Pass, BoundGraph], None] | None = None,
    caches: Collection[str] = (),
) -> tuple[BoundGraph, Mapping[str, str]]:
    """The graph after its passes, and what there is to say of a node by name; ``seen`` is told of each pass. UsageError
    for options that no pass can follow."""
    _check_pieces(options.pieces)
    context = Context(
        OPS,
        device,
        lambda call, name: choose_route(call, name, device, options),
        {**dict.fromkeys(options.params), **options.routes},
        options.dtype,
        options.dtypes,
        options.io_dtype,
        options.staging,
        # Where every value is to be looked at, they keep their names; and joints that copy cost more than they save.
        options.pieces if options.share_memory and ELIDE_COPIES not in options.skipped else 1,
        caches,
    )
    return run_passes(bound, context, options.skipped, seen), context.remarks


def _plan_node(
    node: BoundNode, device: Device, options: Options, bound: BoundGraph, alike: dict[str, Call]
) -> tuple[PlannedNode, Program | None]:
    """The node and its program. Nodes of one call text have the object of the first, which routes know by then."""
    op, text = OPS[node.call.op], format_call(node.call, OPS)
    call = alike.setdefault(text, node.call)
    if op.alias or call.is_empty:
        return PlannedNode(node.name, call, text, None, 0, 0), None
    try:
        choice = choose_route(call, node.name, device, options)
    except (RouteError, UsageError) as error:
        raise type(error)(f"graph {bound.name!r}, {node} ({text}): {error}") from None
    program = choice.route.build(call, device, choice.params)
    return PlannedNode(node.name, call, text, choice, len(program.steps), len(program.prepack)), program


def choose_route(call: Call, node: str, device: Device, options: Options) -> Choice:
    """The route of a call at a node of that name, with its parameters, as the options have it.

    Raises RouteError or UsageError for a forced route or a parameter that the call or the device does not allow.
    """
    forced = options.routes.get(f"node:{node}", options.routes.get(call.op))
    table = options.measured or {}

    def measured(one: Call) -> Sequence[Candidate]:
        return table.get(format_call(one, OPS), ()) if table else ()

    def given(route: Route) -> Params:
        keys = call.op, f"node:{node}"
        inside = {path: name for key in keys for path, name in _below(options.routes, key).items()}
        for key in keys:
            for path, values in _below(options.params, key).items():
                inside |= {f"{path}/{name}": value for name, value in values.items()}
        asked = {**inside, **options.params.get(call.op, {})}
        legal = route.legal(call, device, inside) if asked else {}
        params = {name: value for name, value in asked.items() if name in legal}
        for key in (f"{call.op}:{route.name}", f"node:{node}"):
            params |= options.params.get(key, {})
        return params

    def chosen(forced: str | None, given: Callable[[Route], Params]) -> Choice:
        routes, sums = OPS[call.op].routes, options.half_sums
        return choose(routes, call, device, forced=forced, given=given, measured=measured, half_sums=sums)

    taken = by_published_rule(options.policy, call, device)
    if taken is None or forced is not None:
        return chosen(forced, given)
    if taken.route is None:
        choice = chosen(None, given)
        return dataclasses.replace(choice, by=f"{choice.by}, since {taken.why}")
    return dataclasses.replace(chosen(taken.route, lambda route: {**taken.params, **given(route)}), by=taken.why)


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What a published rule takes for a call here: a route (None: none of its routes is right), with parameters that
    the rule gives, and why."""

    route: str | None
    params: Params
    why: str


def by_published_rule(policy: str, call: Call, device: Device) -> Taken | None:
    """What another system's rule takes; None without a policy, or where its rule says nothing of the call. UsageError
    for a system of which no rules are known."""
    _check_policy(policy)
    rule = OPS[call.op].published.get(policy) if policy else None
    taken = rule(call, device) if rule else None
    if taken is None:
        return None
    if taken.lacks:
        return Taken(None, {}, f"{policy} takes {taken.routes[0]}, which needs {taken.lacks}")
    judged = [
        judge(route, call, device) for name in taken.routes for route in OPS[call.op].routes if route.name == name
    ]
    able = next((verdict.route.name for verdict in judged if verdict.allowed), None)
    if able is not None:
        return Taken(able, taken.params, f"policy {policy}: {taken.why}")
    first = judged[0]
    said = f"{policy} takes {first.route.name}, which needs {first.refused_by} (here {first.actual})"
    return Taken(None, {}, said)


_T = TypeVar("_T")


def _below(given: Mapping[str, _T], key: str) -> dict[str, _T]:
    """What is given for inner calls of an op or a node, by the calls' names: ``conv_reduce/conv2d`` is for ``conv2d``
    inside conv_reduce."""
    return {path.removeprefix(f"{key}/"): value for path, value in given.items() if path.startswith(f"{key}/")}


def _is_inside(key: str, nodes: Container[str]) -> bool:
    """Whether a key is of an inner call, of an op that exists or of a node."""
    before = [key[:at] for at, char in enumerate(key) if char == "/"]
    return key not in nodes and any(outer in nodes or outer in OPS for outer in before)


def _check_policy(name: str) -> None:
    """UsageError for a system of which no rules are known."""
    if not isinstance(name, str) or (name and name not in POLICIES):
        raise UsageError(f"there is no policy {name!r}{did_you_mean(name, POLICIES)}; one of {', '.join(POLICIES)}")


def _check_pieces(pieces: object) -> None:
    """UsageError for what is no number of pieces."""
    if pieces is not None and (isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1):
        raise UsageError(f"pieces is {pieces!r}; it is how many, 1 for none, or None for what the policy has")


def _check_routes(routes: Mapping[str, str], ops_of_nodes: Mapping[str, str]) -> None:
    """UsageError for a forced route whose op, node or name does not exist; `_check_inside_taken` has those of inner
    calls. An op is empty where passes have yet to say which the node is of: any may have the route."""
    for key, route in routes.items():
        if _is_inside(key, ops_of_nodes):
            continue
        op = ops_of_nodes.get(key, key)
        if not op:
            every = dict.fromkeys(r.name for one in OPS.values() for r in one.routes)
            if route not in every:
                raise UsageError(f"route {key}={route}: no op has a route {route!r}{did_you_mean(str(route), every)}")
            continue
        if op not in OPS:
            known = ops_of_nodes if key.startswith("node:") else OPS
            raise UsageError(f"route {key}={route}: there is no {key!r} here{did_you_mean(key, known)}")
        names = [r.name for r in OPS[op].routes]
        if route not in names:
            raise UsageError(
                f"route {key}={route}: {op} has no route {route!r}{did_you_mean(str(route), names)}; "
                f"it has {', '.join(names)}"
            )


def _check_params(params: Mapping[str, Params], nodes: Collection[str]) -> None:
    """UsageError for parameters whose op, route or node does not exist."""
    for key, given in params.items():
        if not isinstance(given, Mapping):
            raise UsageError(f"param {key}: {given!r} maps no names to values; write {{'name': value}}")
        op, _, route = key.partition(":")
        if key in nodes or _is_inside(key, nodes):
            continue
        if op not in OPS:
            known = nodes if op == "node" else OPS
            raise UsageError(f"param {key}: there is no {key!r} here{did_you_mean(key, known)}")
        names = [r.name for r in OPS[op].routes]
        if route and route not in names:
            raise UsageError(
                f"param {key}: {op} has no route {route!r}{did_you_mean(route, names)}; it has {', '.join(names)}"
            )


def _check_inside_taken(options: Options, planned: Sequence[PlannedNode]) -> None:
    """UsageError for a route or parameters of an inner call that no node has."""
    keys = {f"node:{n.name}" for n in planned} | set(OPS)
    wanted: list[tuple[str, str, tuple[str, ...]]] = [
        *((f"route {key}={route}", key, ()) for key, route in options.routes.items()),
        *((f"param {key}={values}", key, tuple(values)) for key, values in options.params.items()),
    ]
    for what, key, names in wanted:
        if key in keys or not _is_inside(key, keys):
            continue
        choices = [n.choice for n in planned if n.choice and key.startswith((f"{n.call.op}/", f"node:{n.name}/"))]
        below = {path for c in choices for path in c.params}
        ends = [key.removeprefix(f"{outer}/") for outer in keys if key.startswith(f"{outer}/")]
        if not any(end in below and all(f"{end}/{name}" in below for name in names) for end in ends):
            has = "; ".join(sorted({f"{c.route.name} ({', '.join(c.params) or 'nothing inside'})" for c in choices}))
            raise UsageError(f"{what}: no node has such a call inside it; the routes here are {has or 'of other ops'}")


def _check_params_taken(params: Mapping[str, Params], planned: Sequence[PlannedNode]) -> None:
    """UsageError for parameters that no node took although the graph has nodes of the op."""
    for key, given in params.items():
        op, _, route = key.partition(":")
        choices = [n.choice for n in planned if n.choice and n.call.op == op]
        taken = [c for c in choices if route in ("", c.route.name)]
        for name in given if choices else ():
            if not any(name in c.params for c in taken):
                has = "; ".join(sorted({f"{c.route.name} ({', '.join(c.params)})" for c in choices}))
                raise UsageError(f"param {key}={name}:{given[name]}: no node takes it; the routes here are {has}")
