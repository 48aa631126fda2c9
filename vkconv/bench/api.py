"""`run`: calls, models and suites measured on a device, from Python; and what ``vkconv bench`` shares with it."""

import datetime
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vkconv.backend.errors import import_bridge
from vkconv.backend.given import checked_list
from vkconv.backend.runtime import open_device
from vkconv.bench.calibrate import floors as measure_floors
from vkconv.bench.compare import compare as compare_results  # what `vkconv.bench` calls it
from vkconv.bench.lines import KINDS, is_line
from vkconv.bench.rows import Header, Result, Row, mark_best
from vkconv.bench.runner import Routes, make_tasks, run_tasks, spell_params
from vkconv.bench.sampling import BenchOptions
from vkconv.bench.suites import (
    Entry,
    is_call,
    merge,
    merge_alike,
    model_entries,
    parse_entries,
    read_suite,
    shipped_suites,
)
from vkconv.core import DType, Shape, UsageError, did_you_mean
from vkconv.device import Device
from vkconv.graph import SUFFIXES, Graph, load_model
from vkconv.plan.bound import named_shapes
from vkconv.plan.planner import Options
from vkconv.route import Params
from vkconv.settings import Settings
from vkconv.version import VERSION

__all__ = ["compare_results", "describe", "entries_of", "header", "run"]


def run(
    *targets: str | Path | Graph,
    suites: Sequence[str] = (),
    routes: Sequence[str] = (),
    sweep: Sequence[str] = (),
    local: Sequence[int] = (),
    params: Mapping[str, Params] | None = None,
    dtype: DType | str | None = None,
    shapes: Mapping[str, Shape] | None = None,
    dims: Mapping[str, int] | None = None,
    device: str | int = "auto",
    options: BenchOptions | None = None,
    policy: str = "",
    seen: Callable[[Row], None] = lambda row: None,
) -> Result:
    """Check single calls and time them on the GPU's own clock: ``vkconv bench`` from Python.

    ``targets`` are calls, lines of other tools, models (which stand for the distinct calls of their plan, with
    ``shapes`` and ``dims`` of what they leave open); ``suites`` are names of shipped ones, or files. ``routes`` are
    names, "all", or OP=ROUTE; without any the planner chooses. ``sweep`` names parameters of routes to measure every
    legal value of, and "route"; ``local`` workgroup sizes; ``params`` sets parameters by OP, or by OP:ROUTE for a
    route that is measured, as in ``{"conv2d:direct_tile": {"channels": 8}}`` beside ``routes=["direct_tile"]``.
    ``seen`` is told of each row as it comes.

    Raises UsageError and GraphError for what cannot be read, ModelError for files, DeviceError without a device. What
    goes wrong with a row is in the row.
    """
    for name, texts, such in (("routes", routes, "['all']"), ("sweep", sweep, "['local']")):
        checked_list(name, texts, such)
    checked_list("suites", suites, "['mobilenet']", str | Path)
    checked_list("local", local, "[64, 256]", int | np.integer)
    Settings(shapes=shapes, dims=dims)
    params = {} if params is None else params
    if not isinstance(params, Mapping) or not all(isinstance(given, Mapping) for given in params.values()):
        raise UsageError(f"params is {params!r}; it is a dict of dicts: {{'conv2d': {{'local': 64}}}}")
    options = BenchOptions() if options is None else options
    if not isinstance(options, BenchOptions):
        raise UsageError(f"options is {options!r}; it is a vkconv.bench.BenchOptions")
    if not callable(seen):
        raise UsageError(f"seen is {seen!r}; it is a function of a row")
    element = None if dtype is None else _dtype(dtype)
    live = open_device(device)

    def shapes_of(graph: Graph, name: str) -> Mapping[str, Shape]:
        return named_shapes(graph.inputs, shapes or {}, dims or {})

    entries = merge_alike(entries_of(targets, suites, element, live.device, shapes_of, Options()))
    asked = Routes.parse([*routes, *(["all"] if "route" in sweep else [])], entries)
    swept = [name for name in sweep if name != "route"]
    tasks = make_tasks(entries, asked, live.device, sweep=swept, local=local, policy=policy, params=params)
    floors = measure_floors(live)
    more = {"dtype": element, "sweep": ",".join(sweep) or None, "policy": policy or None}
    more["param"] = spell_params(params) or None
    head = header([str(getattr(t, "name", t)) for t in targets], suites, asked, options, 0.0, more)
    describe(head, live.device)
    head.floors = floors
    rows = []
    for row in run_tasks(tasks, device=device, options=options, floors=floors):
        rows.append(row)
        seen(row)
    mark_best(rows)
    live.save_pipeline_cache()
    return Result(header=head, rows=rows)


