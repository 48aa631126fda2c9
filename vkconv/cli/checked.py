"""What ``vkconv check`` checks and what it found: a model or a call with its inputs, results to show and to save."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkconv.cases import Case, Outcome
from vkconv.cli.cached import run_at_the_bound
from vkconv.cli.inputs import make_inputs
from vkconv.cli.models import CALL, as_call
from vkconv.cli.options import refuse_shapes_of_call
from vkconv.cli.output import file_errors, save_each, show, show_json
from vkconv.cli.passes import passes_lines, save_passes
from vkconv.cli.types import found_types, types_lines
from vkconv.core import Array, UsageError
from vkconv.device import Device
from vkconv.route import label
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.check.coverage import Conformance
    from vkconv.check.found import CheckResult
    from vkconv.check.model import ModelCheck, NodeCheck
    from vkconv.check.repeat import RepeatCheck
    from vkconv.check.sweep import Swept
    from vkconv.graph import Graph
    from vkconv.plan.planner import Options

_SHOWN_DIFFERENCES = 12
_OUTCOMES: Mapping[str, Outcome] = {"ok": "ok", "FAILED": "FAILED", "error": "error", "refused": "skipped"}


@dataclasses.dataclass(frozen=True)
class Report:
    """A result as lines, titled tables, of which a screen shows those that ``shown`` names, verdicts, commands that
    repeat what is wrong, JSON data, the cases that were judged, and what a page links to by the first cell of a row."""

    title: str
    lines: Sequence[str]
    parts: Sequence[tuple[str, Table]]
    shown: Sequence[str]
    verdicts: Sequence[str]
    commands: Sequence[str]
    data: Mapping[str, Any]
    failed: bool
    cases: Sequence[Case] = ()
    links: Mapping[str, Path] = dataclasses.field(default_factory=dict)

    def tell(self, paths: Sequence[Path], as_json: bool) -> None:
        """Print it, and save it in files. UsageError where one of these cannot be written."""
        written, problem = save_each(paths, lambda path: self.save([path]))
        if as_json:
            show_json(self.data)
        else:
            tables = dict(self.parts)
            ends = [*self.commands, *self.verdicts, *(f"wrote {path}" for path in written)]
            show(*self.lines, *(tables[name] for name in self.shown if tables[name].cells), *ends)
        if problem:
            raise problem

    def save(self, paths: Sequence[Path]) -> None:
        """Save it in files."""
        from vkconv.check.report import write_page

        for path in paths:
            with file_errors(path):
                told = self.verdicts, self.failed, self.commands, self.links
                write_page(path, self.title, self.lines, self.parts, self.data, self.judged, *told)

    @property
    def judged(self) -> Sequence[Case]:
        """The cases, and the whole as one: it may fail where none of them does, such as by memory that values share."""
        wrong = any(case.outcome in ("FAILED", "error") for case in self.cases)
        whole: Outcome = "FAILED" if self.failed and not wrong else "ok"
        return [*self.cases, Case(self.title, "as a whole", whole, "; ".join(self.verdicts))]


class Work:
    """What is checked: a graph with its inputs, on a device."""

    def __init__(
        self,
        target: str,
        texts: Sequence[str],
        seed: int,
        device: str,
        limits: Device | None,
        limits_text: str,
        options: "Options",
        storage: str = "",
        shapes: Sequence[str] = (),
        bounds: Mapping[str, int] | None = None,
    ) -> None:
        from vkconv.backend.runtime import select_device
        from vkconv.check.conformance import planned_for
        from vkconv.graph import load_model
        from vkconv.ops import OPS
        from vkconv.plan.bound import steered
        from vkconv.plan.precision import input_specs

        target = as_call(target)
        self.name, self.device, self.limits, self.options = target, device, limits, options
        self.limits_text, self.storage = limits_text, storage
        self.again: Mapping[str, str] = {}
        self.written: Mapping[str, str] = {}
        self.is_call = bool(CALL.match(target)) and not Path(target).exists()
        if self.is_call:
            refuse_shapes_of_call(shapes)
        if self.is_call and bounds:
            raise UsageError("--bound is for models; nothing of a call grows")
        if self.is_call:
            self.graph, self.inputs = self._call(target, texts, seed)
        else:
            graph = load_model(Path(target))
            if bounds:
                graph, arrays, self.again, self.options = run_at_the_bound(graph, texts, shapes, bounds, options)
            else:
                specs = input_specs(graph, OPS, options.io_dtype)
                arrays, self.again = make_inputs(
                    specs, texts, shapes, lambda: planned_for(select_device(device)[1], limits)
                )
            self.graph, self.inputs = steered(graph, OPS, arrays)

    def find_types(self) -> None:
        """Store floats as f16 from now on, where that does with these inputs."""
        self.options = found_types(self.graph, self.inputs, self.device, self.options, self.limits)

    def dump_passes(self, folder: Path) -> None:
        """Save the graph after each pass, as a session will plan it."""
        from vkconv.backend.runtime import select_device
        from vkconv.session import planning

        facts, options = planning(select_device(self.device)[1], self.options, self.limits)
        shapes = {name: array.shape for name, array in self.inputs.items()}
        self.written = save_passes(folder, self.graph, facts, options, shapes)

    def _call(self, target: str, texts: Sequence[str], seed: int) -> "tuple[Graph, dict[str, Array]]":
        from vkconv.check.inputs import checked_call, draw, held
        from vkconv.plan.single import call_graph

        call = checked_call(target)
        if self.options.io_dtype:
            raise UsageError("--io-dtype is for models; write the call's element type in its text: dtype=f16")
        arrays = draw(call, seed)
        if texts:
            given, again = make_inputs(call_graph(call).inputs, texts)
            named = {text.partition("=")[0] for text in texts}
            arrays |= {name: array for name, array in given.items() if name in named}
            self.again = {name: again[name] for name in arrays if name in named}
        self.options = dataclasses.replace(self.options, passes=False)
        return held(call, arrays)


class Result:
    """What was found so far."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.model: ModelCheck | None = None
        self.repeated: RepeatCheck | None = None
        self.swept: list[tuple[str, Swept]] = []
        self.stopped = ""
        self.dumped: dict[str, Path] = {}

    @property
    def found(self) -> "CheckResult":
        """The result as data and tables."""
        from vkconv.check.found import CheckResult

        assert self.model is not None
        return CheckResult(self.work.name, self.model, self.repeated, self.swept)

    @property
    def failed(self) -> bool:
        return not self.found.ok

    def check(self, stop_at_first: bool, tell: "Callable[[str, int, int], None]") -> None:
        from vkconv.backend.runtime import select_device
        from vkconv.check.conformance import planned_for
        from vkconv.check.model import ModelCheck, check_model

        nodes: list[NodeCheck] = []
        nodes_in_all = 0

        def seen(node: "NodeCheck", count: int) -> None:
            nonlocal nodes_in_all
            # Arrays only of what is wrong, as `check_model` keeps them: those of a whole model are too many.
            nodes.append(node if node.cause else dataclasses.replace(node, arrays={}))
            nodes_in_all = count
            tell(node.node, len(nodes), count)

        work = self.work
        try:
            self.model = check_model(
                work.graph,
                work.inputs,
                device=work.device,
                options=work.options,
                limits=work.limits,
                stop_at_first=stop_at_first,
                seen=seen,
            )
        except KeyboardInterrupt:
            if nodes:
                facts = planned_for(select_device(work.device)[1], work.limits)
                self.model = ModelCheck(work.graph.name, facts, tuple(nodes), (), complete=False)
                self.stopped = f"after {len(nodes)} of {nodes_in_all} nodes"
            raise

    def repeat(self, runs: int) -> None:
        from vkconv.check.repeat import repeat_model

        work = self.work
        self.repeated = repeat_model(
            work.graph, work.inputs, runs, device=work.device, options=work.options, limits=work.limits
        )

    def sweep(self, names: Sequence[str], runs: int, seed: int, tell: "Callable[[str, int, int], None]") -> None:
        from vkconv.check.sweep import sweep_nodes

        assert self.model is not None
        work = self.work
        for swept in sweep_nodes(
            self.model.nodes,
            names,
            arrays={**work.inputs, **work.graph.constants} if work.is_call else None,
            device=work.device,
            facts=self.model.device,
            runs=runs,
            options=work.options,
            limits=work.limits,
            seed=seed,
            seen=tell,
        ):
            self.swept.append(swept)

    def dump(self, folder: Path) -> list[str]:
        """Save the nodes that are wrong, where reports link to them; the commands that repeat them."""
        from vkconv.check.dump import dump_node

        assert self.model is not None
        work = self.work
        given = {"--device": work.device.removeprefix("auto"), "--limits": work.limits_text, "--storage": work.storage}
        more = [word for option, value in given.items() if value for word in (option, value)]
        more += [] if self.work.options.quirks else ["--no-quirks"]
        fixed = self.work.options.fixed_push
        more += [] if fixed is None else ["--fixed-push" if fixed else "--no-fixed-push"]
        commands = []
        for number, node in enumerate(self.model.nodes):
            if node.cause and node.route not in ("alias", "empty"):
                with file_errors(folder):
                    self.dumped[node.node], command = dump_node(
                        folder,
                        f"{number:03d}-{node.node}",
                        node.call,
                        node.arrays,
                        route=node.route,
                        params=node.params,
                        constant=node.constant,
                        more=tuple(more),
                    )
                commands.append(command)
        return commands

    def report(self, dumped: Sequence[str] = ()) -> Report:
        """What was found, to print and to save; ``dumped`` are commands that repeat nodes that are wrong."""
        assert self.model is not None
        found = self.found
        data = found.data() | {"inputs": dict(self.work.again), "incomplete": bool(self.stopped)}
        stopped = [f"INCOMPLETE: {self.stopped}"] if self.stopped else []
        lines = [f"{self.work.name} on {self.model.device.name}, driver {self.model.device.driver}"]
        lines += [f"input {name} = {text}" for name, text in self.work.again.items()]
        lines += [f"forced {key} = {route}" for key, route in self.work.options.routes.items()]
        lines += [f"set {key}: {_params(given)}" for key, given in self.work.options.params.items()]
        lines += [f"16-bit floats in {self.work.storage} storage"] if self.work.storage else []
        if self.work.limits is not None and self.work.limits_text:
            lines += limits_lines(self.work.limits, self.work)
            data["limits"] = self.work.limits.name
        lines += types_lines(self.work.options)
        lines += passes_lines(self.work.options, self.work.written)
        lines += ["routes that sum in f16 may be taken"] if self.work.options.half_sums else []
        lines += [] if self.work.options.quirks else ["quirks of the driver are ignored"]
        fixed = self.work.options.fixed_push
        lines += [] if fixed is None else [f"push constants are {'constants of pipelines' if fixed else 'pushed'}"]
        title = f"vkconv check: {self.work.name}"
        return Report(
            title,
            lines,
            found.tables,
            [name for name, _ in found.tables],
            [*stopped, *found.verdicts],
            [f"repeat it alone: {c}" for c in dumped],
            data,
            not found.ok,
            found.cases(),
            self.dumped,
        )


