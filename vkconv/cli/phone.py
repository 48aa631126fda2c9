"""``vkconv phone``: phones and boards where vkconv does not run, by adb or ssh, from cable to report."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from vkconv.cli.bench import parse_dtype
from vkconv.cli.benched import Wanted, collect
from vkconv.cli.checked import Work
from vkconv.cli.options import (
    MODELS,
    BoundAtOption,
    CallsDTypeOption,
    DTypeOption,
    FixedPushOption,
    RouteOption,
    ShapeOption,
    SuitesOption,
    parse_bounds,
    parse_dtypes,
    parse_routes,
)
from vkconv.cli.output import file_errors, refuse_to_replace, save_each, say, show
from vkconv.cli.pack import pack_calls
from vkconv.cli.phone_check import check
from vkconv.cli.phoned import (
    EXIT_FAILED,
    AllOption,
    KeepOption,
    OutputsOption,
    SerialOption,
    ViaOption,
    VulkanOption,
    folders_for,
    open_boards,
)
from vkconv.core import DeviceError, UsageError, atomic_write, counted, expand_user
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.bench.rows import Row
    from vkconv.phone.board import Board
    from vkconv.phone.calls import PackedRow

phone_app = typer.Typer(no_args_is_help=True, help="Phones and boards where vkconv does not run, by adb or ssh.")
phone_app.command("check")(check)


@phone_app.command("list")
def list_() -> None:
    """List the devices of adb and whether they can be used."""
    from vkconv.phone.transport import adb_devices

    devices = adb_devices()
    if not devices:
        raise DeviceError("adb has no device: plug one in, with USB debugging switched on")
    show(Table("", [Column("serial"), Column("state")], list(devices.items())))


@phone_app.command()
def info(
    via: ViaOption = None,
    serials: SerialOption = None,
    everything: AllOption = False,
    device: VulkanOption = "0",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.json", help="Write the device file of the one device."),
    ] = None,
) -> None:
    """Tell what device a phone or board has, and write its device file, for --device and --limits elsewhere."""
    boards = open_boards(via, serials, everything, device)
    if output is not None and len(boards) > 1:
        raise UsageError(f"-o {output} is for one device, and there are {len(boards)}")
    for name, board in boards.items():
        show(f"{name}: {board.model}", Table("", (Column("fact"), Column("value")), board.device.describe()))
        if output is not None:
            with file_errors(output):
                board.device.save(output)
            show(f"wrote {output}")


@phone_app.command()
def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CALL|MODEL...", help="Calls, lines of other tools, and models, whose calls are measured."
        ),
    ] = None,
    via: ViaOption = None,
    serials: SerialOption = None,
    everything: AllOption = False,
    device: VulkanOption = "0",
    suites: SuitesOption = None,
    routes: Annotated[
        list[str] | None, typer.Option("--route", metavar="all|ROUTE|OP=ROUTE", help="Routes, as vkconv bench has it.")
    ] = None,
    sweep: Annotated[str, typer.Option(metavar="WHAT,...", help="Parameters, as vkconv bench has it.")] = "",
    dtype: CallsDTypeOption = "",
    shapes: ShapeOption = None,
    min_time: Annotated[float, typer.Option("--min-time", metavar="SECONDS", help="Least time of each row.")] = 0.2,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Least number of timed executions of a row.")] = 10,
    warmup: Annotated[int | None, typer.Option(min=0, metavar="N", help="Untimed executions first.")] = None,
    cooldown: Annotated[float, typer.Option(metavar="SECONDS", help="Pause before each row is timed.")] = 0.0,
    cpu: Annotated[
        int | None, typer.Option("--cpu", min=0, metavar="N", help="Run the player on this processor there alone.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the inputs.")] = 0,
    fixed_push: FixedPushOption = None,
    keep: KeepOption = False,
    outputs: OutputsOption = None,
) -> None:
    """Measure calls on a phone or board: planned here for its own device, checked and timed there.

    Tables and files are those of vkconv bench; vkconv compare compares them. Exit code 1: a row failed, or a device was
    lost; what was measured before is kept.

    Examples: vkconv phone bench --suite executorch-conv2d --route all -o phone.json,
    vkconv phone bench matmul:a=64x64,b=64x64 --via ssh://pi@board
    """
    from vkconv.bench.files import check_targets, write_result
    from vkconv.bench.rows import Board as BenchBoard
    from vkconv.bench.rows import Result, header_lines, mark_best, screen_tables
    from vkconv.bench.runner import Routes
    from vkconv.bench.sampling import BenchOptions
    from vkconv.phone.fleet import each

    paths = [expand_user(path, "-o") for path in outputs or ()]
    check_targets(paths)
    refuse_to_replace(targets or (), *paths)
    options = BenchOptions(min_time, runs, warmup, cooldown, seed, fixed_push)
    kind = parse_dtype(dtype)
    boards = open_boards(via, serials, everything, device)
    words = ["--bench", "--repeat", "2", "--min-time", str(min_time), "--runs", str(runs), "--cooldown", str(cooldown)]
    words += ["--warmup", str(warmup)] if warmup is not None else []
    words += ["--cpu", str(cpu)] if cpu is not None else []
    with folders_for(boards) as folders:

        def pack(board: "Board") -> "list[PackedRow]":
            folder = folders[board.name]
            rows = pack_calls(
                folder,
                board.device,
                targets or [],
                suites or [],
                routes or [],
                sweep,
                kind,
                seed,
                shapes or [],
                fixed_push,
            )
            folder.close()
            return rows

        packed = each(boards, pack)
        wanted = Wanted(targets or [], suites or [], routes or [], sweep, [], kind, shapes or [], device, options)
        header = wanted.header(Routes(every="all" in (routes or [])), 0.0)
        header.boards = [
            BenchBoard(
                label=name,
                device=b.device.name,
                device_key=b.device.key,
                driver=b.device.driver,
                vulkan=b.device.api_version,
                quirks=[quirk.id for quirk in b.device.quirks],
            )
            for name, b in boards.items()
        ]
        (one, *more) = header.boards
        if more:
            header.device = f"{len(header.boards)} devices"
        else:
            header.device, header.device_key, header.driver = one.device, one.device_key, one.driver
            header.vulkan, header.quirks, header.boards = one.vulkan, one.quirks, []
        count = sum(len(rows) for rows in packed.values())
        say(f"{counted(count, 'row')} on {', '.join(f'{name} ({b.device.name})' for name, b in boards.items())}")
        measured = _measured(
            boards, packed, {name: folder.path for name, folder in folders.items()}, words, keep, cooldown
        )
        rows, code = collect(measured, [1.0] * count, header)
    order = {name: i for i, name in enumerate(boards)}
    rows.sort(key=lambda row: order[row.device])
    for row in rows:
        row.device = row.device if more else ""
    mark_best(rows)
    result = Result(header=header, rows=rows)
    written, problem = save_each(paths, lambda path: write_result(result, [path]))
    show(*header_lines(header), *screen_tables(result))
    show(*(f"wrote {path}" for path in written))
    if problem:
        raise problem
    if code or any(row.check in ("FAILED", "lost") for row in rows):
        raise typer.Exit(code or EXIT_FAILED)


def _measured(
    boards: "dict[str, Board]",
    packed: "dict[str, list[PackedRow]]",
    folders: dict[str, Path],
    words: Sequence[str],
    keep: bool,
    cooldown: float,
) -> "Iterator[Row]":
    """The rows of all boards as they come; those that a board left out when it was lost, at its end."""
    from vkconv.phone.fleet import play_all
    from vkconv.phone.results import fill_row

    waiting = {name: {row.place: row.row for row in rows if row.place is not None} for name, rows in packed.items()}
    for name, rows in packed.items():
        for row in rows:
            row.row.device = name
            if row.place is None:
                yield row.row
    ticks, lost = dict.fromkeys(boards, 1.0), {}
    screens = {name: board.screen() for name, board in boards.items()}
    playing = {name: folder for name, folder in folders.items() if waiting[name]}
    for told in play_all(boards, playing, words, None, keep):
        if told.error:
            lost[told.name] = told.error
        elif told.result is not None and told.place < 0:
            ticks[told.name] = float(told.result["timestamp_period_ns"])
        elif told.result is not None and told.place in waiting[told.name]:
            measured = fill_row(waiting[told.name].pop(told.place), told.result, ticks[told.name])
            measured.notes += [screens[told.name]] if screens[told.name] else []
            measured.notes += [f"after a pause of {cooldown:g} s"] if cooldown else []
            yield measured
    for name, rows_left in waiting.items():
        for left in rows_left.values():
            yield fill_row(left, None, ticks[name], lost.get(name, ""))


@phone_app.command()
def run(
    model: Annotated[str, typer.Argument(metavar="MODEL|CALL", help=f"A {MODELS} file, or a call.")],
    via: ViaOption = None,
    serials: SerialOption = None,
    everything: AllOption = False,
    device: VulkanOption = "0",
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=SPEC", help="Inputs, as vkconv run has them.")
    ] = None,
    shapes: ShapeOption = None,
    bounds: BoundAtOption = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Save the outputs there, a folder for each device.")
    ] = None,
    routes: RouteOption = None,
    dtypes: DTypeOption = None,
    fixed_push: FixedPushOption = None,
) -> None:
    """Run a model on a phone or board: its outputs, its time, and that of each dispatch."""
    from vkconv.phone.fleet import each, play_all
    from vkconv.phone.packs import model_plan
    from vkconv.phone.results import conditions
    from vkconv.plan.planner import Options

    dtype, of_nodes, auto = parse_dtypes(dtypes)
    if auto:
        raise UsageError("--dtype auto needs a device that vkconv runs on: say which types to run in")
    options = Options(routes=parse_routes(routes), dtype=dtype, dtypes=of_nodes, fixed_push=fixed_push)
    work = Work(model, inputs or [], 0, "auto", None, "", options, shapes=shapes or [], bounds=parse_bounds(bounds))
    boards = open_boards(via, serials, everything, device)
    failed = False
    with folders_for(boards) as folders, tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:

        def pack(board: "Board") -> str:
            made = model_plan(folders[board.name], work.graph, work.inputs, board.device, work.options, work.name)
            folders[board.name].add(made.plan, work.name)
            folders[board.name].close()
            return made.plan

        plans = each(boards, pack)
        ended = {}
        paths = {name: folder.path for name, folder in folders.items()}
        for told in play_all(boards, paths, ["--bench", "--keep", "--repeat", "1"], Path(scratch)):
            if told.error:
                failed = True
                say(f"{told.name}: {told.error}")
            elif told.result is not None and told.place == 0:
                ended[told.name] = told.result
        for name, result in ended.items():
            failed |= result["status"] != "ok"
            times = result.get("times", {})
            median = f", {times['us_median']:.6g} us" if times.get("us_median") is not None else ""
            dispatches = [(each_["name"], each_["us"]) for each_ in times.get("dispatches", ())]
            kept = _outputs(Path(scratch) / name.replace("/", "_"), plans[name], paths[name], save and save / name)
            show(
                f"{name} ({boards[name].device.name}): {result['status']}{median}",
                *([result["why"]] if result["why"] else []),
                *conditions(result),
                *kept,
                Table("", [Column("dispatch"), Column("us", digits=4)], dispatches),
            )
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _outputs(got: Path, plan: str, folder: Path, save: Path | None) -> list[str]:
    """The outputs that a player kept, in words, and saved as .npy files."""
    from vkconv.core import DType, shape_str
    from vkconv.phone.results import kept_output

    words = [line.partition(" # ") for line in (folder / plan).read_text(encoding="utf-8").splitlines()]
    lines = []
    for number, (line, _, name) in enumerate(part for part in words if part[0].startswith("output ")):
        dtype, shape = DType(line.split()[4]), line.split()[5]
        dims = () if shape == "scalar" else tuple(map(int, shape.split("x")))
        found = next(iter(got.rglob(f"{Path(plan).stem}_{number}.bin")), None)
        if found is None:
            continue
        array = kept_output(name, found.read_bytes(), dtype, dims)
        lines.append(f"output {name}: {shape_str(dims)} of {dtype}")
        if save is not None:
            target = save / f"{number}.npy"
            with file_errors(target), atomic_write(target) as file:
                np.save(file, array, allow_pickle=False)
            lines.append(f"wrote {target}")
    return lines


@phone_app.command()
def pull(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put it, a folder for each device.")],
    via: ViaOption = None,
    serials: SerialOption = None,
    everything: AllOption = False,
    remove: Annotated[bool, typer.Option("--remove", help="Then remove all that vkconv keeps there.")] = False,
) -> None:
    """Fetch the results and outputs of runs whose connection broke off, and tidy up there."""
    from vkconv.phone.board import fetch
    from vkconv.phone.transport import transports

    for transport in transports(via or [], serials or [], everything):
        with file_errors(folder):
            made = fetch(transport, "run-*/results.jsonl run-*/got", folder / transport.name.replace("/", "_"))
        show(f"{transport.name}: {len(made)} files", *map(str, made))
        if remove:
            transport.remove()
            show(f"{transport.name}: removed {transport.folder}")