def entries_of(
    targets: Sequence[str | Path | Graph],
    suites: Sequence[str],
    dtype: DType | None,
    device: Device,
    shapes_of: Callable[[Graph, str], Mapping[str, Shape]],
    options: Options,
) -> list[Entry]:
    """The calls that targets (calls, lines of other tools, models) and suites stand for, each once. ``shapes_of`` gives
    the shapes of a model's inputs, whose name it is told; models are planned with ``options``.

    Raises UsageError for what is none of them, and for a suite with a line that is wrong.
    """
    entries: list[Entry] = []
    for target in targets:
        text = str(target)
        if isinstance(target, str) and (is_line(text) or is_call(text)):
            entries += parse_entries(text, dtype, must_exist=True)
        elif isinstance(target, Graph) or Path(text).suffix in SUFFIXES or Path(text).is_file():
            graph = load_model(target if isinstance(target, Graph) else Path(text))
            entries += model_entries(graph, device, shapes_of(graph, text), options, dtype)
        else:
            hint = did_you_mean(text, shipped_suites())
            raise UsageError(f"{text!r} is no call, no model, and no line of {KINDS}; suites go by --suite{hint}")
    for name in suites:
        entries += read_suite(name, dtype)
    if not entries:
        raise UsageError(f"nothing to measure: give calls, models or --suite {'|'.join(shipped_suites())}")
    return merge(entries)


def header(
    targets: Sequence[str],
    suites: Sequence[str],
    routes: Routes,
    options: BenchOptions,
    expected_s: float,
    more: Mapping[str, str | None],
) -> Header:
    """The conditions of a result, without a device: `describe` adds it."""
    forced = dict(routes.by_op)
    if routes.every or routes.names:
        forced["*"] = "all" if routes.every else ",".join(routes.names)
    calls = [*targets[:3], *(["..."] if len(targets) > 3 else [])]
    return Header(
        device="",
        device_key="",
        driver="",
        vulkan="",
        versions={
            "vkconv": VERSION,
            "kp": import_bridge().BUILD["kompute"],
            "python": platform.python_version(),
        },
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        calls=", ".join([*calls, *(f"suite {name}" for name in suites)]),
        options={
            "min_time_s": options.min_time_s,
            "runs": options.runs,
            "warmup": options.warmup,
            "cooldown_s": options.cooldown_s,
            "seed": options.seed,
            **({} if options.fixed_push is None else {"fixed_push": options.fixed_push}),
            **more,
        },
        forced=forced,
        quirks=[],
        expected_s=round(expected_s, 1),
    )


def describe(head: Header, facts: Device) -> None:
    """Say in a header which device was measured."""
    head.device, head.device_key, head.driver = facts.name, facts.key, facts.driver
    head.vulkan, head.quirks = facts.api_version, [quirk.id for quirk in facts.quirks]


def _dtype(text: object) -> DType:
    if not isinstance(text, str) or text not in list(DType):
        raise UsageError(f"dtype {text!r} is none{did_you_mean(str(text), map(str, DType))}; {', '.join(DType)}")
    return DType(text)
