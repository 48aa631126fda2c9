"""``vkconv phone check``: what a phone or board computes wrongly."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkconv.cli.boards import merged
from vkconv.cli.checked import Report, Work, conformance_report
from vkconv.cli.checked import Result as Checks
from vkconv.cli.conform import extent_of, parse_storages
from vkconv.cli.options import (
    MODELS,
    BoundAtOption,
    DTypeOption,
    FewOption,
    FixedPushOption,
    HalfSumsOption,
    JsonOption,
    ParamOption,
    RouteOption,
    ShapeOption,
    parse_bounds,
    parse_dtypes,
    parse_floats,
    parse_params,
    parse_routes,
)
from vkconv.cli.output import refuse_to_replace
from vkconv.cli.phoned import (
    EXIT_FAILED,
    AllOption,
    KeepOption,
    OutputsOption,
    RepeatOption,
    SerialOption,
    ViaOption,
    VulkanOption,
    folders_for,
    open_boards,
)
from vkconv.cli.stopping import stopped_by, terminable
from vkconv.core import FLOAT_TYPES, UsageError
from vkconv.device import Device

if TYPE_CHECKING:
    from vkconv.check.conformance import Extent
    from vkconv.phone.board import Board


def check(
    target: Annotated[str | None, typer.Argument(metavar="MODEL|CALL", help=f"A {MODELS} file, or a call.")] = None,
    via: ViaOption = None,
    serials: SerialOption = None,
    everything: AllOption = False,
    device: VulkanOption = "0",
    all_ops: Annotated[bool, typer.Option("--all-ops", help="Every case of every op on every route.")] = False,
    ops: Annotated[list[str] | None, typer.Option("--op", metavar="OP", help="With --all-ops: only this op.")] = None,
    short: Annotated[bool, typer.Option("--short", help="With --all-ops: planned parameters only.")] = False,
    few: FewOption = False,
    storage: Annotated[str, typer.Option("--storage", metavar="native|packed", help="With --all-ops.")] = "",
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=SPEC", help="Inputs, as vkconv run has them.")
    ] = None,
    shapes: ShapeOption = None,
    bounds: BoundAtOption = None,
    routes: RouteOption = None,
    params: ParamOption = None,
    dtypes: DTypeOption = None,
    half_sums: HalfSumsOption = False,
    fixed_push: FixedPushOption = None,
    repeat: RepeatOption = 2,
    stop_at_first: Annotated[bool, typer.Option("--stop-at-first", help="End with the first wrong node.")] = False,
    dump: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save what repeats each wrong node, and the wrong outputs.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the inputs of calls.")] = 0,
    keep: KeepOption = False,
    outputs: OutputsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find what a phone or board computes wrongly: the first node of a model, or any op on any route.

    References are computed here, compared there. Exit code 1 when anything is wrong, or a device was lost. What Ctrl-C
    or SIGTERM leaves is told and saved.

    Examples: vkconv phone check m.onnx --repeat 50, vkconv phone check --all-ops --dtype f16 --short -o page.html
    """
    from vkconv.check.report import CASE_SUFFIXES, SUFFIXES, check_targets
    from vkconv.plan.planner import Options

    paths = [path.expanduser() for path in outputs or ()]
    check_targets(paths, (*SUFFIXES, *CASE_SUFFIXES))
    refuse_to_replace([target], *paths)
    if all_ops:
        of_models = inputs, shapes, bounds, routes, params, half_sums, dump
        if target is not None or any(of_models):
            raise UsageError(
                "--all-ops goes with --op, --short, --few, --dtype, --storage, --fixed-push, --repeat and -o only"
            )
        floats = parse_floats(dtypes) if dtypes else list(FLOAT_TYPES)
        boards = open_boards(via, serials, everything, device)
        told = _conform(boards, ops or [], floats, storage, extent_of(short, few), repeat, keep, fixed_push)
        _end(*told, paths, as_json)
        return
    if target is None:
        raise UsageError("nothing to check: name a model or a call, or give --all-ops")
    if ops or short or few or storage:
        raise UsageError("--op, --short, --few and --storage go with --all-ops")
    dtype, of_nodes, auto = parse_dtypes(dtypes)
    if auto:
        raise UsageError("--dtype auto needs a device that vkconv runs on: say which types to check")
    options = Options(
        routes=parse_routes(routes),
        params=parse_params(params),
        dtype=dtype,
        dtypes=of_nodes,
        half_sums=half_sums,
        fixed_push=fixed_push,
    )
    work = Work(target, inputs or [], seed, "auto", None, "", options, shapes=shapes or [], bounds=parse_bounds(bounds))
    boards = open_boards(via, serials, everything, device)
    words = ["--repeat", str(repeat), *(["--stop-at-first"] if stop_at_first else [])]
    _end(*_check_model(boards, work, words, dump, keep), paths, as_json)


