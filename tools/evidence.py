"""Writes vkconv/device/compiled/<gpu>.csv, what GPUs' own compilers made of kernels, from results of vkconv compile:

    vkconv compile --suite golden --route all --sweep tile --no-fixed-push --with adreno-740,navi31 -o compiled.json
    python tools/evidence.py compiled.json

A GPU that is in several results has all their kernels; one table is of one version of its driver. With ``--add`` as the
first word the kernels that a table has stay there too, where it is of that version: what was compiled again is anew.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vkconv.compilers.evidence import table_of
from vkconv.compilers.rows import Result
from vkconv.core import UsageError
from vkconv.device import evidence
from vkconv.device.evidence import evidence_gpus, load_evidence, write_evidence

FOLDER = Path(evidence.__file__).parent / "compiled"


def main(words: Sequence[str]) -> None:
    """Write the tables of all GPUs in some results."""
    add = words[:1] == ["--add"]
    paths = words[1:] if add else words
    results = [msgspec.json.decode(Path(path).read_bytes(), type=Result) for path in paths]
    headers = {gpu.name: gpu for result in results for gpu in result.gpus}
    for name, header in headers.items():
        versions = {gpu.version for result in results for gpu in result.gpus if gpu.name == name}
        if len(versions) > 1:
            sys.exit(f"{name}: these results are of {' and '.join(sorted(versions))}; make them with one")
        try:
            table = table_of(header, [row for result in results for row in result.rows if row.gpu == name])
        except UsageError as error:
            sys.exit(str(error))
        if add and name in evidence_gpus() and (kept := load_evidence(name)).version == header.version:
            table = dataclasses.replace(table, kernels={**kept.kernels, **table.kernels})
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.csv").write_text(write_evidence(table))
        spills = sum(compiled.spills for compiled in table.kernels.values())
        failures = sum(bool(compiled.failure) for compiled in table.kernels.values())
        print(f"{name}: {len(table.kernels)} kernels, {spills} spill, {failures} failed")


if __name__ == "__main__":
    main(sys.argv[1:])
