"""Measured tables: what ``vkconv tune`` found fastest on one device with one driver, as a JSON file.

A table has a row for each call string, with every candidate that was measured, the fastest first. Planning on that
device takes the fastest one that can run, ahead of the routes' own rules (`vkconv.route.choose`).

A time says nothing of other kernels: each candidate has the digest of those that its route had then, and only those
with the digest of today are looked at. The others are counted (`ignored`).
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from vkconv import bfloat16
from vkconv.call import Call
from vkconv.compiler import digest
from vkconv.core import (
    ModelError,
    ShaderError,
    UsageError,
    VkconvWarning,
    atomic_write,
    cache_dir,
    counted,
    expand_user,
    not_a_file,
)
from vkconv.device import Device
from vkconv.glsl import read_source, shader_dir, source_bytes
from vkconv.ops import OPS
from vkconv.route import Candidate, Route, may_take

VARIABLE = "VKCONV_MEASURED"
_SCHEMA = "vkconv.measured/1"
_MAX_FILE_BYTES = 256 << 20
_HOW = "vkconv tune writes such a file"
_DIGEST_CHARS = 16
_LOCK_S = 60.0

_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]

Effort = Literal["quick", "default", "full"]
"""``quick``: every route with its default parameters; ``default``: then one parameter at a time, and the best value
of each together; ``full``: every combination."""
EFFORTS: tuple[Effort, ...] = ("quick", "default", "full")


class MeasuredCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one call, at one time: the candidates that were right, the fastest first.

    ``effort`` and ``half_sums`` say what was tried, ``kernels`` is the digest of all kernels of the op then, and
    ``vkconv`` the version that measured. Older tables leave these out.
    """

    date: _Date
    candidates: Annotated[tuple[Candidate, ...], msgspec.Meta(min_length=1)]
    effort: Effort | None = None
    half_sums: bool = False
    kernels: str = ""
    vkconv: str = ""


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


# ---- digests of kernels

_digests: dict[tuple[str, str], tuple[Route, str]] = {}


_read = functools.cache(read_source)


@functools.cache
def _sources(stem: str, folder: Path) -> bytes:
    return hashlib.sha256(source_bytes(stem, folder, _read)).digest()


def _short(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGEST_CHARS]


def _digest(route: Route) -> str:
    """Of the sources and interfaces of the route's shaders. Their forms for 16-bit floats, which may be many, come from
    the same sources, and from what the kernels declare of all variants."""
    folder, halves = shader_dir(), f"{route.takes_halves} {bfloat16.REVISION}"
    digests = {digest(shader, folder, _sources) for shader in route.shaders}
    return _short([halves, *sorted({repr(shader.kernel) for shader in route.shaders}), *sorted(digests)])


def kernels_of(op: str, route: str) -> str:
    """The digest of every kernel that a route of an op may use, those of calls inside it too, from sources that are
    read once in a process; empty where there is no such route, or a source is missing."""
    found = next((one for one in OPS[op].routes if one.name == route), None) if op in OPS else None
    if found is None:
        return ""
    known = _digests.get((op, route))
    if known is None or known[0] is not found:
        made = ""
        with contextlib.suppress(ShaderError, OSError):
            made = _digest(found)
        known = _digests[op, route] = found, made
    return known[1]


def kernels_of_op(op: str) -> str:
    """The digest of the kernels of all routes of an op, with the routes' names."""
    return _short(f"{route.name} {kernels_of(op, route.name)}" for route in OPS[op].routes)


# ---- files


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
    first, second = _signed(first), _signed(second)
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


def _signed(table: MeasuredTable) -> MeasuredTable:
    """The table with each row saying by which vkconv it was measured."""
    rows = {
        call: row if row.vkconv else msgspec.structs.replace(row, vkconv=table.vkconv)
        for call, row in table.rows.items()
    }
    return msgspec.structs.replace(table, rows=rows)


def add_to_table(new: MeasuredTable, path: Path) -> MeasuredTable:
    """Add rows to the table at a path, which other processes may do at the same time: the table that lies there now.

    Raises what `read_table`, `merge_tables` and writing raise.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        merged = merge_tables(read_table(path), new) if path.exists() else _signed(new)
        write_table(merged, path)
    return merged


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file beside the file at ``path``, which is gone afterwards. OSError where nobody gives it up."""
    lock, until = path.with_name(f".{path.name[:100]}.lock"), time.monotonic() + _LOCK_S
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        file = os.open(lock, flags, 0o666)
        try:
            if _holds(file, lock):
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
        finally:
            os.close(file)
        if time.monotonic() > until:
            raise TimeoutError(f"another process has held {lock} for {_LOCK_S:g} s")
        time.sleep(0.02)


