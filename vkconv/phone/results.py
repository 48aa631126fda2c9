"""What a player told of packs, as the rows and checks that vkconv makes of its own machine's device."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkconv.bench.engine import rate
from vkconv.bench.rows import Row
from vkconv.bench.sampling import notes
from vkconv.call import Call
from vkconv.check import Checked
from vkconv.check.conformance import Conformed, Status
from vkconv.check.model import ModelCheck, NodeCheck
from vkconv.core import Array, DeviceError, DType, Shape, shape_str
from vkconv.phone.calls import PackedCheck
from vkconv.phone.packs import PackedModel

Result = Mapping[str, Any]
_RIGHT = Checked(0.0, 0.0, 0.0)
_UNKNOWN = Checked(None, None, 0.0)
CONDITIONS = (
    ("hottest_celsius", "hottest part {:.1f} C"),
    ("gpu_mhz", "GPU at {:.0f} MHz"),
    ("cpu0_mhz", "CPU 0 at {:.0f} MHz"),
    ("only_cpu", "on CPU {} alone"),
    ("battery_percent", "battery {:.0f} %"),
    ("battery_celsius", "battery {:.1f} C"),
    ("battery_status", "{}"),
)


def conditions(result: Result) -> list[str]:
    """Temperature, clocks, battery and processor when a pack ended, as far as the machine showed them."""
    told = result.get("conditions", {})
    said = [text.format(told[name]) for name, text in CONDITIONS if told.get(name) is not None]
    return [", ".join(said)] if said else []


def kept_output(name: str, data: bytes, dtype: DType, dims: Shape) -> Array:
    """An output that a player kept, from the bytes of its file. DeviceError where they are not those of its shape."""
    nbytes = math.prod(dims) * dtype.nbytes
    if len(data) != nbytes:
        raise DeviceError(
            f"output {name} was sent as {len(data)} bytes, and {shape_str(dims)} of {dtype} has {nbytes}; run it again"
        )
    return np.frombuffer(data, dtype.numpy).reshape(dims)


def fill_row(row: Row, result: Result | None, device_tick_ns: float, why: str = "") -> Row:
    """A row with what the player told of its pack; ``lost``, for ``why``, where it told nothing."""
    if result is None:
        row.check, row.why = "lost", why or "the player ended before it"
        return row
    status = result["status"]
    row.check = "ok" if status == "ok" else "refused" if status == "refused" else "error"
    row.check = "FAILED" if status == "FAILED" else "lost" if status in ("lost", "not played") else row.check
    row.why = "" if status == "ok" else f"{status}: {result['why']}" if row.check == "error" else result["why"]
    worst = max(result.get("outputs", ()), key=lambda output: output["max_rel"] or 0.0, default=None)
    if worst is not None:
        row.max_abs, row.max_rel = worst["max_abs"], worst["max_rel"]
        row.allowed = worst.get("relative")
    times = result.get("times", {})
    row.us_compile, row.us_prepack = times.get("us_compile"), times.get("us_prepack")
    if row.check == "ok" and times.get("us_median"):
        row.us_median, row.us_min, row.us_p90 = times["us_median"], times["us_min"], times["us_p90"]
        row.us_spread_percent = times["us_spread_percent"]
        row.runs, row.submissions = times["runs"], times["submissions"]
        row.us_wall, row.us_wall_repeated = times["us_wall"], times["us_wall_repeated"]
        row.notes += notes(np.array(times["samples_us"]) * times["together"], device_tick_ns)
        row.notes += ["timed by the host's clock: the queue has no timestamps"] if times["clock"] == "host" else []
        rate(row, None)
    row.notes += conditions(result)
    return row


def checked(call: Call | None, told: Sequence[Mapping[str, Any]], allowed: float = 0.0) -> Checked:
    """The worst output of a call as the player compared it."""
    worst = max(told, key=lambda output: (not output["ok"], output["max_rel"] or 0.0), default=None)
    if worst is None:
        return _RIGHT
    dims = call.outputs[worst["output"]].dims if call is not None and worst["output"] in call.outputs else ()
    place = worst.get("worst")
    index = None
    if place is not None and dims and 0 <= place < math.prod(dims):
        index = tuple(int(i) for i in np.unravel_index(place, dims))
    return Checked(
        worst["max_abs"],
        worst["max_rel"],
        worst.get("relative", allowed),
        worst["problem"],
        worst["output"],
        worst=index,
        wrong=worst["wrong"],
        pattern=worst.get("places", ""),
        nan=worst["nan"],
        inf=worst["inf"],
    )


def conformed(check: PackedCheck, results: Mapping[int, Result], why: str) -> Conformed:
    """A check of a device with what the player told of its packs."""
    row = check.row
    if not check.places:
        return row
    for kind, place in check.places.items():
        result = results.get(place)
        if result is None:
            return dataclasses.replace(row, status="error", why=why or "the player ended before it")
        status = result["status"]
        seconds = row.seconds
        found = checked(None, result.get("outputs", ()))
        if row.max_rel is None and result.get("outputs"):
            row = dataclasses.replace(row, max_rel=found.max_rel, allowed=found.allowed)
        if status != "ok":
            ended: Status = "FAILED" if status == "FAILED" else "refused" if status == "refused" else "error"
            said = result["why"] if status in ("FAILED", "refused") else f"{status}: {result['why']}"
            return dataclasses.replace(
                row, status=ended, why=row.conditions(kind) + said, pattern=found.pattern, seconds=seconds
            )
        row = dataclasses.replace(row, status="ok", why="")
    return row


def model_check(packed: PackedModel, result: Result) -> ModelCheck:
    """The check of a model with what the player told of it. Nodes that it did not come to are left out."""
    told = {node["node"]: node for node in result.get("nodes", ())}
    nodes: list[NodeCheck] = []
    for node in packed.nodes:
        if node.refused:
            nodes.append(node.check(_RIGHT, _RIGHT, _RIGHT))
        elif (found := told.get(node.node)) is not None:
            refused = found["problem"] if found["cause"] == "refused" else ""
            named = dataclasses.replace(node, refused=refused)
            nodes.append(named.check(checked(node.call, found["alone"]), checked(node.call, found["run"]), _UNKNOWN))
    complete = len(told) >= sum(not node.refused for node in packed.nodes)
    return ModelCheck(packed.graph, packed.device, tuple(nodes), tuple(result.get("shared", ())), complete)
