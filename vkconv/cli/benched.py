"""What ``vkconv bench`` measures, and its rows as they come: on this machine's device or on those of many boards."""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vkconv.cli.options import bound_shapes, refuse_shapes_of_call
from vkconv.cli.output import say
from vkconv.cli.passes import refuse_for_calls, save_passes
from vkconv.cli.stopping import stopped_by, terminable
from vkconv.core import DType, Shape, UsageError
from vkconv.table import format_cell

if TYPE_CHECKING:
    from vkconv.bench.rows import Header, Row
    from vkconv.bench.runner import Routes, Task
    from vkconv.bench.sampling import BenchOptions
    from vkconv.bench.suites import Entry
    from vkconv.device import Device
    from vkconv.graph import Graph
    from vkconv.route import Params


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be measured, on this machine's device or on those of many boards."""

    targets: Sequence[str]
    suites: Sequence[str]
    routes: Sequence[str]
    sweep: str
    local: Sequence[int]
    dtype: DType | None
    shapes: Sequence[str]
    device: str
    options: "BenchOptions"
    no_pass: Sequence[str] = ()
    pass_dump: Path | None = None
    policy: str = ""
    params: "Mapping[str, Params]" = dataclasses.field(default_factory=dict)

    def tasks(self, device: "Device") -> "tuple[list[Task], Routes]":
        """The rows to be on a device, and the routes that were asked for."""
        from vkconv.bench.runner import Routes, make_tasks
        from vkconv.bench.suites import merge_alike

        passes = self.no_pass, self.pass_dump
        entries = merge_alike(read_entries(self.targets, self.suites, self.dtype, device, self.shapes, *passes))
        swept = list(filter(None, self.sweep.split(",")))
        wanted = Routes.parse([*self.routes, *(["all"] if "route" in swept else [])], entries)
        swept = [name for name in swept if name != "route"]
        if self.policy and (wanted.every or wanted.names):
            named = "all" if wanted.every else ",".join(wanted.names)
            raise UsageError(f"--policy {self.policy} chooses the routes, and --route {named} names them: give one")
        tasks = make_tasks(
            entries, wanted, device, sweep=swept, local=self.local, policy=self.policy, params=self.params
        )
        return tasks, wanted

    def header(self, routes: "Routes", expected_s: float) -> "Header":
        """The conditions, without a device."""
        from vkconv.bench.api import header
        from vkconv.bench.runner import spell_params

        return header(
            self.targets,
            self.suites,
            routes,
            self.options,
            expected_s,
            {
                "dtype": self.dtype,
                "sweep": self.sweep or None,
                "local": ",".join(map(str, self.local)) or None,
                "param": spell_params(self.params) or None,
                "no_pass": ",".join(self.no_pass) or None,
                "policy": self.policy or None,
            },
        )


def read_entries(
    targets: Sequence[str],
    suites: Sequence[str],
    dtype: DType | None,
    device: "Device",
    shapes: Sequence[str],
    no_pass: Sequence[str] = (),
    pass_dump: Path | None = None,
) -> "list[Entry]":
    """The calls that targets (calls, lines of other tools, models) and suites stand for, each once. Models are planned
    without the passes ``no_pass``; the graph of one is saved after each pass in ``pass_dump``.

    Raises UsageError for what is none of them, for a suite with a line that is wrong, and for shapes and options about
    passes without a model, or of a dump of several.
    """
    from vkconv.bench.api import entries_of
    from vkconv.plan.planner import Options

    models = 0

    def shapes_of(graph: "Graph", name: str) -> dict[str, Shape]:
        nonlocal models
        models += 1
        if pass_dump and models > 1:
            raise UsageError(f"--pass-dump {pass_dump} has room for one model, and {name} is another")
        bound = bound_shapes(graph.inputs, shapes)
        for path, what in save_passes(pass_dump, graph, device, Options(skip_passes=tuple(no_pass)), bound).items():
            say(f"wrote {path}: {what}")
        return bound

    entries = entries_of(targets, suites, dtype, device, shapes_of, Options(skip_passes=tuple(no_pass)))
    if not models:
        refuse_shapes_of_call(shapes)
        refuse_for_calls(no_pass, pass_dump)
    return entries


def collect(measured: "Iterable[Row]", seconds_each: Sequence[float], header: "Header") -> "tuple[list[Row], int]":
    """The rows, told of as they come, until they end or Ctrl-C or SIGTERM does, and the exit code of that, else 0; the
    header says which, and how long it took."""
    rows: list[Row] = []
    code = 0
    started = time.perf_counter()
    with _progress(seconds_each) as advance:
        try:
            with terminable():
                for row in measured:
                    rows.append(row)
                    advance(row)
        except KeyboardInterrupt as error:
            header.incomplete, code = True, stopped_by(error)[1]
    header.elapsed_s = round(time.perf_counter() - started, 1)
    return rows, code


@contextlib.contextmanager
def _progress(seconds_each: Sequence[float]) -> "Iterator[Callable[[Row], None]]":
    """A function to tell of each row: a bar with the remaining time on a terminal, else a line on stderr."""
    from vkconv.bench.rows import params_str

    done = 0

    def line(row: "Row") -> None:
        nonlocal done
        done += 1
        took = f"{format_cell(row.us_median)} us" if row.us_median else row.why
        name = f"{row.route} {params_str(row.given)}".strip()
        where = f"{row.device}: " if row.device else ""
        say(f"[{done}/{len(seconds_each)}] {where}{row.call} {name or '-'}: {row.check}, {took}")

    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    texts = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("fields[rows]", "description"))
    with Progress(BarColumn(), *texts, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        # The bar moves by expected seconds, so that what remains is not guessed from the number of rows.
        work = bar.add_task("", total=sum(seconds_each) or 1.0, rows=f"0/{len(seconds_each)}")

        def advance(row: "Row") -> None:
            nonlocal done
            seconds = seconds_each[done]
            done += 1
            rows = f"{done}/{len(seconds_each)}"
            bar.update(work, advance=seconds, description=row.call[:40], rows=rows)

        yield advance
