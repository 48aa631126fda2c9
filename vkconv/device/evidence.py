"""What a GPU's own compiler made of kernels, as committed tables: ``compiled/<gpu>.csv``, by tools/evidence.py.

A row is a kernel as it was specialized: the shader's variant, the workgroup's size and the constants that are not the
kernel's defaults, as text; then the columns of ``vkconv compile``, empty where the driver does not say. Numbers are of
the compiler's version that the table names, and of no other.
"""

import csv
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

from vkconv.core import UsageError, did_you_mean

SCHEMA = "vkconv.evidence/1"
KEY = ("shader", "local", "constants")
MEASURES = (
    *("registers", "half_registers", "occupancy", "spills", "fills", "scratch_bytes", "instructions", "cycles"),
    *("stalls", "alu", "memory", "alu_cycles", "memory_cycles"),
)
_DATA = Path(__file__).parent / "compiled"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel as a compiler made it. ``uses`` are the ways to it: ``op:route:tile`` of a route's one tile,
    ``op:route`` of several or of a route without tiles. ``failure`` is the verdict where there is no code."""

    measures: Mapping[str, float]
    uses: tuple[str, ...]
    failure: str = ""

    @property
    def spills(self) -> bool:
        """Whether registers went to memory."""
        return bool(self.measures.get("spills") or self.measures.get("fills"))


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The table of one GPU: its driver and that driver's version, the unit of its occupancy, and its kernels by shader,
    workgroup and constants."""

    gpu: str
    driver: str
    version: str
    occupancy: str
    kernels: Mapping[tuple[str, str, str], Compiled]


def evidence_gpus() -> tuple[str, ...]:
    """The GPUs that there are tables of."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.csv")))


@functools.lru_cache(maxsize=64)
def load_evidence(gpu: str) -> Evidence:
    """The table of a GPU. UsageError where there is none."""
    known = evidence_gpus()
    if gpu not in known:
        raise UsageError(f"there is no evidence of a GPU {gpu!r}{did_you_mean(gpu, known)}; {', '.join(known)}")
    return read_evidence((_DATA / f"{gpu}.csv").read_text(encoding="utf-8"))


def read_evidence(text: str) -> Evidence:
    """A table from its text."""
    lines = text.splitlines()
    schema, gpu, driver, version, occupancy = lines[0].removeprefix("# ").split("; ")
    if schema != SCHEMA:
        raise UsageError(f"this evidence is {schema}, and vkconv reads {SCHEMA}")
    kernels = {}
    for row in csv.DictReader(lines[1:]):
        measures = {name: float(row[name]) for name in MEASURES if row[name]}
        key = row["shader"], row["local"], row["constants"]
        kernels[key] = Compiled(measures, tuple(row["uses"].split()), row["failure"])
    return Evidence(gpu, driver, version, occupancy, kernels)


def write_evidence(evidence: Evidence) -> str:
    """The text of a table; `read_evidence` reads it back."""
    header = "; ".join((SCHEMA, evidence.gpu, evidence.driver, evidence.version, evidence.occupancy))
    lines = [f"# {header}", ",".join((*KEY, *MEASURES, "failure", "uses"))]
    for key, compiled in sorted(evidence.kernels.items()):
        numbers = (f"{compiled.measures[name]:.10g}" if name in compiled.measures else "" for name in MEASURES)
        lines.append(",".join((*key, *numbers, compiled.failure, " ".join(sorted(compiled.uses)))))
    return "\n".join(lines) + "\n"