def conformance_report(result: "Conformance") -> Report:
    """The check of a whole device, to print and to save."""
    facts = result.facts
    lines = [
        f"{facts.name}, driver {facts.driver}, Vulkan {facts.api_version}",
        f"quirks: {', '.join(quirk.id for quirk in facts.quirks) or 'none'}",
        f"floats in: {', '.join(result.float_forms) or 'none'}",
        f"parameters of routes: as they are planned, and {result.values:,} other values",
    ]
    parts = [
        ("Failures", result.failures()),
        ("Ops", result.ops()),
        ("Routes that did not run", result.coverage.table()),
        ("Refused routes", result.refusals()),
        ("Device", Table("", (Column("fact"), Column("value")), facts.describe())),
    ]
    return Report(
        f"vkconv conformance: {facts.name}",
        lines,
        parts,
        ("Ops", "Routes that did not run", "Failures"),
        [result.coverage.summary(), result.summary()],
        [row.command() for row in result.failed],
        result.data(),
        bool(result.failed),
        cases=[
            Case(
                row.op,
                f"{row.call} by {label(row.route, row.params)} in {row.form}",
                _OUTCOMES[row.status],
                row.why,
                row.seconds,
                row.max_rel,
                row.allowed,
            )
            for row in result.rows
        ],
    )