def _holds(file: int, lock: Path) -> bool:
    """Whether the open lock file is now locked, and still the one at its path: who had it before has removed it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    try:
        return os.path.samestat(os.fstat(file), lock.lstat())
    except FileNotFoundError:
        return False


# ---- what plans know


class Measured(Mapping[str, Sequence[Candidate]]):
    """What a table knows of each call string with the kernels of today; looked at as it is asked for."""

    def __init__(self, table: MeasuredTable) -> None:
        self.table = _signed(table)
        self._current: dict[str, tuple[Candidate, ...]] = {}

    def __getitem__(self, text: str) -> tuple[Candidate, ...]:
        if text not in self._current:
            op = text.partition(":")[0]
            known = self.table.rows[text].candidates
            self._current[text] = tuple(c for c in known if c.kernels and c.kernels == kernels_of(op, c.route))
        return self._current[text]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.rows)

    def __len__(self) -> int:
        return len(self.table.rows)


@dataclasses.dataclass(frozen=True)
class Ignored:
    """How many rows of a measured table a plan does not look at: of other kernels, of routes that cannot take the call
    or are gone, and with other parameters than the route has. By which vkconv they were measured, and when."""

    kernels: int = 0
    routes: int = 0
    parameters: int = 0
    vkconv: str = ""
    date: str = ""

    @property
    def count(self) -> int:
        return self.kernels + self.routes + self.parameters

    def __str__(self) -> str:
        reasons = (
            (self.kernels, "of other kernels"),
            (self.routes, "of routes that cannot take it"),
            (self.parameters, "with parameters that are not those of the route"),
        )
        said = " and ".join(f"{counted(n, 'row')} {why}" for n, why in reasons if n)
        by = f", measured by vkconv {self.vkconv} on {self.date[:10]}" if self.date else ""
        return f"{said}{by}: run vkconv tune" if said else ""


def usable(
    measured: Mapping[str, Sequence[Candidate]] | None, text: str, call: Call, device: Device
) -> tuple[tuple[Candidate, ...], Ignored]:
    """The candidates of a call that `vkconv.route.choose` could take, and what is ignored of its row."""
    known = tuple((measured or {}).get(text, ()))
    routes = {route.name: route for route in OPS[call.op].routes}
    good, unfit, other = [], 0, 0
    for candidate in known:
        route = routes.get(candidate.route)
        if route is None or not may_take(route, call, device):
            unfit += 1
        elif not _has_parameters(route, candidate, call, device):
            other += 1
        else:
            good.append(candidate)
    if not isinstance(measured, Measured) or text not in measured:
        return tuple(good), Ignored(0, unfit, other)
    row = measured.table.rows[text]
    return tuple(good), Ignored(len(row.candidates) - len(known), unfit, other, row.vkconv, row.date)


def _has_parameters(route: Route, candidate: Candidate, call: Call, device: Device) -> bool:
    """Whether a candidate gives all parameters of its route, each one a legal value."""
    try:
        return route.resolve(call, device, candidate.params).keys() == candidate.params.keys()
    except UsageError:
        return False


def ignored(
    measured: Mapping[str, Sequence[Candidate]] | None, calls: Mapping[str, Call], device: Device
) -> dict[str, Ignored]:
    """What is ignored of the rows of calls, by call string; calls of which nothing is are left out."""
    found = {text: usable(measured, text, call, device)[1] for text, call in calls.items() if not call.is_empty}
    return {text: one for text, one in found.items() if one.count}


def ignored_summary(found: Mapping[str, Ignored]) -> str:
    """The same in a line; empty where nothing is ignored."""
    if not found:
        return ""
    ones = found.values()
    total = Ignored(sum(i.kernels for i in ones), sum(i.routes for i in ones), sum(i.parameters for i in ones))
    calls = counted(len(found), "call")
    return f"ignored in the measured table, of {calls}: {total}"


def measured_path(device: Device) -> Path | None:
    """The table that plans on a device use: the one that VKCONV_MEASURED names unless it is ``off``, or the user's
    own; None where there is none."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named == "off" else expand_user(named, VARIABLE)
    path = table_path(device)
    return path if path.exists() else None


def find_measured(device: Device) -> Mapping[str, Sequence[Candidate]]:
    """What is known of a device by call string, from the table at `measured_path`, as `Measured` has it; empty where
    there is none.

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
    return Measured(table)


def _ignored(problem: str) -> None:
    how = f"set {VARIABLE}=off to go without a table" if os.environ.get(VARIABLE) else "delete it or measure again"
    warnings.warn(f"ignored: {problem} ({how})", VkconvWarning, stacklevel=3)
