"""The table of quirks: rows that say what they are about, apply where they should, and name what exists."""

import shlex

import pytest

from vkconv.device import Device, load_device, shipped_devices
from vkconv.device.quirks import QUIRKS, Quirk
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import forcing, graph_of_shapes

BAND = "conv2d:x=1x48x64x64,w={}x48x3x3,p=1"


def named(quirk: str) -> Quirk:
    return next(q for q in QUIRKS if q.id == quirk)


def a_device(base: str, **changes: object) -> Device:
    facts = dict(load_device(base).facts)
    properties = facts["properties"]["VkPhysicalDeviceProperties"] | changes
    return Device({**facts, "properties": {**facts["properties"], "VkPhysicalDeviceProperties": properties}})


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda q: q.id)
def test_a_row_has_its_source_and_a_command_that_shows_it(quirk: Quirk) -> None:
    assert "https://" in quirk.source
    assert quirk.when
    assert quirk.effect and quirk.action
    command, *words = shlex.split(quirk.reproducer)
    assert command == "vkconv"
    for word in words:
        if word.partition(":")[0] in OPS:
            parse_call(word, OPS)
        op, equals, route = word.partition("=")
        if equals and op in OPS:
            assert route in {r.name for r in OPS[op].routes}
    for avoid in quirk.avoid:
        assert avoid.route in {r.name for r in OPS[avoid.op].routes}


def test_ids_are_unique() -> None:
    assert len({q.id for q in QUIRKS}) == len(QUIRKS)


def test_a_row_of_one_driver_version_applies_to_that_one_only() -> None:
    version = 512 << 22 | 842 << 12 | 19
    row = named("adreno-840-842.19")
    assert row.applies(a_device("adreno-830", deviceName="Adreno (TM) 840", driverVersion=version))
    assert not row.applies(a_device("adreno-830", deviceName="Adreno (TM) 840", driverVersion=version + 1))
    assert not row.applies(a_device("adreno-830", driverVersion=version))
    assert row.when == "qualcomm, device /Adreno.* 840\\b/, QUALCOMM_PROPRIETARY, driver from 512.842.19, " + (
        "driver before 512.842.20"
    )


@pytest.mark.parametrize(("version", "limited"), [((0, 0, 1), True), ((24, 3, 4), True), ((25, 0, 7), False)])
def test_lavapipe_is_limited_in_its_loops_until_mesa_25(version: tuple[int, int, int], limited: bool) -> None:
    """Of Mesa 22.3 the driver's version is 0.0.1, later ones tell Mesa's own."""
    major, minor, patch = version
    lavapipe = a_device("lavapipe", driverVersion=major << 22 | minor << 12 | patch)
    assert lavapipe.driver_version == version and (lavapipe.max_loop_iterations is not None) is limited


@pytest.mark.parametrize("name", shipped_devices())
def test_mesa_drivers_have_no_quirks_of_vendor_drivers(name: str) -> None:
    device = load_device(name)
    if "MESA" in str(device.fact("VkPhysicalDeviceDriverProperties", "driverID")) and device.kind != "cpu":
        assert device.quirks == ()


@pytest.mark.parametrize(("channels", "avoided"), [(160, False), (168, True), (192, True), (200, False)])
def test_a_route_that_a_quirk_speaks_against_is_not_taken_by_itself(channels: int, avoided: bool) -> None:
    device = load_device("adreno-750")
    graph = graph_of_shapes(parse_call(BAND.format(channels), OPS))
    planned = plan(graph, device, Options(passes=False)).plan.nodes[0]
    assert (planned.route != "im2col_gemm") is avoided
    assert planned.choice is not None
    verdict = next(v for v in planned.choice.verdicts if v.route.name == "im2col_gemm")
    assert verdict.allowed
    assert ("adreno-im2col-band" in verdict.refused_by) is avoided
    forced = plan(graph, device, forcing("im2col_gemm")).plan.nodes[0]
    assert forced.route == "im2col_gemm"
    assert plan(graph, device, Options(passes=False, quirks=False)).plan.nodes[0].route == "im2col_gemm"


def test_an_extension_that_a_quirk_spoils_counts_as_absent() -> None:
    facts = dict(load_device("radeon-rx-7800-xt").facts)
    facts["extensions"] = {**facts["extensions"], "VK_KHR_cooperative_matrix": 2}
    assert not Device(facts).has("VK_KHR_cooperative_matrix")
    assert Device(facts, ()).has("VK_KHR_cooperative_matrix")
