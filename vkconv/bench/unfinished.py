"""Candidates of calls that ``vkconv tune`` has begun and not finished: a file beside the table, from which the same
command goes on. No plan reads it; a call's candidates leave it as its row comes into the table."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from vkconv.bench.rows import Check, Row
from vkconv.core import UsageError, atomic_write
from vkconv.device import Device
from vkconv.files import read_result_as
from vkconv.plan.measured import kernels_of, locked
from vkconv.route import Params
from vkconv.version import VERSION

_SCHEMA = "vkconv.unfinished/1"
# Between two writes while candidates come: a write syncs the disk, and takes as long as a short candidate.
_SAVE_S = 2.0

_Key = tuple[str, tuple[tuple[str, Any], ...]]


class Tried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate as it came out: right and timed, or why not. ``kernels`` is the digest of those that its route might
    use then, ``min_time_s`` the least time that it was measured for."""

    route: str
    params: dict[str, int | str]
    kernels: str
    min_time_s: Annotated[float, msgspec.Meta(gt=0)]
    check: Check
    why: str = ""
    us_median: Annotated[float, msgspec.Meta(gt=0)] | None = None
    us_spread_percent: Annotated[float, msgspec.Meta(ge=0)] | None = None

    @property
    def key(self) -> _Key:
        """The same of two times that one candidate was tried."""
        return _key(self.route, self.params)


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["vkconv.unfinished/1"] = "vkconv.unfinished/1"
    device_key: str
    device: str
    driver: str
    vkconv: str
    calls: dict[str, list[Tried]]


def unfinished_path(table: Path) -> Path:
    """Where the unfinished calls of a table lie. Its name does not end as tables' names do: ``*.json`` is tables."""
    real = Path(os.path.realpath(table))
    return real.with_name(f"{real.name}.unfinished")


class Unfinished:
    """The unfinished calls beside a table: what was tried of them before is found, and what is tried now is kept.

    Raises ModelError where the file is none of these, and UsageError where it is of another device or driver.
    """

    def __init__(self, table: Path, device: Device, min_time_s: float) -> None:
        self.path = unfinished_path(table)
        self.taken = self.ignored = 0
        self._device, self._min_time_s = device, min_time_s
        self._now = self._read()
        self._asked: dict[str, set[_Key]] = {}
        self._new: dict[str, dict[_Key, Tried]] = {}
        self._gone: dict[str, set[_Key]] = {}
        self._saved_at: float | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """How many calls and candidates the file has."""
        return len(self._now), sum(map(len, self._now.values()))

    def begin(self, text: str) -> None:
        """Look at what there is of a call. What is not `_usable` is counted, and candidates of other kernels go."""
        known = self._now.get(text, {})
        self._asked[text] = set()
        self.ignored += sum(not self._usable(text, one) for one in known.values())
        if gone := {key for key, one in known.items() if not _is_current(text, one)}:
            self._gone[text] = gone

    def _usable(self, text: str, one: Tried) -> bool:
        """Whether it is of today's kernels, and was measured for no less time than is asked for now."""
        return _is_current(text, one) and one.min_time_s >= self._min_time_s

    def find(self, text: str, route: str, params: Params) -> Row | None:
        """The row of a candidate that was tried before, of a call that has begun."""
        key = _key(route, params)
        self._asked[text].add(key)
        one = self._now.get(text, {}).get(key)
        if one is None or not self._usable(text, one):
            return None
        self.taken += 1
        return Row(
            call=text,
            op=text.partition(":")[0],
            route=one.route,
            params=dict(one.params),
            check=one.check,
            why=one.why,
            us_median=one.us_median,
            us_spread_percent=one.us_spread_percent,
        )

    def add(self, text: str, route: str, params: Params, row: Row) -> None:
        """Keep a candidate that was tried now; the file is written now and then. Raises what writing raises."""
        kernels = kernels_of(text.partition(":")[0], route)
        spread = row.us_spread_percent
        one = Tried(route, dict(params), kernels, self._min_time_s, row.check, row.why, row.us_median, spread)
        self._new.setdefault(text, {})[one.key] = one
        if self._saved_at is None or time.monotonic() - self._saved_at >= _SAVE_S:
            self.save()

    def finish(self, text: str) -> None:
        """Leave out what was asked for of a call: its row is in the table. What a fuller tuning had tried stays."""
        self._new.pop(text, None)
        asked = self._asked.pop(text, set())
        if text in self._now:
            self._gone[text] = self._gone.get(text, set()) | asked
            self.save()

    def save(self) -> None:
        """Write what is not written yet, beside what others have written meanwhile; a file without calls goes."""
        if not self._new and not self._gone:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            self._now = _changed(self._read(), self._gone, self._new)
            if self._now:
                self._write()
            else:
                self.path.unlink(missing_ok=True)
        self._new, self._gone, self._saved_at = {}, {}, time.monotonic()

    def _read(self) -> dict[str, dict[_Key, Tried]]:
        if not self.path.exists():
            return {}
        file = read_result_as(_File, self.path, f"file of unfinished calls ({_SCHEMA}), and may be deleted")
        if file.device_key != self._device.key:
            raise UsageError(
                f"{self.path} has calls that were begun on {file.device}, driver {file.driver}, and this is "
                f"{self._device.name}, driver {self._device.driver}: name another table, or delete that file"
            )
        return {text: {one.key: one for one in tried} for text, tried in file.calls.items()}

    def _write(self) -> None:
        device = self._device
        calls = {text: list(tried.values()) for text, tried in sorted(self._now.items())}
        file = _File(device_key=device.key, device=device.name, driver=device.driver, vkconv=VERSION, calls=calls)
        with atomic_write(self.path) as out:
            out.write(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")


def _is_current(text: str, one: Tried) -> bool:
    return bool(one.kernels) and one.kernels == kernels_of(text.partition(":")[0], one.route)


def _key(route: str, params: Params) -> _Key:
    return route, tuple(sorted(params.items()))


def _changed(
    had: Mapping[str, Mapping[_Key, Tried]],
    gone: Mapping[str, set[_Key]],
    new: Mapping[str, dict[_Key, Tried]],
) -> dict[str, dict[_Key, Tried]]:
    texts = [*had, *(text for text in new if text not in had)]
    kept = {
        text: {key: one for key, one in had.get(text, {}).items() if key not in gone.get(text, ())} | new.get(text, {})
        for text in texts
    }
    return {text: dict(tried) for text, tried in kept.items() if tried}
