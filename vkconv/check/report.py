"""Results of checks as tables for people, as JSON data and as pages to attach to a bug report."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vkconv.cases import Case, stamped, to_csv, to_junit
from vkconv.check.calls import Checked
from vkconv.check.model import ModelCheck, NodeCheck
from vkconv.check.page import address, page
from vkconv.check.repeat import RepeatCheck, Repeated
from vkconv.check.sweep import Swept
from vkconv.core import UsageError, atomic_write, did_you_mean, is_stream
from vkconv.route import label
from vkconv.table import Column, Standing, Table, markdown

SUFFIXES = (".json", ".md", ".html")
CASE_SUFFIXES: Mapping[str, Callable[[str, Sequence[Case]], str]] = {
    ".csv": lambda _, cases: to_csv(cases),
    ".xml": to_junit,
}
"""The formats of results that are made of cases."""


def model_table(checked: ModelCheck) -> Table:
    """One row per node: alone, in the run, accumulated."""
    cells = [
        (
            node.node,
            node.call.op,
            label(node.route, node.params),
            _verdict(node.alone),
            node.alone.max_rel,
            node.alone.allowed,
            _verdict(node.run),
            node.run.max_rel,
            node.accumulated.max_abs,
            node.accumulated.cosine,
            node.run.nan or None,
            node.run.inf or None,
            _where(node),
        )
        for node in checked.nodes
    ]
    columns = [Column(name) for name in ("node", "op", "route", "alone")]
    columns += [Column("max rel", digits=2), Column("allowed", digits=2), Column("in the run")]
    columns += [Column("max rel there", digits=2), Column("accumulated abs", digits=2), Column("cosine", digits=6)]
    standings = [_standing(bool(node.cause)) for node in checked.nodes]
    return Table("", [*columns, Column("NaN"), Column("Inf"), Column("where")], cells, standings)


def _standing(wrong: bool, refused: bool = False) -> Standing:
    return "failed" if wrong else "unmeasured" if refused else ""


def model_data(checked: ModelCheck) -> dict[str, Any]:
    """A model's check as JSON data."""
    return {
        "graph": checked.graph,
        "device": checked.device.name,
        "problem": checked.problem,
        "complete": checked.complete,
        "shared": list(checked.shared),
        "nodes": [
            {
                "node": node.node,
                "call": node.text,
                "route": node.route,
                "params": dict(node.params),
                "cause": node.cause,
                "problem": node.problem,
                "alone": _data(node.alone),
                "run": _data(node.run),
                "accumulated": _data(node.accumulated),
            }
            for node in checked.nodes
        ],
    }


def repeat_table(repeated: RepeatCheck) -> Table:
    """One row per node: how many distinct outputs, where they differ."""
    cells = [
        (
            node.node,
            node.call.op,
            label(node.route, node.params),
            f"{node.distinct}/{node.runs}",
            _blame(node),
            node.first_run,
            node.elements or None,
            node.pattern,
        )
        for node in repeated.nodes
    ]
    names = ("node", "op", "route", "distinct", "verdict", "first in run", "elements", "where")
    return Table("", [Column(name) for name in names], cells, [_standing(bool(n.problem)) for n in repeated.nodes])


def repeat_data(repeated: RepeatCheck) -> dict[str, Any]:
    """Replays as JSON data."""
    return {
        "runs": repeated.runs,
        "problem": repeated.problem,
        "shared": list(repeated.shared),
        "nodes": [
            {
                "node": node.node,
                "call": node.text,
                "route": node.route,
                "params": dict(node.params),
                "distinct": node.distinct,
                "first_run": node.first_run,
                "elements": node.elements,
                "pattern": node.pattern,
                "origin": node.origin,
                "declared": node.declared,
                "problem": node.problem,
            }
            for node in repeated.nodes
        ],
    }


def sweep_table(rows: Sequence[Swept], texts: Mapping[int, str]) -> Table:
    """One row per way to compute a call; ``texts`` are the call strings by row."""
    cells = [
        (
            texts[i],
            label(row.route, row.params),
            "over a limit" if row.refused else _verdict(row.checked),
            row.checked.max_rel,
            row.checked.allowed,
            "" if row.refused else f"{row.distinct}/{row.runs}",
            row.refused or row.problem or ("its last bits may change" if row.declared and row.distinct > 1 else ""),
        )
        for i, row in enumerate(rows)
    ]
    columns = [Column("call"), Column("route"), Column("check"), Column("max rel", digits=2)]
    standings = [_standing(bool(row.problem), bool(row.refused)) for row in rows]
    return Table("", [*columns, Column("allowed", digits=2), Column("distinct"), Column("what")], cells, standings)