def limits_lines(other: Device, work: Work) -> list[str]:
    """What of another device this one cannot stand for: facts that differ, and nodes that take another route there."""
    from vkconv.backend.runtime import select_device
    from vkconv.core import VkconvError
    from vkconv.device.emulate import differences, emulated
    from vkconv.plan.planner import plan

    real = select_device(work.device)[1]
    told = [f"{name} {there} (here {here})" for name, there, here in differences(other, real)]
    more = f" and {len(told) - _SHOWN_DIFFERENCES} more" if len(told) > _SHOWN_DIFFERENCES else ""
    lines = [f"planned for {other.name}; not as there: {', '.join(told[:_SHOWN_DIFFERENCES]) or 'nothing'}{more}"]
    try:
        shapes = {name: array.shape for name, array in work.inputs.items()}
        there = plan(work.graph, other, work.options, shapes).plan.nodes
    except VkconvError as error:
        return [*lines, f"{other.name} itself cannot run it: {error}"]
    planned = plan(work.graph, emulated(other, real), work.options, shapes).plan.nodes
    here = {(node.name, node.route, *node.params.items()) for node in planned}
    others = [n for n in there if (n.name, n.route, *n.params.items()) not in here]
    if others:
        first = ", ".join(f"{n.name} by {n.choice or n.route}" for n in others[:3])
        lines.append(f"{len(others)} of {len(there)} nodes are computed in another way on {other.name} itself: {first}")
    return lines


def _params(params: Mapping[str, int | str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in params.items())
