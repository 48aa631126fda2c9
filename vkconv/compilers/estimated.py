"""Bounds as tables and lines for people."""

from collections.abc import Sequence

from vkconv.compilers.estimate import Estimate, Result
from vkconv.route import label
from vkconv.table import Column, Table

_COLUMNS = (
    Column("route"),
    Column("at least", "us", digits=3),
    Column("limit"),
    Column("share", "%", digits=2),
    Column("launches"),
    Column("multiply-adds", "M", digits=4),
    Column("memory", "MB", digits=3),
    Column("note"),
)


def _cells(row: Estimate) -> list[object]:
    invocations = [_product(launch.groups) * _product(launch.local) for launch in row.launches]
    multiplies = sum(one.multiply_adds * n for one, n in zip(row.launches, invocations, strict=True))
    return [
        label(row.route, row.params) + "*" * row.chosen,
        row.us,
        row.limit,
        None if not row.us else 100.0 * row.limits_us.get(row.limit, 0.0) / row.us,
        len(row.launches) if row.us is not None else None,
        multiplies / 1e6 if row.us is not None else None,
        sum(one.bytes for one in row.launches) / 1e6 if row.us is not None else None,
        _note(row),
    ]


def _note(row: Estimate) -> str:
    if row.why:
        return row.why
    guesses = sum(one.guesses for one in row.launches)
    return ", ".join([*(["spills"] if row.spills else []), *([f"{guesses} branches on data"] if guesses else [])])


def _product(numbers: Sequence[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def _sorted(rows: Sequence[Estimate]) -> list[Estimate]:
    """The least bound first, those without one last."""
    return sorted(rows, key=lambda row: (row.us is None, row.us or 0.0))


def rows_table(rows: Sequence[Estimate]) -> Table:
    """All rows, calls in their order."""
    counted = any(row.count != 1 for row in rows)
    columns = [Column("call"), *([Column("count")] if counted else []), *_COLUMNS]
    calls = list(dict.fromkeys(row.call for row in rows))
    cells = [
        [row.call, *([row.count] if counted else []), *_cells(row)]
        for call in calls
        for row in _sorted([one for one in rows if one.call == call])
    ]
    return Table("", columns, cells)


def screen_tables(result: Result) -> list[Table]:
    """A table of each call's routes; of calls with one route each, one of all."""
    calls = list(dict.fromkeys(row.call for row in result.rows))
    if len(calls) == len(result.rows) > 1:
        return [rows_table(result.rows)]
    return [
        Table(f"{result.gpu.name}: {call}", _COLUMNS, [_cells(row) for row in _sorted(same)])
        for call in calls
        for same in [[row for row in result.rows if row.call == call]]
    ]


def target_table(result: Result) -> Table:
    """The numbers that the bounds were computed with."""
    cells = [(name, one["value"], one["evidence"], one["source"]) for name, one in result.target.items()]
    cells += [
        (f"pipe {pipe.name}", f"{pipe.per_cycle:g} x {pipe.of or 1} / {pipe.over:g}", pipe.evidence, pipe.source)
        for pipe in result.pipes
    ]
    return Table("", [Column("number"), Column("value"), Column("evidence"), Column("source")], cells)


def header_lines(result: Result) -> list[str]:
    """The conditions."""
    gpu, numbers = result.gpu, result.target
    options = ", ".join(f"{name} {value}" for name, value in result.options.items() if value is not None)
    told = [f"{name} {one['value']:.6g} ({one['evidence']})" for name, one in numbers.items()]
    more = f" and {len(gpu.differences) - 3} more" if len(gpu.differences) > 3 else ""
    return [
        f"{result.calls}; {options}" if options else result.calls,
        f"{gpu.name}: {gpu.title}, {gpu.driver} of Mesa {gpu.version}, planned with {gpu.planned_with}",
        *([f"{gpu.name}: NOT as tried: {'; '.join(gpu.differences[:3])}{more}"] if gpu.differences else []),
        "numbers: " + ", ".join(told),
        *([f"INCOMPLETE: {result.incomplete}"] if result.incomplete else []),
    ]


def left_out_line(result: Result) -> str:
    """What the bounds do not have in them."""
    return "a lower bound: left out are " + "; ".join(result.left_out)


def summary(result: Result) -> str:
    """All first choices in a line."""
    chosen = [row for row in result.rows if row.chosen]
    total = sum((row.us or 0.0) * row.count for row in chosen)
    failed = len(result.failed)
    return f"{result.gpu.name}: first choices of {len(chosen)} calls take at least {total:.4g} us together" + (
        f"; {failed} of them have NO bound" if failed else ""
    )
