"""Measured tables: what ``vkconv tune`` found fastest on one device with one driver, as a JSON file.

A table has a row for each call string, with every candidate that was measured, the fastest first. Planning on that
device takes the fastest one that can run, ahead of the routes' own rules (`vkconv.route.choose`).
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from vkconv.core import ModelError, UsageError, VkconvWarning, atomic_write, cache_dir, expand_user, not_a_file
from vkconv.device import Device
from vkconv.route import Candidate

VARIABLE = "VKCONV_MEASURED"
_SCHEMA = "vkconv.measured/1"
_MAX_FILE_BYTES = 256 << 20
_HOW = "vkconv tune writes such a file"

_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class MeasuredCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one call, at one time: the candidates that were right, the fastest first."""

    date: _Date
    candidates: Annotated[tuple[Candidate, ...], msgspec.Meta(min_length=1)]


class MeasuredTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls that were measured on one device with one driver; ``vkconv`` is the version that wrote the file, and
    dates are UTC in ISO 8601."""

    schema: Literal["vkconv.measured/1"] = "vkconv.measured/1"
    device_key: str
    device: str
    driver: str
    vkconv: str
    date: _Date
    rows: dict[str, MeasuredCall]

    @property
    def candidates(self) -> dict[str, tuple[Candidate, ...]]:
        """The candidates by call string, as `Options.measured` takes them."""
        return {call: row.candidates for call, row in self.rows.items()}


def table_path(device: Device) -> Path:
    """Where the user's table of a device and driver lies."""
    return cache_dir() / "measured" / f"{device.key}.json"


def read_table(path: Path) -> MeasuredTable:
    """The table in a file; ModelError naming the file and the place in it where it is none."""
    if problem := not_a_file(path):
        raise ModelError(f"measured table {path} cannot be read: {problem}; {_HOW}")
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelError(f"{path} has {path.stat().st_size} bytes; a measured table has at most {_MAX_FILE_BYTES}")
        table = msgspec.json.decode(path.read_bytes(), type=MeasuredTable)
    except OSError as error:
        raise ModelError(f"measured table {path} cannot be read: {error.strerror or error}; {_HOW}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ModelError(f"{path} is not a measured table ({_SCHEMA}): {error}; {_HOW}") from None
    return table


def write_table(table: MeasuredTable, path: Path) -> None:
    """Write a table that `read_table` reads back, whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(table), indent=1)
    with atomic_write(path) as file:
        file.write(text + b"\n")


def merge_tables(first: MeasuredTable, second: MeasuredTable) -> MeasuredTable:
    """The rows of both tables, for a call in both the newer row (of equally new ones that of ``second``).

    Raises UsageError for tables of different devices or drivers: times of one say nothing of the other.
    """
    if first.device_key != second.device_key:
        raise UsageError(
            f"tables of different devices or drivers cannot be merged: {first.device}, driver {first.driver} "
            f"({first.device_key}) and {second.device}, driver {second.driver} ({second.device_key})"
        )
    newer = max(first, second, key=lambda table: table.date)
    rows = dict(first.rows)
    for call, row in second.rows.items():
        if call not in rows or row.date >= rows[call].date:
            rows[call] = row
    return msgspec.structs.replace(newer, rows=dict(sorted(rows.items())))


def measured_path(device: Device) -> Path | None:
    """The table that plans on a device use: the one that VKCONV_MEASURED names unless it is ``off``, or the user's
    own; None where there is none."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named == "off" else expand_user(named, VARIABLE)
    path = table_path(device)
    return path if path.exists() else None


def find_measured(device: Device) -> Mapping[str, tuple[Candidate, ...]]:
    """What is known of a device by call string, from the table at `measured_path`; empty where there is none.

    A table that cannot be read, or that is of another device or driver, is reported by a VkconvWarning and ignored:
    a table is never worth an error.
    """
    path = measured_path(device)
    if path is None:
        return {}
    try:
        table = read_table(path)
    except ModelError as error:
        _ignored(str(error))
        return {}
    if table.device_key != device.key:
        _ignored(
            f"the measured table {path} is of {table.device}, driver {table.driver}, and this is {device.name}, "
            f"driver {device.driver}; measure again with vkconv tune"
        )
        return {}
    return table.candidates


def _ignored(problem: str) -> None:
    how = f"set {VARIABLE}=off to go without a table" if os.environ.get(VARIABLE) else "delete it or measure again"
    warnings.warn(f"ignored: {problem} ({how})", VkconvWarning, stacklevel=3)
