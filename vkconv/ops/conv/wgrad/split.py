"""The gradient in split-K slices: programs, parameters and notes of the routes that differ in their policies."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import bytes_str, shape_str
from vkconv.device import Device
from vkconv.ops.conv.wgrad import cost, images
from vkconv.ops.conv.wgrad.combine import combine
from vkconv.ops.conv.wgrad.cost import SLICES, most_in_scratch
from vkconv.ops.conv.wgrad.kernels import ATOMIC_CAS, ATOMIC_FLOAT, Output, launch
from vkconv.ops.conv.wgrad.policy import AUTO, BANDS, IMAGES, IREE, OCCUPANCY, WHOLE, Policy
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.conv.wgrad.tiles import TILES
from vkconv.ops.core.requirements import MOST_INT, float_atomics
from vkconv.program import Program
from vkconv.route import Legal, Params

Policies = tuple[Policy, ...]
"""Of a route, the default first."""
_BY_NAME: Mapping[str, Policy] = {policy.name: policy for policy in (AUTO, BANDS, IREE, OCCUPANCY)}


def _policy(policies: Policies, params: Params) -> Policy:
    return _BY_NAME[params["policy"]] if "policy" in params else policies[0]


def _buffers(call: Call, result: str) -> dict[str, str | None]:
    return {"x": "x", "dy": "dy", "add": "add" if call.has("add") else None, "result": result}


def build(call: Call, device: Device, params: Params, policies: Policies) -> Program:
    """Slices to scratch, and their sum; one slice is stored as dw."""
    p, tile = WeightGradient.of(call), TILES[params["tile"]]
    split, _ = _policy(policies, params).split(p, device, params.get("split_k", 1))
    count = images.slices(p, split, device)
    if count <= 1:
        output = Output(float(call["scale"]), float(call["beta"]), call.has("add"))
        return Program((launch(tile, p, WHOLE.into(p, 1), output, _buffers(call, "dw"), device),))
    made = images.launches(tile, p, split, Output(to_scratch=True), _buffers(call, "slices"), device)
    steps, scratch = (*made.steps, combine(call, count, device)), {**made.scratch, "slices": 4 * p.size * count}
    return dataclasses.replace(made, steps=steps, scratch=scratch)


def build_atomic(call: Call, device: Device, params: Params, policies: Policies) -> Program:
    """Slices that are added to dw, over what ``add`` is there."""
    p, tile = WeightGradient.of(call), TILES[params["tile"]]
    split, _ = _policy(policies, params).split(p, device, params["split_k"])
    output = Output(float(call["scale"]), defines=ATOMIC_FLOAT if params["native"] else ATOMIC_CAS)
    added = images.launches(tile, p, split, output, _buffers(call, "dw"), device)
    return dataclasses.replace(added, steps=(combine(call, 0, device), *added.steps))


def params(call: Call, device: Device, policies: Policies, *, atomic: bool = False) -> Legal:
    """The tile; where the sum is split, the number of slices and the policy that gives its default."""
    p, default = WeightGradient.of(call), policies[0]
    legal: dict[str, tuple[int | str, ...]] = {"tile": default.tiles(p, device)}
    if default is WHOLE:
        return legal
    most = min(MOST_INT // p.size if atomic else most_in_scratch(p, device), max(p.pixels, 1))
    most = min(most, max(p.n, 1)) if default is IMAGES else most
    able = [policy for policy in policies if policy is default or policy.slices(p, device) <= most]
    counts = [count for count in SLICES if count <= most]
    legal["split_k"] = tuple(dict.fromkeys((default.slices(p, device), *counts, *(a.slices(p, device) for a in able))))
    if atomic:
        legal["native"] = (1, 0) if float_atomics(device) else (0,)
    if default.name in _BY_NAME:
        legal["policy"] = tuple(policy.name for policy in able)
    return legal


def follow(call: Call, device: Device, given: Params) -> Params:
    """The tile and the number of slices that a policy has for defaults."""
    policy = given.get("policy")
    return _followed(WeightGradient.of(call), device, policy) if policy in _BY_NAME else {}


@functools.lru_cache(maxsize=256)  # each program asks several times
def _followed(p: WeightGradient, device: Device, policy: str) -> Params:
    by = _BY_NAME[policy]
    return {"tile": by.tiles(p, device)[0], "split_k": by.slices(p, device)}


def estimated_us(call: Call, device: Device, params: Params) -> float | None:
    """What the cost model of tiles and slices says, microseconds, launches included."""
    return cost.estimated_us(params["tile"], WeightGradient.of(call), device, params.get("split_k", 1))


def note(call: Call, device: Device, params: Params, policies: Policies) -> str:
    """How the sum is split, and why."""
    p = WeightGradient.of(call)
    split, why = _policy(policies, params).split(p, device, params["split_k"])
    count = images.slices(p, split, device)
    boxes = f"boxes of {shape_str(split.box)} (n, d, h, w)" if split.boxes(p) > 1 else "equal slices"
    scratch = bytes_str(4 * p.size * count) if count > 1 else "no"
    return f"{count} {boxes}: {why}; {scratch} scratch; {params['tile']}{images.note(p, device)}"


def note_atomic(call: Call, device: Device, params: Params) -> str:
    """Slices and kind of atomics."""
    atomics = "float atomics" if params["native"] else "compare-and-swap"
    return f"{params['split_k']} slices, {atomics}; not deterministic; no scratch; {params['tile']}"


def scratch_bytes(policy: Policy) -> Callable[[Call, Device], int]:
    """Of as many slices as the policy has for a default."""

    def nbytes(call: Call, device: Device) -> int:
        p = WeightGradient.of(call)
        count = images.slices(p, policy.default(p, device)[0], device)
        return 4 * p.size * count if count > 1 else 0

    return nbytes


def iterations(policy: Policy) -> Callable[[Call, Device], int]:
    """Loop iterations of an invocation, of either pass."""

    def count(call: Call, device: Device) -> int:
        p = WeightGradient.of(call)
        split, _ = policy.default(p, device)
        return max(TILES[policy.tiles(p, device)[0]].iterations(p, split), images.slices(p, split, device))

    return count
