"""Names made to move a terminal's cursor, to turn text around and to be HTML, and every command with them."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import typer
from cli_kit import vkconv
from hostile_boards import BOARD, hostile_board

from vkconv.bench.files import write_result
from vkconv.bench.rows import Header, Result, Row
from vkconv.cli import app
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.plan.measured import MeasuredCall, MeasuredTable, write_table
from vkconv.route import Candidate

EVIL = "\x1b]0;owned\x07\u202e\x9b2J<script>alert(1)</script>|[a](javascript:b)\r\nerror: none"
_MARKUP = {".md": ("<script", "[a]("), ".html": ("<script>alert",), ".txt": ()}


def hostile_model(folder: Path) -> Path:
    """A model whose every name is hostile."""
    values = [f"{name}{EVIL}" for name in "xwcdy"]
    x, w, c, d, y = values
    graph = Graph(
        {x: TensorSpec((1, 3, 5, 5))},
        (y, d),
        (
            Node(f"conv{EVIL}", "conv2d", (x, w), (c,), {"padding": (1, 1, 1, 1)}),
            Node(f"act{EVIL}", "sin", (c,), (d,)),
            Node(f"sum{EVIL}", "reduce", (d,), (y,), {"op": "sum", "axes": (1,)}),
        ),
        {w: np.ones((4, 3, 3, 3), np.float32)},
        name=f"graph{EVIL}",
        metadata={f"key{EVIL}": f"value{EVIL}"},
    )
    path = folder / "hostile.vkc"
    save_vkc(graph, path)
    return path


def hostile_device(folder: Path) -> Path:
    """A device file with hostile texts, wherever one may be."""
    facts = json.loads(json.dumps(load_device("lavapipe").facts))
    facts["properties"]["VkPhysicalDeviceDriverProperties"] |= {"driverName": EVIL, "driverInfo": EVIL}
    facts["extensions"][EVIL] = 1
    facts["features"]["VkPhysicalDeviceFeatures"][EVIL] = True
    path = folder / "device.json"
    path.write_text(json.dumps({"schema": "vkconv.device/1"} | facts | {"source": EVIL, "assumed": [EVIL]}))
    return path


def hostile_result(folder: Path) -> Path:
    header = Header(
        device=EVIL,
        device_key=EVIL,
        driver=EVIL,
        vulkan=EVIL,
        versions={EVIL: EVIL},
        date="2026-01-02T03:04:05+00:00",
        calls=EVIL,
        options={EVIL: EVIL},
        forced={EVIL: EVIL},
        quirks=[EVIL],
    )
    row = Row(call=EVIL, op=EVIL, route=EVIL, us_median=2.5, us_min=2.0, us_p90=3.0, runs=10, why=EVIL, best=True)
    path = folder / "result.json"
    write_result(Result(header=header, rows=[row, msgspec.structs.replace(row, check="FAILED")]), [path])
    return path


def hostile_table(folder: Path) -> Path:
    row = MeasuredCall("2026-01-02T03:04:05Z", (Candidate(EVIL, {EVIL: 64}, 12.5, 0.5),))
    path = folder / "table.json"
    table = MeasuredTable(
        device_key=EVIL, device=EVIL, driver=EVIL, vkconv="0", date=row.date, rows={f"relu:x=4,{EVIL}": row}
    )
    write_table(table, path)
    return path


Lines = Callable[[Path], Iterator[Sequence[object]]]


def _explain(folder: Path) -> Iterator[Sequence[object]]:
    model, device = hostile_model(folder), hostile_device(folder)
    yield "explain", model, "-d", device
    yield "explain", model, "-d", device, "--json"
    yield "explain", model, "-d", device, "--pass-dump", folder / "dump"
    yield "explain", model, "-d", device, "--route", f"node:{EVIL}=none"
    yield "explain", f"conv2d:{EVIL}"
    yield "explain", EVIL


def _show(folder: Path) -> Iterator[Sequence[object]]:
    model = hostile_model(folder)
    yield "show", model
    yield "show", model, "--json"
    yield "show", model, "--memory", "-d", hostile_device(folder)
    yield "show", folder / f"none{EVIL.replace('/', '')}.vkc"


def _extract(folder: Path) -> Iterator[Sequence[object]]:
    model = hostile_model(folder)
    yield "extract", model, "--to", f"d{EVIL}", "-o", folder / "part.vkc"
    yield "extract", model, "--from", EVIL, "-o", folder / f"b{EVIL.replace('/', '')}.onnx"
    yield "extract", model, "--to", f"{EVIL}{EVIL}", "-o", folder / "part.onnx"


def _import(folder: Path) -> Iterator[Sequence[object]]:
    report = json.loads((Path(__file__).parent / "data" / "vulkaninfo-llvmpipe.json").read_text())
    path = folder / "report.json"
    for field in ("deviceName", "pipelineCacheUUID", "deviceType"):
        base = report["capabilities"]["device"]["properties"]["VkPhysicalDeviceProperties"]
        path.write_text(json.dumps(report).replace(json.dumps(base[field]), json.dumps(EVIL)))
        yield "devices", "import", path
    path.write_text(json.dumps({"profiles": {EVIL: {}, "B": {}}, "capabilities": {}}))
    yield "devices", "import", path
    path.write_text(json.dumps(report).replace("Mesa 22.3", json.dumps(EVIL)[1:-1]))
    yield "devices", "import", path, "-o", folder / "imported.json"


def _compare(folder: Path) -> Iterator[Sequence[object]]:
    path = hostile_result(folder)
    yield "compare", path, path
    yield "compare", path, path, "--fail-over", "1"


def _tune(folder: Path) -> Iterator[Sequence[object]]:
    table = hostile_table(folder)
    yield "tune", "--merge", table, table, "-o", folder / "both.json"
    yield "tune", "--report", table


def _on_device(*words: str, written: Sequence[str] = ()) -> Lines:
    def lines(folder: Path) -> Iterator[Sequence[object]]:
        model = hostile_model(folder)
        yield (*words[:1], model, *words[1:])
        yield (*words[:1], model, *words[1:], "--json")
        yield (*words[:1], model, *words[1:], "--route", f"node:{EVIL}=x")
        if written:
            files = [word for name in written for word in ("-o", folder / name)]
            yield (*words[:1], model, *words[1:], *files)

    return lines


def _phone(verb: str, *words: str) -> Lines:
    def lines(folder: Path) -> Iterator[Sequence[object]]:
        with hostile_board(folder, EVIL):
            more = (hostile_model(folder),) if verb in ("check", "run") else ()
            yield ("phone", verb, *more, *words)

    return lines


# Every command, with what shows a name of a file in it. Those of DEVICE need one.
PURE: dict[tuple[str, ...], Lines] = {
    ("explain",): _explain,
    ("show",): _show,
    ("compare",): _compare,
    ("convert",): lambda folder: iter([("convert", hostile_model(folder), folder / f"b{EVIL.replace('/', '')}.onnx")]),
    ("extract",): _extract,
    ("pack",): lambda folder: iter([("pack", hostile_model(folder), folder / "p", "-d", hostile_device(folder))]),
    ("ops",): lambda folder: iter([("ops", EVIL), ("ops",)]),
    ("passes",): lambda folder: iter([("passes",)]),
    ("policies",): lambda folder: iter([("policies", "-d", hostile_device(folder)), ("policies", EVIL)]),
    ("devices",): lambda folder: iter(
        [("devices", "-d", hostile_device(folder)), ("devices", "-d", hostile_device(folder), "--dump")]
    ),
    ("compilers",): lambda folder: iter([("compilers",), ("compilers", "--json")]),
    ("compilers", "install"): lambda folder: iter([("compilers", "install", "-h"), ("compilers", "install", EVIL)]),
    ("compile",): lambda folder: iter(
        [("compile", "-h"), ("compile", f"relu:x={EVIL}"), ("compile", "relu:x=3", "--with", EVIL)]
    ),
    ("estimate",): lambda folder: iter(
        [("estimate", "-h"), ("estimate", f"relu:x={EVIL}", "-d", "adreno-740"), ("estimate", "relu:x=3", "-d", EVIL)]
    ),
    ("devices", "files"): lambda folder: iter([("devices", "files")]),
    ("devices", "import"): _import,
    ("phone", "list"): _phone("list"),
    ("phone", "info"): _phone("info", *BOARD),
    ("phone", "bench"): _phone("bench", "relu:x=3", *BOARD),
    ("phone", "check"): _phone("check", *BOARD),
    ("phone", "run"): _phone("run", *BOARD),
    ("phone", "pull"): lambda folder: _phone("pull", str(folder / "pulled"), *BOARD)(folder),
}
DEVICE: dict[tuple[str, ...], Lines] = {
    ("run",): _on_device("run", "--runs", "1", "--profile"),
    ("check",): _on_device("check", written=("a.md", "a.html")),
    ("bench",): _on_device("bench", "--min-time", "0.001", written=("a.md", "a.html")),
    ("tune",): _tune,
    ("doctor",): lambda folder: iter([("doctor",)]),
}


def all_commands() -> set[tuple[str, ...]]:
    """Every command of the application, and every group that does something by itself."""

    def walk(group: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():  # type: ignore[attr-defined]
            if hasattr(command, "commands"):
                yield from walk(command, (*path, name))
            if not getattr(command, "commands", None) or command.invoke_without_command:
                yield (*path, name)

    return set(walk(typer.main.get_command(app), ()))


def hostile_output(lines: Lines, folder: Path) -> list[str]:
    """What a command shows or writes that it should not, with its words."""
    found, codes = [], []
    for words in lines(folder):
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        code, out, err = vkconv(*words)
        codes.append(code)
        assert code in (0, 1, 2), (words, err)
        told = f"{out}\n{err}"
        bad = {c for c in told if not c.isprintable() and c != "\n"}
        if bad or "\nerror: none" in told:
            found.append(f"{words[:1]} {words[2:]} shows {sorted(bad)}: {told[:2000]!r}")
        for path in folder.rglob("*.*"):
            if path.suffix in _MARKUP and path.stat().st_mtime_ns != before.get(path):
                text = path.read_text()
                bad = {c for c in text if not c.isprintable() and c != "\n"}
                if bad or any(markup in text for markup in _MARKUP[path.suffix]):
                    found.append(f"{words[:1]} {words[2:]} writes {sorted(bad)} in {path.name}")
    assert min(codes) < 2, "nothing was shown but errors"
    return found