def _check_model(
    boards: "dict[str, Board]", work: Work, words: Sequence[str], dump: Path | None, keep: bool
) -> tuple[Report, int]:
    from vkconv.phone.fleet import each, play_all
    from vkconv.phone.packs import PackedModel, model_plan
    from vkconv.phone.results import model_check

    reports, problems = {}, {}
    with folders_for(boards) as folders:

        def pack(board: "Board") -> PackedModel:
            folder = folders[board.name]
            made = model_plan(folder, work.graph, work.inputs, board.device, work.options, work.name)
            folder.add(made.plan, work.name)
            folder.close()
            return made

        packed = each(boards, pack)
        code = 0
        try:
            with terminable():
                for told in play_all(boards, {n: folder.path for n, folder in folders.items()}, words, dump, keep):
                    if told.error:
                        problems[told.name] = told.error
                    elif told.result is not None and told.place == 0:
                        if told.result["status"] in ("ok", "FAILED"):
                            checks = Checks(work)
                            checks.model = model_check(packed[told.name], told.result)
                            report = checks.report(checks.dump(dump) if dump else [])
                            reports[told.name] = _with_why(report, told.result)
                        else:
                            problems[told.name] = f"{told.result['status']}: {told.result['why']}"
        except KeyboardInterrupt as error:
            stopped, code = stopped_by(error)
            problems = {**dict.fromkeys((name for name in boards if name not in reports), stopped), **problems}
    return _report(f"vkconv phone check: {work.name}", boards, reports, problems), code


def _with_why(report: Report, result: Any) -> Report:
    """The report with what only the player says: of replays."""
    if result["status"] == "ok" or report.failed:
        return report
    return dataclasses.replace(report, verdicts=[f"FAILED: {result['why']}"], failed=True)


def _conform(
    boards: "dict[str, Board]",
    ops: Sequence[str],
    floats: Sequence[Any],
    storage: str,
    extent: "Extent",
    repeat: int,
    keep: bool,
    fixed_push: bool | None,
) -> tuple[Report, int]:
    from vkconv.check.conformance import checks
    from vkconv.check.coverage import Conformance
    from vkconv.cli.progress import progress
    from vkconv.phone.calls import pack_checks
    from vkconv.phone.fleet import each, play_all
    from vkconv.phone.results import Result, conformed

    storages = parse_storages(storage)
    work = {name: checks(board.device, ops, floats, storages, extent, fixed_push) for name, board in boards.items()}
    results: dict[str, dict[int, Result]] = {name: {} for name in boards}
    problems: dict[str, str] = {}
    with folders_for(boards) as folders:
        packed = each(boards, lambda board: list(pack_checks(folders[board.name], work[board.name], board.device)))
        for folder in folders.values():
            folder.close()
        started, seconds = time.perf_counter(), dict.fromkeys(boards, 0.0)
        playing = {name: folder.path for name, folder in folders.items() if len(folder)}
        code = 0
        try:
            with terminable(), progress(sum(map(len, folders.values())), "packs") as tell:
                for told in play_all(boards, playing, ["--repeat", str(repeat)], None, keep):
                    seconds[told.name] = time.perf_counter() - started
                    if told.error:
                        problems[told.name] = told.error
                    elif told.result is not None and told.place >= 0:
                        results[told.name][told.place] = told.result
                        tell(1, told.name, told.result["label"])
        except KeyboardInterrupt as error:
            stopped, code = stopped_by(error)
            late = [name for name in playing if len(results[name]) < len(folders[name])]
            problems = {**dict.fromkeys(late, stopped), **problems}
    reports = {}
    for name, board in boards.items():
        done = [c for c in packed[name] if all(place in results[name] for place in c.places.values())]
        rows = [conformed(c, results[name], problems.get(name, "")) for c in done]
        found = Conformance(board.device, work[name], rows, seconds[name], problems.get(name, ""))
        reports[name] = conformance_report(found)
    return _report("vkconv phone conformance", boards, reports, problems), code


def _report(title: str, boards: "dict[str, Board]", reports: dict[str, Report], problems: dict[str, str]) -> Report:
    if len(boards) == 1 and reports and not problems:
        return next(iter(reports.values()))
    # A board whose name differs from its address is called by it, not by its device.
    address = {name: f"phone {name}" for name in boards}
    devices: dict[str, Device] = {address[name]: board.device for name, board in boards.items()}
    return merged(
        title,
        "vkconv phone",
        {address[name]: name for name in boards},
        devices,
        {address[name]: report for name, report in reports.items()},
        {address[name]: problem for name, problem in problems.items()},
    )


def _end(report: Report, stopped: int, paths: Sequence[Path], as_json: bool) -> None:
    """Tell of a report; ``stopped`` is the exit code of a command that was stopped, else 0."""
    report.tell(paths, as_json)
    if stopped or report.failed:
        raise typer.Exit(stopped or EXIT_FAILED)
