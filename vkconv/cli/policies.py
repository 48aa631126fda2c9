"""``vkconv policies``: what rules and cost models take for devices, and what each row rests on."""

from typing import Annotated, Any

import typer

from vkconv.cli.models import find_device
from vkconv.cli.options import JsonOption
from vkconv.cli.output import show, show_json
from vkconv.device import Device
from vkconv.policy import Row, row_of, table, tables
from vkconv.table import Column, Table


def policies(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="One policy, such as conv2d.im2col: its rows, with measurements."),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="FILE|NAME|INDEX",
            help="Show the row that this device gets of every policy: a device file, the name of a shipped one, an "
            "index or part of a name.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the policies, the rows of one, or those that one device gets: values, what they rest on, source and date."""
    names = [name] if name else list(tables())
    facts = find_device(device) if device else None
    if as_json:
        show_json({"schema": "vkconv.policies/1", "policies": {n: _data(n, facts) for n in names}})
        return
    if facts is not None:
        columns = [Column(c) for c in ("policy", "value", "row of", "rests on", "source", "date")]
        show(Table(facts.name, columns, [(n, *_cells(n, row_of(n, facts))) for n in names]))
    elif name:
        columns = [Column(c) for c in ("value", "row of", "rests on", "source", "date")]
        rows_with = [row for row in table(name).rows if row.table]
        measured = [line for row in rows_with for line in ("", f"{_of(name, row)}:", *row.table.splitlines())]
        show(table(name).text, Table("", columns, [_cells(name, row) for row in table(name).rows]), *measured[1:])
    else:
        rows = [(n, table(n).text, len(table(n).rows)) for n in names]
        show(Table("", [Column(c) for c in ("policy", "decides", "rows")], rows))


def _of(name: str, row: Row) -> str:
    """Which devices get a row."""
    return ", ".join(row.when.values()) or ("every other device" if len(table(name).rows) > 1 else "every device")


def _cells(name: str, row: Row) -> tuple[str, ...]:
    from vkconv.plan.read_values import value_text

    shown = row.fit or row.shown_by
    basis = f"{row.basis}: {shown}" if shown else row.basis
    return value_text(row.value), _of(name, row), basis, row.source, str(row.date)


def _data(name: str, device: Device | None) -> dict[str, Any]:
    rows = table(name).rows if device is None else (row_of(name, device),)
    return {"text": table(name).text, "rows": [_row_data(row) for row in rows]}


def _row_data(row: Row) -> dict[str, Any]:
    said = {
        "evidence": row.evidence,
        "basis": row.basis,
        "source": row.source,
        "date": str(row.date),
        "fit": row.fit,
        "shown_by": row.shown_by,
        "table": row.table,
    }
    return {"when": dict(row.when), "value": _finite(row.value), **said}


def _finite(value: Any) -> Any:
    """JSON has no infinity: it stands as text."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return "inf" if value == float("inf") else value