def sweep_data(rows: Sequence[Swept], texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """A sweep as JSON data."""
    return [
        {
            "call": texts[i],
            "route": row.route,
            "params": dict(row.params),
            "check": _data(row.checked),
            "distinct": row.distinct,
            "runs": row.runs,
            "declared": row.declared,
            "refused": row.refused,
            "problem": row.problem,
        }
        for i, row in enumerate(rows)
    ]


# ---- pages


def check_targets(paths: Sequence[Path], known: Sequence[str] = SUFFIXES) -> None:
    """UsageError for a file whose suffix names none of the known formats, or that is there twice. Streams without one
    get JSON."""
    for i, path in enumerate(paths):
        if path.suffix not in known and not is_stream(path):
            hint = did_you_mean(path.suffix, known)
            raise UsageError(f"-o {path}: no format for {path.suffix!r}{hint}; {', '.join(known)}")
        if path in paths[:i]:
            raise UsageError(f"-o {path}: the file is there twice")


def write_page(
    path: Path,
    title: str,
    lines: Sequence[str],
    parts: Sequence[tuple[str, Table]],
    data: Mapping[str, Any],
    cases: Sequence[Case] = (),
    verdicts: Sequence[str] = (),
    failed: bool = False,
    commands: Sequence[str] = (),
    links: Mapping[str, Path] = MappingProxyType({}),
) -> None:
    """A result as a file: its data as JSON, its cases as JUnit's XML or CSV, or lines, verdicts, commands and titled
    tables as Markdown or as one HTML page that asks for nothing else. ``links`` are what the page links to by the first
    cell of a row. Whole or not at all; raises OSError."""
    if path.suffix in CASE_SUFFIXES and cases:
        text = CASE_SUFFIXES[path.suffix](title, cases)
    elif path.suffix == ".json" or path.suffix not in SUFFIXES:
        text = json.dumps(stamped(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    elif path.suffix == ".md":
        sections = [f"## {markdown(name)}\n\n{table.to_markdown()}" for name, table in parts if table.cells]
        told = "\n".join(f"- {markdown(line)}" for line in (*lines, *verdicts, *commands))
        text = "\n\n".join([f"# {markdown(title)}", told, *sections]) + "\n"
    else:
        addresses = {name: address(target, path) for name, target in links.items()}
        schema = str(data.get("schema", ""))
        text = page(title, lines, verdicts, failed, commands, parts, cases, addresses, schema)
    with atomic_write(path) as file:
        file.write(text.encode())


def _verdict(checked: Checked) -> str:
    return "ok" if checked.ok else "FAILED"


def _where(node: NodeCheck) -> str:
    """Where the worst element is, and the pattern of wrong ones."""
    if node.refused:
        return node.refused
    wrong = next((c for c in (node.alone, node.run) if not c.ok), None)
    shown = wrong or node.accumulated
    worst = f"{shown.output}{list(shown.worst)}" if shown.worst is not None else ""
    # How far errors that came in with the inputs may spread has no limit: no pattern of what is beyond one.
    return f"{worst}: {wrong.pattern}" if wrong and wrong.pattern else worst


def _blame(node: Repeated) -> str:
    if node.distinct == 1:
        return "ok"
    if node.declared:
        return "its route says so"
    return "FAILED" if node.origin else "its inputs changed"


def _data(checked: Checked) -> dict[str, Any]:
    return {
        "ok": checked.ok,
        "problem": checked.problem,
        "output": checked.output,
        "max_abs": checked.max_abs,
        "max_rel": checked.max_rel,
        "allowed": checked.allowed,
        "mean_abs": checked.mean_abs,
        "cosine": checked.cosine,
        "worst": None if checked.worst is None else list(checked.worst),
        "wrong": checked.wrong,
        "pattern": checked.pattern,
        "nan": checked.nan,
        "inf": checked.inf,
    }
