"""What a benchmark says: one row per call and route under a header of conditions, as data and as tables."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from vkconv.core import counted
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.requirements import rules_out
from vkconv.pages import render
from vkconv.table import Column, Standing, Table, data_frame

if TYPE_CHECKING:
    import pandas

SCHEMA = "vkconv.bench/1"

Check = Literal["ok", "FAILED", "refused", "skipped", "no op", "error", "lost"]
"""``ok`` or ``FAILED`` against the reference; ``refused`` by a need of the route; ``skipped`` because it is too large,
or has nothing to run; ``no op`` that could compute it; ``error`` of the device, the driver or a shader; ``lost`` with
the worker that was to measure it."""

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Floors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the device itself was measured to do: bytes read and written by a copy, and f32 multiply-adds (2 FLOP)."""

    copy_gbps: _Positive
    fma_gflops: _Positive


class Row(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One call on one route. Times are GPU microseconds of one execution unless they say wall; None: not measured.

    ``params`` are the parameters of the route, ``given`` those that were asked for. ``us_spread_percent`` is the
    median absolute deviation over the median of ``runs`` executions, made in so many ``submissions``; those of less
    than 100 us are timed several at a time, since a timestamp takes some devices a microsecond. ``us_wall`` is
    a submission of one execution, ``us_wall_repeated`` an execution's share of a submission of many. ``gflops`` and
    ``gbps`` count the op's arithmetic and compulsory bytes; ``percent_of_floor`` is how near the median comes to what
    the slower of the two takes at the device's measured floors, and ``bound`` names it. ``max_rel`` and ``allowed``
    are relative to what the tolerance goes by: the element, or the largest one where many were summed. ``us_overhead``
    is what the tool itself took for each execution. ``chosen`` marks the route that the planner takes, ``best`` the
    fastest right one. ``device`` is the label of its board, where several were measured. ``nodes`` are the nodes of
    models that make the call, ``us_samples`` the times that median and spread are of, in the order they were taken.
    """

    call: str
    op: str
    device: str = ""
    route: str = ""
    params: dict[str, int | str] = {}
    given: dict[str, int | str] = {}
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    nodes: list[str] = []
    chosen: bool = False
    best: bool = False
    check: Check = "ok"
    why: str = ""
    us_median: _Positive | None = None
    us_min: _NotNegative | None = None
    us_p90: _NotNegative | None = None
    us_spread_percent: _NotNegative | None = None
    runs: _Count = 0
    submissions: _Count = 0
    us_wall: _NotNegative | None = None
    us_wall_repeated: _NotNegative | None = None
    gflops: _NotNegative | None = None
    gbps: _NotNegative | None = None
    percent_of_floor: _NotNegative | None = None
    bound: Literal["", "fma", "copy"] = ""
    max_abs: _NotNegative | None = None
    max_rel: _NotNegative | None = None
    allowed: _NotNegative | None = None
    dispatches: _Count = 0
    us_prepack: _NotNegative | None = None
    us_compile: _NotNegative | None = None
    us_overhead: _NotNegative | None = None
    flops: _Count = 0
    bytes: _Count = 0
    notes: list[str] = []
    us_samples: list[_NotNegative] = []

    @property
    def ok(self) -> bool:
        """Right, and measured."""
        return self.check == "ok" and self.us_median is not None

    @property
    def intensity(self) -> float | None:
        """FLOP per compulsory byte."""
        return self.flops / self.bytes if self.bytes else None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a row of another result must share to be compared with this one: board, call, route and given
        parameters."""
        return self.device, self.call, self.route, params_str(self.given)


def params_str(params: Mapping[str, int | str]) -> str:
    """Parameters as one text: ``channels=16 local=8``."""
    return " ".join(f"{name}={value}" for name, value in sorted(params.items()))


class Board(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A worker and its device, under the label that its rows have."""

    label: str
    device: str
    device_key: str
    driver: str
    vulkan: str
    quirks: list[str]
    floors: Floors | None = None


class Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The conditions of a result. ``options`` are those of the measurement, ``forced`` the routes asked for. Where
    ``boards`` were measured, they say what is else said of the one device, whose name tells how many there are."""

    device: str
    device_key: str
    driver: str
    vulkan: str
    versions: dict[str, str]
    date: str
    calls: str
    options: dict[str, str | float | int | None]
    forced: dict[str, str]
    quirks: list[str]
    floors: Floors | None = None
    boards: list[Board] = []
    expected_s: float = 0.0
    elapsed_s: float = 0.0
    incomplete: bool = False


class Result(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A header and its rows; `vkconv.bench.files` keeps it in files."""

    schema: Literal["vkconv.bench/1"] = "vkconv.bench/1"
    header: Header
    rows: list[Row]

    @property
    def table(self) -> Table:
        """The rows as a table."""
        return result_table(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a data frame: every field under its own name, unrounded. UsageError without pandas."""
        names = Row.__struct_fields__
        return data_frame([[getattr(row, name) for name in names] for row in self.rows], names)

    def save(self, path: Path | str) -> None:
        """Write it as .json, .csv, .md, .html or .xml (JUnit), by the suffix; whole or not at all. Raises OSError."""
        # By name: files are made of rows, and know them, not the other way round.
        importlib.import_module("vkconv.bench.files").write_result(self, [Path(path)])

    def __repr__(self) -> str:
        wrong = sum(row.check == "FAILED" for row in self.rows)
        return f"<Result of {len(self.rows)} rows on {self.header.device}, {wrong} wrong: {self.header.calls}>"

    def __str__(self) -> str:
        return "\n".join([*header_lines(self.header), "", str(self.table)])

    def _repr_html_(self) -> str:
        return render("told.html.j2", lines=header_lines(self.header), tables=[self.table._repr_html_()])


# The columns of every form but JSON, which has all fields under their own names.
_COLUMNS: tuple[tuple[Column, Callable[[Row], object]], ...] = (
    (Column("device"), lambda r: r.device),
    (Column("call"), lambda r: r.call),
    (Column("count"), lambda r: r.count),
    (Column("route"), lambda r: r.route + "*" * r.best),
    (Column("given"), lambda r: params_str(r.given)),
    (Column("us"), lambda r: r.us_median),
    (Column("us min"), lambda r: r.us_min),
    (Column("us p90"), lambda r: r.us_p90),
    (Column("spread %", digits=2), lambda r: r.us_spread_percent),
    (Column("us wall"), lambda r: r.us_wall),
    (Column("GFLOP/s"), lambda r: r.gflops),
    (Column("GB/s"), lambda r: r.gbps),
    (Column("floor %", digits=3), lambda r: r.percent_of_floor),
    (Column("max abs", digits=2), lambda r: r.max_abs),
    (Column("max rel", digits=2), lambda r: r.max_rel),
    (Column("allowed", digits=2), lambda r: r.allowed),
    (Column("check"), lambda r: r.check),
    (Column("disp."), lambda r: r.dispatches),
    (Column("us prepack"), lambda r: r.us_prepack),
    (Column("notes"), lambda r: "; ".join([*filter(None, [r.why]), *r.notes])),
)
# Columns where every row has this value are left out, on screen and in files alike.
_QUIET: Mapping[str, object] = {"device": "", "count": 1, "given": "", "us prepack": None, "notes": ""}


def result_table(result: Result) -> Table:
    """The rows as a table; a star marks the best route of each call that has several right ones."""
    columns = _shown(result.rows)
    cells = [[value(row) for _, value in columns] for row in result.rows]
    return Table("", [column for column, _ in columns], cells, [_standing(row) for row in result.rows])


def _standing(row: Row) -> Standing:
    if row.check == "FAILED":
        return "failed"
    if not row.ok:
        return "unmeasured"
    return "best" if row.best else ""


def screen_tables(result: Result) -> list[Table]:
    """The same for a screen, which is too narrow for calls in a column: a table for each, titled by it. Where all
    routes are measured, those that the call itself rules out are counted in the title, and left to the files."""
    by_call: dict[str, list[Row]] = {}
    for row in result.rows:
        by_call.setdefault(row.call, []).append(row)
    if result.header.forced.get("*") == "all":
        kept = {call: [row for row in rows if not _is_ruled_out(row)] for call, rows in by_call.items()}
        hidden = {call: len(rows) - len(kept[call]) for call, rows in by_call.items()}
        more = {call: f"; {counted(n, 'route')} for other calls" if n else "" for call, n in hidden.items()}
        by_call = {call + more[call]: kept[call] for call in kept}
    columns = [(column, value) for column, value in _shown(result.rows) if column.name != "call"]
    return [
        Table(call, [column for column, _ in columns], [[value(row) for _, value in columns] for row in rows])
        for call, rows in by_call.items()
    ]


def _is_ruled_out(row: Row) -> bool:
    routes = {route.name: route for route in OPS[row.op].routes} if row.check == "refused" else {}
    return row.route in routes and rules_out(parse_call(row.call, OPS), routes[row.route])


def _shown(rows: Sequence[Row]) -> list[tuple[Column, Callable[[Row], object]]]:
    return [
        (column, value)
        for column, value in _COLUMNS
        if column.name not in _QUIET or any(value(row) != _QUIET[column.name] for row in rows)
    ]


def header_lines(header: Header) -> list[str]:
    """The conditions as lines for people."""
    options = ", ".join(f"{name} {value}" for name, value in header.options.items() if value is not None)
    forced = ", ".join(f"{op}={route}" for op, route in header.forced.items())
    devices = [f"{header.device}, driver {header.driver}, Vulkan {header.vulkan}"]
    about = [f"quirks: {', '.join(header.quirks) or 'none'}"]
    if header.floors:
        about.append(f"floors: {floors_str(header.floors)}")
    if header.boards:
        devices, about = [header.device, *map(board_line, header.boards)], []
    return [
        *devices,
        f"{' '.join(f'{name} {version}' for name, version in header.versions.items())}, {header.date}",
        f"{header.calls}; {options}" + (f"; routes {forced}" if forced else ""),
        *about,
        *(["INCOMPLETE: interrupted before all rows were measured"] if header.incomplete else []),
    ]


def floors_str(floors: Floors) -> str:
    """``copy 25.1 GB/s, f32 FMA 110 GFLOP/s``."""
    return f"copy {floors.copy_gbps:.4g} GB/s, f32 FMA {floors.fma_gflops:.4g} GFLOP/s"


def board_line(board: Board) -> str:
    """A board in a line for people."""
    quirks = f"quirks: {', '.join(board.quirks) or 'none'}"
    floors = f"; floors: {floors_str(board.floors)}" if board.floors else ""
    return f"{board.label}: {board.device}, driver {board.driver}, Vulkan {board.vulkan}; {quirks}{floors}"


def mark_best(rows: Iterable[Row]) -> None:
    """Mark the fastest right row of each call that several routes compute, on each board."""
    by_call: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        row.best = False
        if row.ok:
            by_call.setdefault((row.device, row.call), []).append(row)
    for same in by_call.values():
        if len(same) > 1:
            min(same, key=lambda r: r.us_median or 0.0).best = True
