"""What a player tells, a line of JSON at a time: the header, then a result for each pack, each checked by types."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from vkconv.core import DeviceError, short


class _Header(msgspec.Struct):
    """The device that plays."""

    schema: str
    timestamp_period_ns: float


class _Output(msgspec.Struct):
    """An output beside its reference; numbers that JSON does not have are null."""

    output: str
    ok: bool
    problem: str
    max_abs: float | None
    max_rel: float | None
    wrong: int
    nan: int
    inf: int
    relative: float | None = None
    worst: int | None = None
    places: str = ""


class _Node(msgspec.Struct):
    """A node of a model, alone and in the run."""

    node: str
    cause: str
    problem: str
    alone: tuple[_Output, ...]
    run: tuple[_Output, ...]


class _Dispatch(msgspec.Struct):
    name: str
    us: float | None


class _Times(msgspec.Struct):
    """What was measured; only the compilation where a pack was not right."""

    us_compile: float | None = None
    us_prepack: float | None = None


class _Measured(msgspec.Struct):
    """All that is there where a median is."""

    us_median: float
    us_min: float
    us_p90: float
    us_spread_percent: float
    runs: int
    submissions: int
    together: int
    us_wall: float | None
    us_wall_repeated: float | None
    clock: str
    samples_us: tuple[float, ...]
    dispatches: tuple[_Dispatch, ...]


class Conditions(msgspec.Struct):
    """As far as the machine shows them."""

    hottest_celsius: float | None = None
    gpu_mhz: float | None = None
    cpu0_mhz: float | None = None
    only_cpu: int | None = None
    battery_percent: float | None = None
    battery_celsius: float | None = None
    battery_status: str = ""


class _Result(msgspec.Struct):
    pack: str
    label: str
    status: str
    why: str
    outputs: tuple[_Output, ...] = ()
    nodes: tuple[_Node, ...] = ()
    shared: tuple[str, ...] = ()
    times: dict[str, Any] = {}
    conditions: Conditions = msgspec.field(default_factory=Conditions)


def read_line(text: str) -> Mapping[str, Any] | None:
    """The header or result of a line; None for a line that is neither: it broke off with the connection, or a driver
    printed it. Raises DeviceError, with the field, for one of the wrong types."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    try:
        if "pack" in told:
            msgspec.convert(told, _Result)
            if "times" in told:
                measured = told["times"].get("us_median") is not None
                msgspec.convert(told["times"], _Measured if measured else _Times)
        elif "schema" in told:
            msgspec.convert(told, _Header)
        else:
            return None
    except (msgspec.ValidationError, OverflowError, UnicodeError) as error:  # halves of characters
        name = told.get("label", told.get("schema"))
        about = f" of {short(name)}" if isinstance(name, str) else ""
        raise DeviceError(
            f"the player's line{about} is not as vkconv reads it: {error}; is it of this vkconv?"
        ) from None
    return told
