"""Devices with subgroups of several sizes: pipelines whose invocations meet in subgroups ask for the planned one."""

import dataclasses

import pytest
from cli_kit import vkconv as run
from pack_kit import Pack

from vkconv.core import LimitError
from vkconv.device import load_device
from vkconv.device.emulate import emulated
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.base import most_invocations
from vkconv.ops.core.calls import parse_call
from vkconv.plan.commands import Launch
from vkconv.plan.limits import check_launch
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import graph_of_shapes

RADEON, H200, LAVAPIPE = (load_device(name) for name in ("radeon-rx-7800-xt", "h200", "lavapipe"))


def sizes(text, device, **routes):
    made = plan(graph_of_shapes(parse_call(text, OPS)), device, Options(routes=routes, passes=False)).plan
    return {c.shader.stem: c.subgroup_size for c in (*made.load, *made.run) if isinstance(c, Launch)}


def test_only_what_meets_in_subgroups_asks_and_only_where_sizes_vary():
    assert RADEON.subgroup_sizes == (32, 64)
    assert sizes("softmax:x=64x1000", RADEON, softmax="one_pass") == {"softmax": 64}
    assert sizes("matmul:a=64x64,b=64x64", RADEON, matmul="subgroup") == {"matmul_subgroup": 64}
    assert sizes("matmul:a=64x64,b=64x64", RADEON, matmul="shared") == {"matmul_shared": 0}
    for device in (H200, LAVAPIPE):
        assert sizes("softmax:x=64x1000", device, softmax="one_pass") == {"softmax": 0}


@pytest.mark.parametrize("name", ["arc-a770", "radeon-rx-7800-xt", "xclipse-940"])
def test_routes_by_subgroups_are_open_there(name):
    device, call = load_device(name), parse_call("matmul:a=64x64,b=64x64", OPS)
    least, most = device.subgroup_sizes
    assert least < most
    (route,) = [route for route in OPS["matmul"].routes if route.name == "subgroup"]
    assert all(need.test(call, device) for need in route.must)


def test_an_emulated_device_asks_where_the_real_one_can_be_asked():
    assert sizes("softmax:x=64x1000", emulated(RADEON, LAVAPIPE), softmax="one_pass") == {"softmax": 8}
    facts = {**LAVAPIPE.facts, "features": {}}
    assert sizes("softmax:x=64x1000", emulated(RADEON, type(LAVAPIPE)(facts)), softmax="one_pass") == {"softmax": 0}


def test_workgroups_hold_no_more_subgroups_than_a_pipeline_that_asks_may_have():
    """Of the emulated device 32 of 8, where the real one has workgroups of 1024."""
    device = emulated(RADEON, LAVAPIPE)
    assert device.most_sized_invocations == 256 == most_invocations(device) < most_invocations(LAVAPIPE)
    assert LAVAPIPE.most_sized_invocations is None
    launches = plan(graph_of_shapes(parse_call("softmax:x=64x1000", OPS)), device, Options(passes=False)).plan.run
    (launch,) = [command for command in launches if isinstance(command, Launch)]
    large = dataclasses.replace(launch, spec_words=(512, 1, 1, *launch.spec_words[3:]))
    with pytest.raises(LimitError, match=r"workgroups of 512 and asks for subgroups of 8; .* allows 256 then"):
        check_launch("here", large, device)


def test_a_pack_has_the_sizes(tmp_path):
    graph = Graph({"x": TensorSpec((64, 1000))}, ("y",), (Node("s", "softmax", ("x",), ("y",), {"axis": 1}),), {})
    save_vkc(graph, tmp_path / "m.vkc")
    code, _, err = run("pack", tmp_path / "m.vkc", tmp_path / "pack", "--device", "radeon-rx-7800-xt")
    assert (code, err) == (0, "")
    (plan,) = Pack(tmp_path / "pack").plans()
    assert "\nsubgroup 0 64\n" in Pack(tmp_path / "pack").text(plan)
