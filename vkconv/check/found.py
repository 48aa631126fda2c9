"""What checks of a model or a call found: problems, tables, JSON data and cases, to show, to save and to compare."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkconv.cases import Case, Outcome, stamped
from vkconv.check.model import ModelCheck
from vkconv.check.repeat import RepeatCheck
from vkconv.check.report import (
    model_data,
    model_table,
    repeat_data,
    repeat_table,
    sweep_data,
    sweep_table,
    write_page,
)
from vkconv.check.sweep import Swept
from vkconv.core import counted
from vkconv.device import Device
from vkconv.pages import render
from vkconv.route import label
from vkconv.table import Table

if TYPE_CHECKING:
    import pandas

SCHEMA = "vkconv.check/1"


def device_data(device: Device) -> dict[str, Any]:
    """A device as the head of every JSON result."""
    return {"name": device.name, "driver": device.driver, "vulkan": device.api_version, "key": device.key}


@dataclasses.dataclass
class CheckResult:
    """What was found of the model or call ``name``: of its nodes, of replays, and of other ways to compute its calls.

    It prints as its tables, in a notebook too; ``ok`` is True where nothing is wrong, and ``problems`` say what is.
    """

    name: str
    model: ModelCheck
    repeated: RepeatCheck | None = None
    swept: list[tuple[str, Swept]] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """What is wrong, the first of each kind of check with what comes after it."""
        found = [part.problem for part in (self.model, self.repeated) if part is not None]
        wrong = [(text, row) for text, row in self.swept if row.problem]
        if wrong:
            text, row = wrong[0]
            more = f"; so are {len(wrong) - 1} others" if len(wrong) > 1 else ""
            params = ", ".join(f"{name} = {value}" for name, value in row.params.items())
            found.append(f"{text} by {row.route} {params} is wrong: {row.problem}{more}")
        return [problem for problem in found if problem]

    @property
    def verdicts(self) -> list[str]:
        """The result in a line for each problem, or in one."""
        return [f"FAILED: {problem}" for problem in self.problems] or [self._all_right()]

    @property
    def tables(self) -> list[tuple[str, Table]]:
        """Titled tables: nodes, runs, and what was swept."""
        parts = [("Nodes", model_table(self.model))]
        if self.repeated:
            parts.append(("Runs", repeat_table(self.repeated)))
        if self.swept:
            parts.append(("Sweep", sweep_table(self._rows, self._texts)))
        return parts

    def data(self) -> dict[str, Any]:
        """The result as JSON data, schema `SCHEMA`: what ``vkconv check -o FILE.json`` writes."""
        data: dict[str, Any] = {**self._stamp, "target": self.name}
        data |= {"device": device_data(self.model.device), "inputs": {}, "problems": self.problems}
        data["check"] = model_data(self.model)
        if self.repeated:
            data["repeat"] = repeat_data(self.repeated)
        if self.swept:
            data["sweep"] = sweep_data(self._rows, self._texts)
        return data

    def cases(self) -> list[Case]:
        """A case for each node, replay and way to compute a call."""
        group, found = self.name, []
        for node in self.model.nodes:
            outcome: Outcome = "error" if node.refused else "FAILED" if node.cause else "ok"
            name = f"{node.node}: {node.text} by {label(node.route, node.params)}"
            found.append(Case(group, name, outcome, node.problem, 0.0, node.alone.max_rel, node.alone.allowed))
        for again in self.repeated.nodes if self.repeated else ():
            name = f"{again.node}: the same bytes in {again.runs} runs"
            found.append(Case(f"{group}, runs", name, "FAILED" if again.problem else "ok", again.problem))
        for text, row in self.swept:
            name = f"{text} by {label(row.route, row.params)}"
            outcome = "skipped" if row.refused else "FAILED" if row.problem else "ok"
            told = row.checked.max_rel, row.checked.allowed
            found.append(Case(f"{group}, sweep", name, outcome, row.refused or row.problem, 0.0, *told))
        return found

    def save(self, path: Path | str) -> None:
        """Write it as .json, .md, .html, .csv or .xml (JUnit), by the suffix; whole or not at all. Raises OSError."""
        lines = [f"{self.name} on {self.model.device.name}, driver {self.model.device.driver}"]
        told = self.verdicts, not self.ok
        write_page(Path(path), f"vkconv check: {self.name}", lines, self.tables, self.data(), self.cases(), *told)

    def to_pandas(self) -> "pandas.DataFrame":
        """The nodes as a data frame, a row each. UsageError without pandas."""
        return self.tables[0][1].to_pandas()

    def __str__(self) -> str:
        return "\n\n".join([*(str(table) for _, table in self.tables), "\n".join(self.verdicts)])

    def __repr__(self) -> str:
        return f"<CheckResult {self.name!r}: {'; '.join(self.verdicts)}>"

    def _repr_html_(self) -> str:
        return render("told.html.j2", lines=self.verdicts, tables=[table._repr_html_() for _, table in self.tables])

    @functools.cached_property
    def _stamp(self) -> dict[str, Any]:
        return stamped({"schema": SCHEMA})

    @property
    def _rows(self) -> Sequence[Swept]:
        return [row for _, row in self.swept]

    @property
    def _texts(self) -> Mapping[int, str]:
        return {i: text for i, (text, _) in enumerate(self.swept)}

    def _all_right(self) -> str:
        count = len(self.model.nodes)
        if not count:
            return "nothing was checked: all values are known when the graph is planned"
        said = f"{counted(count, 'node')} right, alone and in the run"
        said += f"; the same bytes in {self.repeated.runs} runs" if self.repeated else ""
        return said + (f"; {len(self.swept)} ways to compute its calls right" if self.swept else "")
