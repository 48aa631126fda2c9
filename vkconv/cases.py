"""Things that were judged, one by one, as files that programs read: JUnit's XML, which test servers show, and CSV."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from xml.etree import ElementTree

from vkconv.core import printable
from vkconv.table import Column, Table
from vkconv.version import VERSION

Outcome = Literal["ok", "FAILED", "error", "skipped"]
_ELEMENTS = {"FAILED": "failure", "error": "error", "skipped": "skipped"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing that was judged: ``group`` is what it belongs to, such as a model or an op on a board. ``FAILED`` is a
    wrong result, ``error`` one that did not come, ``skipped`` one that was not to come; ``why`` says more. Errors are
    relative, as tolerances are."""

    group: str
    name: str
    outcome: Outcome
    why: str = ""
    seconds: float = 0.0
    max_rel: float | None = None
    allowed: float | None = None


def stamped(data: Mapping[str, Any]) -> dict[str, Any]:
    """A result as JSON data that says who made it, and when in UTC; one that says so already stays as it is."""
    if "schema" not in data or data.get("vkconv"):
        return dict(data)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rest = {name: value for name, value in data.items() if name not in ("schema", "vkconv", "date")}
    return {"schema": data["schema"], "vkconv": VERSION, "date": date, **rest}


def to_junit(title: str, cases: Sequence[Case]) -> str:
    """Cases as JUnit's XML: a ``testsuite`` for each group, a ``testcase`` with its seconds for each of its cases.

    The names are those of the schema that Jenkins' JUnit plugin reads.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    root = ElementTree.Element("testsuites", {"name": _text(title), **_counts(cases)})
    for group, its in groups.items():
        suite = ElementTree.SubElement(root, "testsuite", {"name": _text(group), **_counts(its)})
        for case in its:
            facts = {"classname": _text(group), "name": _text(case.name), "time": f"{case.seconds:.6f}"}
            made = ElementTree.SubElement(suite, "testcase", facts)
            if case.outcome != "ok":
                ElementTree.SubElement(made, _ELEMENTS[case.outcome], {"message": _text(case.why)})
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def to_csv(cases: Sequence[Case]) -> str:
    """Cases as comma-separated values, a line for each, headings first."""
    columns = [Column(name) for name in ("group", "name", "outcome", "max_rel", "allowed", "seconds", "why")]
    rows = [(c.group, c.name, c.outcome, c.max_rel, c.allowed, c.seconds, c.why) for c in cases]
    return Table("", columns, rows).to_csv()


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    counted = {f"{name}s" if name != "skipped" else name: 0 for name in _ELEMENTS.values()}
    for case in cases:
        if name := _ELEMENTS.get(case.outcome):
            counted[f"{name}s" if name != "skipped" else name] += 1
    seconds = sum(case.seconds for case in cases)
    return {"tests": str(len(cases)), **{n: str(count) for n, count in counted.items()}, "time": f"{seconds:.6f}"}


def _text(text: str) -> str:
    """What XML can hold: no control characters, and no half of a character."""
    return printable(text).encode("utf-8", "backslashreplace").decode()
