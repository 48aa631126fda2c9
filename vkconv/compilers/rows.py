"""What a GPU's compiler made of calls: a row for each pipeline of each call, as data and as tables, and the verdict."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from vkconv.compilers.gpus import Driver, Gpu, driver_of
from vkconv.compilers.pipelines import Made, Step
from vkconv.compilers.runner import Compiled, Executable, Number
from vkconv.core import counted
from vkconv.route import label
from vkconv.table import Column, Standing, Table

SCHEMA = "vkconv.compile/1"

Verdict = Literal["ok", "spills", "aborts", "too long", "refused", "not planned"]
"""``ok``: compiled without spills; ``spills``: registers in memory; ``aborts``: the compiler's process ended;
``too long``: it was ended for the limit; ``refused``: Vulkan gave an error; ``not planned``: no such route there."""

_Measure = Annotated[float, msgspec.Meta(ge=0)] | None


class Code(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A pipeline's code, in columns that are the same for all drivers; None where the driver does not say.

    ``registers`` are of 32 bits, for each invocation; ``half_registers`` of 16; ``scalar_registers`` are shared by a
    subgroup. ``occupancy`` is what fits at once, in the driver's own unit. ``spills`` and ``fills`` go to memory
    (stores and loads, or registers: the driver's own unit), ``register_spills`` to registers of another kind.
    Instructions are static counts, by pipe: ``alu``, ``special`` functions, ``scalar``, ``moves`` and conversions,
    ``memory``, ``texture``, ``control``. Cycles and ``stalls`` are the compiler's own estimates, static too: of
    all, and of a pipe.
    """

    registers: _Measure = None
    half_registers: _Measure = None
    scalar_registers: _Measure = None
    occupancy: _Measure = None
    spills: _Measure = None
    fills: _Measure = None
    register_spills: _Measure = None
    scratch_bytes: _Measure = None
    shared_bytes: _Measure = None
    instructions: _Measure = None
    alu: _Measure = None
    special: _Measure = None
    scalar: _Measure = None
    moves: _Measure = None
    memory: _Measure = None
    texture: _Measure = None
    control: _Measure = None
    cycles: _Measure = None
    alu_cycles: _Measure = None
    fma_cycles: _Measure = None
    convert_cycles: _Measure = None
    special_cycles: _Measure = None
    memory_cycles: _Measure = None
    texture_cycles: _Measure = None
    latency_cycles: _Measure = None
    stalls: _Measure = None
    loops: _Measure = None

    @property
    def spilled(self) -> bool:
        """Whether registers went to memory."""
        return bool(self.spills or self.fills)


