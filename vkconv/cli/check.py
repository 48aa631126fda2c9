"""``vkconv check``: what a device computes, held to float64 references, node by node, run by run, or all of it."""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from vkconv.cli.checked import Result, Work
from vkconv.cli.models import find_device
from vkconv.cli.options import (
    DeviceOption,
    JsonOption,
    NoQuirksOption,
    ParamOption,
    RouteOption,
    parse_params,
    parse_routes,
)
from vkconv.cli.output import file_errors, show, show_json
from vkconv.core import UsageError
from vkconv.device import Device
from vkconv.table import Column, Table

_EXIT_FAILED = 1


def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|CALL", help="A .vkc or .onnx file, or a call: conv2d:x=1x64x56x56,w=128x64x3x3,p=1."
        ),
    ] = None,
    all_ops: Annotated[
        bool, typer.Option("--all-ops", help="Check the device: every case of every op on every route it may take.")
    ] = False,
    ops: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help="With --all-ops: only this op; repeat for several.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=SPEC",
            help="What to feed an input, or an operand of a call, as vkconv run has it: @FILE.npy or [SHAPE:]FILL. "
            "Without one: normal random numbers.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    limits: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME",
            help="Plan with the limits and routes of another device, by the name of a shipped device file (vkconv "
            "devices files) or a path, and run that here.",
        ),
    ] = "",
    routes: RouteOption = None,
    params: ParamOption = None,
    no_passes: Annotated[
        bool, typer.Option("--no-passes", help="Keep every node as the model has it: fold and fuse nothing.")
    ] = False,
    no_quirks: NoQuirksOption = False,
    stop_at_first: Annotated[
        bool, typer.Option("--stop-at-first", help="End with the first node that is wrong.")
    ] = False,
    dump: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Save each node that is wrong there: a model of it alone, its inputs, what it must give, the command.",
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Also run it N times and compare every value byte by byte.")
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(
            metavar="WHAT,...",
            help="Also check each distinct call with every legal value of these parameters of its route, such as "
            "local, or on every route: --sweep route,local. With --repeat, each so many times.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the inputs of calls.")] = 0,
    outputs: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Save as .json, .md or .html; repeat for several."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find what a device computes wrongly: the first node of a model, or any op on any route.

    Each node is checked alone, from reference inputs, and in the whole run; tolerances come from element type and
    number of terms. Exit code 1 when anything is wrong.

    Examples: vkconv check m.onnx --stop-at-first --dump wrong,
    vkconv check m.vkc --limits mali-g57, vkconv check m.vkc --repeat 50,
    vkconv check conv2d:x=1x64x56x56,w=64x64x3x3,p=1 --sweep route,local --repeat 20,
    vkconv check --all-ops -o page.html
    """
    from vkconv.check.report import check_targets
    from vkconv.plan.planner import Options

    paths = [path.expanduser() for path in outputs or ()]
    check_targets(paths)
    other = find_device(limits) if limits else None
    if all_ops:
        if target is not None or sweep or repeat or dump or routes or params or inputs:
            raise UsageError("--all-ops checks the device by itself: it goes with --op, --device, --limits and -o only")
        _conformance(device, other, ops or [], paths, as_json)
        return
    if ops:
        raise UsageError("--op goes with --all-ops")
    if target is None:
        raise UsageError("nothing to check: name a model or a call, or give --all-ops")
    options = Options(
        routes=parse_routes(routes), params=parse_params(params), passes=not no_passes, quirks=not no_quirks
    )
    work = Work(target, inputs or [], seed, device, other, limits, options)
    result = Result(work)
    with _bar() as tell:
        result.check(stop_at_first, tell)
        if repeat:
            result.repeat(repeat)
        if sweep:
            result.sweep([name for name in sweep.split(",") if name], repeat or 2, seed, tell)
    dumped = result.dump(dump) if dump else []
    result.tell(paths, dumped, as_json)
    if result.failed:
        raise typer.Exit(_EXIT_FAILED)


def _conformance(device: str, limits: Device | None, ops: Sequence[str], paths: Sequence[Path], as_json: bool) -> None:
    from vkconv.check.conformance import Conformed, conformance
    from vkconv.check.report import write_page

    with _bar() as tell:

        def seen(row: Conformed, done: int, count: int) -> None:
            tell(f"{row.call} {row.route}", done, count)

        result = conformance(device=device, limits=limits, ops=ops, seen=seen)
    facts = result.facts
    lines = [
        f"{facts.name}, driver {facts.driver}, Vulkan {facts.api_version}",
        f"quirks: {', '.join(quirk.id for quirk in facts.quirks) or 'none'}",
        result.summary(),
    ]
    parts = [
        ("Failures", result.failures()),
        ("Ops", result.ops()),
        ("Refused routes", result.refusals()),
        ("Device", Table("", (Column("fact"), Column("value")), facts.describe())),
    ]
    for path in paths:
        with file_errors(path):
            write_page(path, f"vkconv conformance: {facts.name}", lines, parts, result.data())
    if as_json:
        show_json(result.data())
    else:
        failures = [result.failures()] if result.failed else []
        commands = [row.command() for row in result.failed]
        show(lines[0], lines[1], result.ops(), *failures, *commands, lines[2], *(f"wrote {path}" for path in paths))
    if result.failed:
        raise typer.Exit(_EXIT_FAILED)


class _bar:  # noqa: N801 - used as a function
    """A line on a terminal that tells how far things are; nothing elsewhere."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()

    def __enter__(self) -> "Callable[[str, int, int], None]":
        return self.tell

    def tell(self, text: str, done: int, count: int) -> None:
        if self.shown:
            line = re.sub(r"\s+", " ", f"[{done}/{count}] {text}")[:78]
            print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        if self.shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
