"""Policies: what a rule or a cost model takes for a device, as rows of data files with where each row is from.

A policy has a name, ``conv2d.im2col`` for the table ``im2col`` of ``policies/conv2d.toml``, and a type that its rows
are read as. A device gets the first row that says nothing else of it; the last row is for every device. What can be
computed from a number of the target (`vkconv.device.target`) is no policy.
"""

import functools
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from vkconv.core import UsageError, did_you_mean
from vkconv.device import Device, Target, target_of
from vkconv.device.numbers import DeviceClass, Evidence
from vkconv.device.reads import seen, watch_now

_DATA = Path(__file__).parent / "policies"
_Text = Annotated[str, msgspec.Meta(min_length=1)]
T = TypeVar("T")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What devices of a class, vendor, generation or name (of a device file) get, and why.

    ``source`` says in a line where the values are from, ``table`` has the measurements, ``fit`` the id of the fit of
    ``tools/fit`` that made them: what was measured and has none was judged by hand (`basis`). What is ``observed`` is a
    fact and no time, and ``shown_by`` a command that shows it.
    """

    value: Any
    evidence: Evidence | Literal["observed"]
    source: _Text
    date: date
    device_class: DeviceClass | None = None
    vendor: str | None = None
    generation: str | None = None
    device: str | None = None
    table: str = ""
    fit: str = ""
    shown_by: str = ""

    @property
    def basis(self) -> str:
        """What its values rest on: for times a fit of them that a test repeats, or somebody's judgement of those in its
        table, or of ones that are not on file, which may be ``upheld`` by others (`tools/fit/upheld.py`); else its
        evidence."""
        if self.evidence != "measured":
            return self.evidence
        upheld = self.fit.startswith("upheld/")
        if self.fit and not upheld:
            return "fitted"
        return f"judged by {'its table' if self.table else 'times not on file'}{', upheld' if upheld else ''}"

    @property
    def when(self) -> Mapping[str, str]:
        """What it asks of a target, by name; empty for the row of every device."""
        asks = {name: getattr(self, name) for name in ("device", "generation", "vendor", "device_class")}
        return {name: value for name, value in asks.items() if value is not None}

    def suits(self, target: Target) -> bool:
        """Whether a device of that target gets it, where no row before it does."""
        has = {"device": target.name} | {n: getattr(target, n) for n in ("generation", "vendor", "device_class")}
        return all(has[name] == value for name, value in self.when.items())


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of one policy, and what it decides."""

    text: _Text
    rows: Annotated[tuple[Row, ...], msgspec.Meta(min_length=1)]


@functools.cache
def tables() -> Mapping[str, Table]:
    """Every policy by its name, as the data files have it."""
    found = dict[str, Table]()
    for path in sorted(_DATA.glob("*.toml")):
        with path.open("rb") as file:
            data = msgspec.convert(tomllib.load(file), dict[str, Table])
        found |= {f"{path.stem}.{name}": table for name, table in data.items()}
    return found


def table(name: str) -> Table:
    """A policy by its name; UsageError where there is none."""
    if name not in tables():
        raise UsageError(f"no policy {name!r}{did_you_mean(name, tables())}; vkconv policies lists them")
    return tables()[name]


@functools.lru_cache(maxsize=1 << 13)  # every policy of every shipped device
def row_of(name: str, device: Device) -> Row:
    """The row of a policy that a device gets."""
    target = target_of(device)
    return next(row for row in table(name).rows if row.suits(target))


def _row(device: Device, name: str) -> Row:
    return row_of(name, device)


_types = dict[str, Any]()


def whole_value(name: str, row: Row) -> Any:
    """The value of a row of a policy, with the fields that it leaves out as the policy's type has them."""
    return msgspec.to_builtins(msgspec.convert(row.value, _types[name])) if name in _types else row.value


class Policy(Generic[T]):
    """A policy whose rows are read as values of a type: a number, a tuple, or a dataclass."""

    def __init__(self, name: str, type_: type[T]) -> None:
        self.name, self.type = name, type_
        _types[name] = type_
        self._values = functools.lru_cache(maxsize=64)(self._read)
        self._of_rows = dict[int, tuple[Row, T]]()

    def _read(self, device: Device) -> T:
        return msgspec.convert(row_of(self.name, device).value, self.type)

    def of(self, device: Device) -> T:
        """What a device gets."""
        if watch_now() is None:
            return self._values(device)
        row = seen("policy", _row, device, self.name)
        kept = self._of_rows.get(id(row))
        if kept is None or kept[0] is not row:
            kept = self._of_rows[id(row)] = row, msgspec.convert(row.value, self.type)
        return kept[1]

    def every(self) -> tuple[T, ...]:
        """The values of every row, in their order."""
        return tuple(msgspec.convert(row.value, self.type) for row in table(self.name).rows)

    def said(self, device: Device) -> str:
        """Where a device's row is from: ``published: executorch#20059``."""
        row = row_of(self.name, device)
        return f"{row.evidence}: {row.source}"
