"""What a GPU's own compiler made of a kernel with some tile, as far as the table of that GPU or of the nearest one says
(vkconv/device/compiled). It goes before estimates of registers."""

import dataclasses
import functools
from collections.abc import Mapping

from vkconv.call import Call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.device.evidence import Compiled, load_evidence
from vkconv.kernel import Kernel
from vkconv.policy import Policy

# Defines of variants that need far more registers than the others, or fewer: their rows count for them alone.
FORMS = frozenset({"DOT", "EXPAND", "MASK", "PROLOGUE", "REDUCTION_SUBGROUP"})

NO_TABLE = "none"
TABLE = Policy("kernels.compiled", str)


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    element: str
    form: str
    constants: Mapping[str, str]
    compiled: Compiled


@functools.cache
def _rows(gpu: str) -> Mapping[str, tuple[_Row, ...]]:
    """The rows of a table by kernel."""
    found: dict[str, list[_Row]] = {}
    for (shader, _, text), compiled in load_evidence(gpu).kernels.items():
        kernel, element, *defines = shader.split(".")
        constants = dict(word.split("=") for word in text.split())
        form = next((name for name in defines if name in FORMS), "")
        found.setdefault(kernel, []).append(_Row(element, form, constants, compiled))
    return {kernel: tuple(rows) for kernel, rows in found.items()}


@functools.lru_cache(maxsize=4096)
def _fits(gpu: str, kernel: Kernel, words: tuple[tuple[str, int], ...], element: str, form: str) -> bool | None:
    defaults = {field.name: field.default_value for field in kernel.constants}
    asked = [(name, value) for name, value in words if name in defaults]
    rows = [
        row
        for row in _rows(gpu).get(kernel.name, ())
        if row.form in (form, "")
        and all(float(row.constants.get(name, defaults[name])) == value for name, value in asked)
    ]
    rows = [row for row in rows if row.form == form] or rows
    rows = [row for row in rows if row.element == element] or rows
    return not any(row.compiled.spills or row.compiled.failure for row in rows) if rows else None


def fits(kernel: Kernel, constants: Mapping[str, int], element: str, device: Device, form: str = "") -> bool | None:
    """Whether the compiler kept a kernel with these specialization constants in registers: False where any of its rows
    of this element type spills or failed, whatever the other constants. Rows of other types count where there are none
    of this one; ``element`` "" is every type. ``form`` is one of `FORMS`: where no row is of it, the others count. None
    where the table has no such row, or there is no table."""
    gpu = TABLE.of(device)
    return None if gpu == NO_TABLE else _fits(gpu, kernel, tuple(sorted(constants.items())), element, form)


def element_of(call: Call) -> str:
    """The type of a call's floats, as tables name it."""
    return call.half or DType.F32