class Row(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One pipeline of one call on one GPU. ``chosen`` marks the route and parameters that the planner takes, ``phase``
    what is launched once (``load``) or at every inference (``run``). ``pipeline`` is the digest of what was compiled:
    the same in rows that share it; ``fixed`` where that has constants in place of push constants, so that it is of one
    shape. ``statistics`` are all that the driver has, under its own names."""

    gpu: str
    call: str
    count: int = 1
    route: str = ""
    params: dict[str, int | str] = {}
    chosen: bool = False
    phase: str = ""
    shader: str = ""
    local: tuple[int, ...] = ()
    words: tuple[int, ...] = ()
    pipeline: str = ""
    fixed: bool = False
    verdict: Verdict = "ok"
    why: str = ""
    compile_ms: _Measure = None
    subgroup_size: int = 0
    code: Code = msgspec.field(default_factory=Code)
    statistics: dict[str, Number] = {}

    @property
    def failed(self) -> bool:
        """A first choice that is not fit for the GPU."""
        return self.chosen and self.verdict not in ("ok", "not planned")


class GpuHeader(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A GPU of a result: its driver and that driver's version, the facts that calls were planned with, the unit of its
    occupancy, and how its packages differ from those that were tried."""

    name: str
    title: str
    driver: str
    version: str
    planned_with: str
    occupancy: str
    differences: list[str] = []


class Result(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What ``vkconv compile -o FILE.json`` saves."""

    schema: Literal["vkconv.compile/1"] = "vkconv.compile/1"
    vkconv: str = ""  # with the date, written when it is saved
    date: str = ""
    incomplete: str = ""  # what stopped it
    calls: str
    options: dict[str, str | float | int | bool | None]
    gpus: list[GpuHeader]
    rows: list[Row]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.failed]


def code_of(executables: Sequence[Executable], driver: Driver) -> Code:
    """Columns from the statistics of a pipeline: of its executables the sums, but the most of registers and the least
    of occupancy. A column whose statistics are not all there is None."""
    values: dict[str, float] = {}
    for column, names in driver.columns.items():
        of_each = [_sum(executable.statistics, names) for executable in executables]
        numbers = [value for value in of_each if value is not None]
        if numbers and len(numbers) == len(of_each):
            join = max if column.endswith("registers") else min if column == "occupancy" else sum
            values[column] = join(numbers)
    return Code(**{name: int(value) if value == int(value) else value for name, value in values.items()})


def statistics_of(term: str) -> tuple[int, list[str]]:
    """A term of a column, ``4 * A|B``: its factor, and the statistics of which it is the first that is there."""
    factor, star, names = term.rpartition(" * ")
    return int(factor) if star else 1, names.split("|")


def _sum(statistics: Mapping[str, Number], terms: Iterable[str]) -> float | None:
    total = 0.0
    for factor, names in map(statistics_of, terms):
        value = next((statistics[name] for name in names if name in statistics), None)
        if value is None:
            return None
        total += factor * value
    return total


def verdict_of(compiled: Compiled, code: Code) -> Verdict:
    """What to think of a pipeline."""
    match compiled.outcome:
        case "compiled":
            return "spills" if code.spilled else "ok"
        case "refused":
            return "refused"
        case "timeout":
            return "too long"
        case _:
            return "aborts"


def make_rows(gpu: Gpu, made: Made, compiled: Mapping[Any, Compiled]) -> list[Row]:
    """The rows of a call: one for each of its pipelines, or one that says why there are none."""
    asked = made.asked
    about: dict[str, Any] = {
        "gpu": gpu.name,
        "call": asked.text,
        "count": asked.count,
        "route": made.route,
        "params": dict(made.params),
        "chosen": made.chosen,
    }
    if made.why:
        return [Row(**about, verdict="not planned", why=made.why)]
    return [_row(about, step, compiled[step.pipeline], driver_of(gpu)) for step in made.steps]


def _row(about: Mapping[str, Any], step: Step, compiled: Compiled, driver: Driver) -> Row:
    code = code_of(compiled.executables, driver)
    verdict = verdict_of(compiled, code)
    statistics: dict[str, Number] = {}
    for executable in compiled.executables:
        before = f"{executable.name}: " if len(compiled.executables) > 1 else ""
        statistics |= {f"{before}{name}": value for name, value in executable.statistics.items()}
    why = compiled.why
    if verdict == "spills":
        why = f"{code.spills or 0:g} spills, {code.fills or 0:g} fills"
    return Row(
        **about,
        phase=step.phase,
        shader=step.pipeline.shader.key,
        local=step.pipeline.local,
        words=step.pipeline.words,
        pipeline=step.pipeline.digest[:12],
        fixed=step.pipeline.fixed is not None,
        verdict=verdict,
        why=why,
        compile_ms=compiled.compile_ms,
        subgroup_size=max((e.subgroup_size for e in compiled.executables), default=0),
        code=code,
        statistics=statistics,
    )


_COLUMNS = Code.__struct_fields__
_SHORT = {"scratch_bytes": "scratch [B]", "shared_bytes": "shared [B]"}
# Columns of little use on a screen, which files have.
_FILES_ONLY = frozenset({"call", "moves", "control", "loops", "scratch [B]", "shared [B]", "scalar registers"})


def rows_table(rows: Sequence[Row]) -> Table:
    """The rows as a table, without columns that no row has. A star marks the route that the planner takes."""
    names = [name for name in _COLUMNS if any(getattr(row.code, name) is not None for row in rows)]
    several = len({row.gpu for row in rows}) > 1
    columns = [*([Column("gpu")] if several else []), Column("call"), Column("count"), Column("route")]
    columns += [Column("shader"), Column("verdict"), Column("ms", digits=3)]
    columns += [Column(_SHORT.get(name, name.replace("_", " "))) for name in names]
    cells = [
        [
            *([row.gpu] if several else []),
            row.call,
            row.count,
            label(row.route, row.params) + "*" * row.chosen,
            row.shader,
            row.verdict,
            row.compile_ms,
            *(getattr(row.code, name) for name in names),
        ]
        for row in rows
    ]
    kept = [i for i, column in enumerate(columns) if column.name != "count" or any(row.count != 1 for row in rows)]
    standings = [_standing(row) for row in rows]
    return Table("", [columns[i] for i in kept], [[row[i] for i in kept] for row in cells], standings)


def _standing(row: Row) -> Standing:
    return "" if row.verdict == "ok" else "failed" if row.chosen else "unmeasured"


def screen_tables(title: str, rows: Sequence[Row]) -> list[Table]:
    """The same for a screen, which is too narrow for calls in a column: a table for each, titled by it, without the
    columns of less use."""
    by_call: dict[str, list[Row]] = {}
    for row in rows:
        by_call.setdefault(row.call, []).append(row)
    tables = []
    for call, same in by_call.items():
        table = rows_table(same)
        routes = [row["route"] for row in table.rows]
        shown = [i for i, column in enumerate(table.columns) if column.name not in _FILES_ONLY]
        cells = []
        for number, line in enumerate(table.cells):
            again = number > 0 and routes[number] == routes[number - 1]  # a route stands at the first of its pipelines
            cells.append(["" if again and table.columns[i].name == "route" else line[i] for i in shown])
        tables.append(Table(f"{title}: {call}", [table.columns[i] for i in shown], cells))
    return tables


def failures_table(rows: Sequence[Row]) -> Table:
    """The rows that are not ok, with the reason; those of first choices before others, each pipeline once."""
    found: dict[tuple[str, str, bool, str], Row] = {}
    for row in rows:
        if row.verdict != "ok" and (row.verdict != "not planned" or row.chosen):
            found.setdefault((row.gpu, row.pipeline or row.call, row.chosen, row.verdict), row)
    sorted_rows = sorted(found.values(), key=lambda row: (not row.chosen, row.gpu))
    names = ("gpu", "verdict", "call", "route", "shader", "why")
    cells = [
        (row.gpu, row.verdict, row.call, label(row.route, row.params) + "*" * row.chosen, row.shader, row.why)
        for row in sorted_rows
    ]
    return Table("", [Column(name) for name in names], cells, [_standing(row) for row in sorted_rows])


def summary(header: GpuHeader, rows: Sequence[Row]) -> str:
    """A GPU's rows in a line."""
    mine = {row.pipeline: row for row in rows if row.gpu == header.name and row.pipeline}
    calls = len({row.call for row in rows if row.gpu == header.name})
    counts = collections.Counter(row.verdict for row in mine.values())
    slowest = max((row.compile_ms or 0.0 for row in mine.values()), default=0.0)
    chosen = sum(row.failed for row in rows if row.gpu == header.name)
    others = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    made = f"{counted(len(mine), 'pipeline')} of {counted(calls, 'call')}"
    return f"{header.name}: {made}, {others or 'none'}, at most {slowest / 1e3:.2g} s" + (
        f"; {chosen} of first choices FAIL" if chosen else ""
    )


def header_lines(result: Result) -> list[str]:
    """The conditions as lines for people."""
    options = ", ".join(f"{name} {value}" for name, value in result.options.items() if value is not None)
    lines = [f"{result.calls}; {options}" if options else result.calls]
    for gpu in result.gpus:
        lines.append(
            f"{gpu.name}: {gpu.title}, {gpu.driver} of Mesa {gpu.version}, planned with {gpu.planned_with}; "
            f"occupancy is {gpu.occupancy}"
        )
        more = f" and {len(gpu.differences) - 3} more" if len(gpu.differences) > 3 else ""
        lines += [f"{gpu.name}: NOT as tried: {'; '.join(gpu.differences[:3])}{more}"] if gpu.differences else []
    return [*lines, *([f"INCOMPLETE: {result.incomplete}"] if result.incomplete else [])]
