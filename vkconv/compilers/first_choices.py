"""What the planner takes first, through GPUs' compilers: the calls that it is held to, a table of each GPU, and what is
worse than in an earlier one."""

import contextlib
import csv
import io
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from vkconv.compilers.rows import GpuHeader, Result, Row, Verdict
from vkconv.core import DeviceError, GraphError, UsageError
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import label

SCHEMA = "vkconv.first_choices/1"
_GOLDEN = Path(__file__).parents[1] / "bench" / "suites" / "golden.txt"
_NETWORKS = (("ch_PP-OCRv4_rec_infer.onnx", "x=1x3x48x320"), ("ch_PP-OCRv4_det_infer.onnx", "x=1x3x640x640"))
_SEVERITY: Mapping[Verdict, int] = {
    **{"ok": 0, "not planned": 1, "spills": 2},
    **{"too long": 3, "refused": 4, "aborts": 5},
}


class Choice(msgspec.Struct, frozen=True):
    """The first choice for a call: its route with parameters, the worst verdict of its pipelines, their spills and
    fills together, most registers and least occupancy; None where the driver does not say."""

    route: str
    verdict: Verdict
    spills: float | None = None
    fills: float | None = None
    registers: float | None = None
    occupancy: float | None = None

    @property
    def badness(self) -> tuple[int, float]:
        """What counts as worse: the verdict, then registers in memory."""
        return _SEVERITY[self.verdict], (self.spills or 0) + (self.fills or 0)

    def __str__(self) -> str:
        spilled = f", {self.spills or 0:g} spills, {self.fills or 0:g} fills" if self.verdict == "spills" else ""
        return f"{self.route}: {self.verdict}{spilled}"


class Choices(msgspec.Struct, frozen=True):
    """The first choices of a GPU by call, with its driver and that driver's version, and the facts that calls were
    planned with."""

    gpu: str
    driver: str
    version: str
    planned_with: str
    choices: dict[str, Choice]


def workloads() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The golden calls as they are and in f16, the layers of ResNet-50 and MobileNet and two OCR networks, in f32 and
    f16: each with a name, and as words for ``vkconv compile``. UsageError where the networks are not installed."""
    yield "golden", ("--suite", "golden")
    yield "golden f16", tuple(_golden_f16())
    for dtype in ("f32", "f16"):
        yield f"layers {dtype}", ("--suite", "resnet50", "--suite", "mobilenet", "--dtype", dtype)
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("rapidocr-onnxruntime, which has the OCR networks, is not installed: make setup")
    for name, shape in _NETWORKS:
        path = Path(spec.submodule_search_locations[0]) / "models" / name
        for dtype in ("f32", "f16"):
            yield f"{name.split('_')[2]} {dtype}", (str(path), "--shape", shape, "--dtype", dtype)


def _golden_f16() -> Iterator[str]:
    """The golden calls that name no type, in f16; without those that cannot be, of integers."""
    for line in _GOLDEN.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#") and "dtype=" not in line:
            with contextlib.suppress(GraphError):
                parse_call(text := f"{line},dtype=f16", OPS)
                yield text


def compile_words(words: Sequence[str], gpus: Sequence[str], max_seconds: float) -> Result:
    """What ``vkconv compile`` makes of some words for GPUs, each pipeline in at most ``max_seconds``. What was measured
    on this machine chooses nothing. DeviceError where it ends without a result."""
    command = [sys.executable, "-P", "-m", "vkconv", "compile", *words, "--with", ",".join(gpus), "--json"]
    command += ["--max-seconds", f"{max_seconds:g}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "VKCONV_MEASURED": "off"})
    if not done.stdout:
        raise DeviceError(f"vkconv compile {' '.join(words)} ended with exit code {done.returncode}; it said why")
    return msgspec.json.decode(done.stdout, type=Result)


def choices_of(header: GpuHeader, rows: Iterable[Row]) -> Choices:
    """The table of a GPU, of those of its rows that are of first choices."""
    by_call: dict[str, list[Row]] = {}
    for row in rows:
        if row.chosen and row.gpu == header.name:
            by_call.setdefault(row.call, []).append(row)
    found = {call: _choice(same) for call, same in sorted(by_call.items())}
    return Choices(header.name, header.driver, header.version, header.planned_with, found)


def _choice(rows: Sequence[Row]) -> Choice:
    def told(name: str) -> list[float]:
        values = (getattr(row.code, name) for row in rows)
        return [value for value in values if value is not None]

    return Choice(
        label(rows[0].route, rows[0].params),
        max((row.verdict for row in rows), key=_SEVERITY.__getitem__),
        sum(told("spills")) if told("spills") else None,
        sum(told("fills")) if told("fills") else None,
        max(told("registers"), default=None),
        min(told("occupancy"), default=None),
    )


def worse(kept: Choices, found: Choices) -> list[str]:
    """What got worse since a table: a line for each call. Without an earlier choice, one that is not fit is worse."""
    lines = []
    for call, now in found.choices.items():
        before = kept.choices.get(call)
        if now.badness > (before.badness if before else (_SEVERITY["not planned"], 0)):
            lines.append(f"{found.gpu}: {call}\n    {before or 'not there'}\n    now {now}")
    return lines


def summary(table: Choices) -> str:
    """A table in a line."""
    counts = {verdict: sum(one.verdict == verdict for one in table.choices.values()) for verdict in _SEVERITY}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{table.gpu}: {len(table.choices)} calls, {said}; {table.driver}, Mesa {table.version}"


_FIELDS = Choice.__struct_fields__


def write_choices(table: Choices) -> str:
    """The text of a table; `read_choices` reads it back."""
    text = io.StringIO()
    text.write("# " + "; ".join((SCHEMA, table.gpu, table.driver, table.version, table.planned_with)) + "\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("call", *_FIELDS))
    for call, choice in sorted(table.choices.items()):
        values = (getattr(choice, name) for name in _FIELDS)
        writer.writerow((call, *(f"{v:.10g}" if isinstance(v, float | int) else v or "" for v in values)))
    return text.getvalue()


def read_choices(text: str) -> Choices:
    """A table from its text. UsageError for one of another schema."""
    first, *lines = text.splitlines()
    schema, *about = first.removeprefix("# ").split("; ")
    if schema != SCHEMA or len(about) != 4:
        raise UsageError(f"this table of first choices is {schema!r}, and vkconv reads {SCHEMA}")
    choices = {}
    for row in csv.DictReader(lines):
        call = row.pop("call")
        choices[call] = msgspec.convert({k: v for k, v in row.items() if v}, type=Choice, strict=False)
    gpu, driver, version, planned_with = about
    return Choices(gpu, driver, version, planned_with, choices)
