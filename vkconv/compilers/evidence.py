"""Rows of ``vkconv compile`` as the tables that vkconv keeps of GPUs' compilers (vkconv/device/evidence.py)."""

import functools
import math
import struct
from collections.abc import Iterable, Mapping

from vkconv.compilers.integers import signed
from vkconv.compilers.rows import GpuHeader, Row
from vkconv.core import UsageError
from vkconv.device.evidence import MEASURES, Compiled, Evidence
from vkconv.kernel import Field, Shader
from vkconv.ops import OPS


@functools.cache
def shaders() -> Mapping[str, Shader]:
    """Every variant that a route may use, by key, those that are not shipped too."""
    return {shader.key: shader for op in OPS.values() for route in op.routes for shader in route.forms}


def table_of(header: GpuHeader, rows: Iterable[Row]) -> Evidence:
    """The table of a GPU's rows, each kernel once. UsageError where a row's pipeline is of one shape: it
    says nothing of others with the same specialization."""
    kernels: dict[tuple[str, str, str], Compiled] = {}
    tiles: dict[tuple[str, str, str], dict[str, set[str]]] = {}  # of a kernel, by op and route
    for row in rows:
        if not row.pipeline:
            continue
        if row.fixed:
            raise UsageError(
                f"{header.name}: {row.call}, {row.shader} was compiled with constants in place of push constants; a "
                "table is of kernels that push them: vkconv compile --no-fixed-push"
            )
        key = row.shader, "x".join(map(str, row.local)), constants_of(shaders()[row.shader], row.words[3:])
        way = f"{row.call.partition(':')[0]}:{row.route}"
        tiles.setdefault(key, {}).setdefault(way, set()).add(str(row.params.get("tile", "")))
        numbers = ((name, getattr(row.code, name)) for name in MEASURES)
        measures = {name: float(value) for name, value in numbers if value is not None}
        failure = "" if row.verdict in ("ok", "spills") else row.verdict
        uses = (f"{way}:{tile}".rstrip(":") for way, of_way in tiles[key].items() for tile in one_of(of_way))
        kernels[key] = Compiled(measures, tuple(sorted(uses)), failure)
    return Evidence(header.name, header.driver, header.version, header.occupancy, kernels)


def one_of(tiles: set[str]) -> set[str]:
    """The tile, where there is one; nothing where a kernel does not hang on it."""
    return tiles if len(tiles) == 1 else {""}


def constants_of(shader: Shader, words: Iterable[int]) -> str:
    """Specialization constants that are not the kernel's defaults, as ``NAME=value``."""
    said = []
    for field, word in zip(shader.interface.constants, words, strict=True):
        value = _value(field, word)
        if value != field.default_value:
            said.append(f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={value}")
    return " ".join(said)


def _value(field: Field, word: int) -> float | int:
    if field.type == "float":
        (value,) = struct.unpack("<f", struct.pack("<I", word))
        return float(value) if math.isfinite(value) else 0.0
    return signed(word) if field.type == "int" else word
