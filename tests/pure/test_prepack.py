"""Prepacking and scratch: what runs at load and what at every run, what is kept, and who may share bytes."""

import numpy as np
import pytest
from flow import check_flow, commands
from graph_kit import f32, make_graph
from plan_kit import CONV, LAVAPIPE, B, W, X

from vkconv.kernel import Kernel, Shader, reads, writes
from vkconv.ops import OPS
from vkconv.ops.core.base import Op, Operand
from vkconv.plan import planner
from vkconv.plan.commands import Copy, Launch
from vkconv.plan.planner import Options, plan
from vkconv.program import Dispatch, Program
from vkconv.route import Route


def test_constant_weights_are_packed_once_and_their_raw_form_is_not_kept():
    result = check_flow(CONV, LAVAPIPE)
    (node,) = result.nodes
    assert (node.dispatches, node.prepack_dispatches) == (1, 1)
    assert [c.node for c in commands(result.load, Launch)] == ["conv2d_y"]
    assert [c.node for c in commands(result.load, Copy)] == ["load b"]  # w is only read by the packing
    assert len(commands(result.run, Launch)) == 1
    packed_bytes, bias_bytes = 8 * 36 * 4, 20  # five channels in one tile of eight, nine rows of three taps as twelve
    assert result.memory.weights_bytes - packed_bytes in range(bias_bytes, bias_bytes + 16)


def test_weights_that_are_inputs_are_packed_at_every_run():
    graph = make_graph({**X, "w": W.shape}, [("conv2d", "x w b", "y", {"padding": (1,)})], "y", {"b": B})
    result = check_flow(graph, LAVAPIPE)
    assert not commands(result.load, Launch)
    assert [c.shader.stem for c in commands(result.run, Launch)] == ["pack_tiles", "conv2d_subgroup"]


def test_weights_that_steps_read_stay_once_for_all_their_readers():
    nodes = [("matmul", "x w", "a"), ("matmul", "a w", "b"), ("add", "b w", "y")]
    result = check_flow(make_graph({"x": (5, 5)}, nodes, "y", {"w": f32(5, 5)}), LAVAPIPE)
    assert [c.node for c in commands(result.load, Copy)].count("load w") == 1
    assert set(result.stage) == {"w"}


def test_the_constants_to_stage_are_exactly_those_that_the_plan_names():
    done = plan(CONV, LAVAPIPE)
    assert set(done.constants) == set(done.plan.stage) == {"w", "b"}


# ---- an op that uses everything a program may have


def dispatch(stem, sources, target):
    kernel = Kernel(stem, (*(reads(f"float {name}") for name in sources), writes(f"float {target}")))
    return Dispatch(Shader(kernel), {name: name for name in (*sources, target)}, (1, 1, 1), (64, 1, 1))


def build(call, device, params):
    return Program(
        steps=(dispatch("first", ["x", "packed"], "scratch"), dispatch("second", ["scratch"], "y")),
        prepack=(dispatch("pack", ["w", "b"], "packed"),),
        packed={"packed": 100},
        scratch={"scratch": 1000},
    )


TWO_STEP = Op(
    "two_step",
    (Operand("x"), Operand("w"), Operand("b")),
    lambda specs, attrs: ({}, (specs["x"],)),
    lambda call, arrays: [arrays["x"]],
    routes=(Route("only", build, (), "for this test"),),
)


@pytest.fixture
def ops(monkeypatch):
    made = {**OPS, "two_step": TWO_STEP}
    monkeypatch.setattr(planner, "OPS", made)
    return made


CHAIN = [("two_step", "x w b", "a"), ("two_step", "a w b", "c"), ("two_step", "c w b", "y")]
NINE = {"w": f32(9), "b": f32(9)}


def test_scratch_lives_for_its_own_node_and_is_shared_between_nodes(ops):
    memory = check_flow(make_graph({"x": (50,)}, CHAIN, "y", NINE), LAVAPIPE, ops=ops).memory
    assert memory.activations_bytes == memory.lower_bound_bytes
    assert 1000 + 2 * 200 <= memory.activations_bytes <= 1000 + 2 * 200 + 3 * 16


def test_each_node_has_its_own_packed_weights(ops):
    result = check_flow(make_graph({"x": (50,)}, CHAIN, "y", NINE), LAVAPIPE, ops=ops)
    assert result.memory.weights_bytes in range(3 * 100, 3 * 112 + 1)
    assert [c.node for c in commands(result.load, Launch)] == ["two_step_a", "two_step_c", "two_step_y"]
    assert not commands(result.load, Copy)


@pytest.mark.parametrize("given", ["w", "b"])
def test_packing_waits_for_the_run_when_any_of_its_operands_is_an_input(ops, given):
    constants = {name: array for name, array in NINE.items() if name != given}
    result = check_flow(make_graph({"x": (50,), given: (9,)}, CHAIN, "y", constants), LAVAPIPE, ops=ops)
    assert not commands(result.load, Launch)
    assert [c.shader.stem for c in commands(result.run, Launch)] == ["pack", "first", "second"] * 3
    assert result.memory.weights_bytes in range(36, 49)  # the other operand, once


def test_a_read_and_write_of_one_value_take_a_barrier_each(ops):
    result = plan(make_graph({"x": (50,)}, CHAIN[:1], "a", NINE), LAVAPIPE, Options(staging=True)).plan
    hazards = [c.hazard for c in result.run if hasattr(c, "hazard")]
    assert hazards == ["RAW", "RAW", "RAW"]  # upload to first, first to second, second to download
    assert np.all([c.region.nbytes > 0 for c in result.run if hasattr(c, "hazard")])
