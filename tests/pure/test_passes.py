"""Passes: what each rewrites, what it must leave alone, and that neither changes what the graph computes."""

import numpy as np
import pytest
from graph_kit import FOLDING, draw, evaluate, f32, made_up_device, make_bound, optimize, run_pass
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_chains import CHAINS
from pass_folds import FOLDS, RESIDUALS
from pass_look_alikes import KEPT, NO_RESIDUALS
from pass_moves import MOVES
from pass_parts import CONSTANTS, CONV, MATMUL, SAME, A, X, part, roll
from pass_recognised import RECOGNISED

from vkconv.core import DType, GraphError
from vkconv.device import load_device
from vkconv.graph import TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.plan.passes import Context

LAVAPIPE = load_device("lavapipe")
REWRITES = MOVES | FOLDS | RECOGNISED
SMALL_OFFSETS = made_up_device(minStorageBufferOffsetAlignment=1)


def bound_of(case):
    return make_bound(*case[:3], CONSTANTS)


def assert_same_results(before, after, tolerance=1e-5):
    arrays = draw(before.inputs)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        assert got.shape == want.shape
        finite = np.abs(want[np.isfinite(want)])
        allowed = tolerance * max(1.0, finite.max() if finite.size else 0.0)
        np.testing.assert_allclose(got, want, rtol=0, atol=allowed, equal_nan=True)


@pytest.mark.parametrize("case", REWRITES.values(), ids=REWRITES)
def test_rewritten_graphs_are_smaller_and_compute_the_same(case):
    before = bound_of(case)
    after = optimize(before)
    assert " ".join(node.call.op for node in after.nodes) == case[3]
    assert after.outputs == before.outputs
    assert after.inputs == before.inputs
    assert_same_results(before, after)


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_graphs_that_only_look_alike_are_kept(case):
    before = after = bound_of(case)
    for entry in FOLDING:
        if entry.name not in ("fuse_chain", "spell_batch_norm"):
            after = run_pass(after, entry)
    assert after.nodes == before.nodes
    assert_same_results(before, after, 0)


@pytest.mark.parametrize("case", RESIDUALS.values(), ids=RESIDUALS)
def test_a_residual_is_part_of_the_launch_where_the_device_binds_five_buffers(case):
    before = bound_of(case)
    after = optimize(before, LAVAPIPE)
    assert " ".join(node.call.op for node in after.nodes) == case[3]
    assert sum("residual" in node.reads for node in after.nodes) == 1
    assert_same_results(before, after)
    assert not any("residual" in node.reads for node in optimize(before).nodes)
    assert any("residual" in n.reads for n in optimize(before, made_up_device()).nodes)


@pytest.mark.parametrize("case", NO_RESIDUALS.values(), ids=NO_RESIDUALS)
def test_what_is_no_residual_is_kept(case):
    before = bound_of(case)
    (fuse_residual,) = (entry for entry in FOLDING if entry.name == "fuse_residual")
    assert run_pass(before, fuse_residual, LAVAPIPE).nodes == before.nodes


def test_weights_are_not_scaled_after_a_residual_was_added():
    nodes = [("conv2d", "x w b - z", "c", {"padding": (1,)}), ("mul", "c per_channel", "y")]
    before = make_bound(SAME, nodes, "y", CONSTANTS)
    after = optimize(before, LAVAPIPE)
    assert [node.call.op for node in after.nodes] == ["conv2d", "mul"]
    assert_same_results(before, after, 0)


@pytest.mark.parametrize("case", CHAINS.values(), ids=CHAINS)
def test_elementwise_operations_in_a_row_are_one_chain(case):
    before = bound_of(case)
    after = optimize(before)
    made = [node.call.attrs.get("steps", node.call.op) for node in after.nodes]
    assert " ".join(map(str, made)) == case[3]
    assert_same_results(before, after)
    for node in after.nodes:
        if node.call.op == "chain":
            text = format_call(node.call, OPS)
            assert format_call(parse_call(text, OPS), OPS) == text


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"steps": "relu/rellu"}, "there is no step 'rellu' .did you mean 'relu'"),
        ({"steps": "relu_x0"}, "there is no step 'relu_x0'"),
        ({"steps": "add_x1"}, "the step add_x1 reads x1, and there are 1 operands"),
        ({"steps": "mul"}, "take more than the 0 numbers there are"),
        ({"steps": "mul", "numbers": (1.0, 2.0)}, "take 1 of the 2 numbers"),
        ({"steps": "/".join(["relu"] * 9)}, "more than 8 steps and 12 numbers"),
    ],
)
def test_steps_that_make_no_sense_are_refused(attrs, message):
    with pytest.raises(GraphError, match=message):
        OPS["chain"].call({"x0": TensorSpec((2, 3))}, attrs)


def test_half_precision_weights_are_not_turned_into_float32():
    half = {name: array.astype(np.float16) for name, array in CONSTANTS.items() if name != "huge"}
    nodes = [
        CONV,
        ("mul", "c two", "s"),
        ("add", "s shift_4d", "y"),
        ("conv2d", "x w b", "d"),
        ("prelu", "d per_channel", "p"),
        ("matmul", "a wide", "m"),
        ("add", "m columns", "z"),
    ]
    inputs = {name: TensorSpec(shape, DType.F16) for name, shape in {**X, **A}.items()}
    before = make_bound(inputs, nodes, "y z p", {**half, "shift_4d": half["per_channel"]})
    assert optimize(before).nodes == before.nodes


def test_every_pass_has_a_case_in_which_it_acts():
    acted = set()
    for case in (*REWRITES.values(), *CHAINS.values(), *RESIDUALS.values()):
        bound = bound_of(case)
        for entry in FOLDING:
            after = run_pass(bound, entry, LAVAPIPE)
            if after.nodes != bound.nodes:
                acted.add(entry.name)
            bound = after
    assert acted == {entry.name for entry in FOLDING}


def test_a_permutation_in_front_of_a_matmul_keeps_the_last_dimension():
    nodes = [("transpose", "x", "t", {"perm": (2, 0, 3, 1)}), ("matmul", "z t", "y")]
    before = make_bound({"x": (3, 5, 2, 4), "z": (2, 3, 6, 4)}, nodes, "y")
    after = optimize(before)
    assert [node.call.attrs.get("perm") for node in after.nodes] == [(2, 0, 1, 3), None]
    assert after.nodes[-1].call["trans_b"]
    assert_same_results(before, after)


def test_weights_that_f16_would_lose_are_not_scaled():
    constants = {**CONSTANTS, "tiny": CONSTANTS["columns_2"] * np.float32(1e-6)}
    nodes = [MATMUL, ("mul", "m tiny", "y")]
    before = make_bound(A, nodes, "y", constants)
    for dtypes, ops in (({}, "matmul"), ({"matmul": "f16"}, "matmul mul"), ({"matmul": "bf16"}, "matmul")):
        (entry,) = (entry for entry in FOLDING if entry.name == "fold_affine")
        after = entry.run(before, Context(OPS, None, None, {}, dtypes=dtypes))
        assert " ".join(node.call.op for node in after.nodes) == ops
    bound = make_bound(A, [MATMUL, ("mul", "m columns_2", "y")], "y", constants)
    assert len(entry.run(bound, Context(OPS, None, None, {}, "f16")).nodes) == 1


def test_folded_weights_are_float32_and_the_old_ones_are_dropped():
    after = optimize(bound_of(REWRITES["batch norm"]))
    assert {a.dtype for a in after.constants.values()} == {np.dtype(np.float32)}
    assert set(after.constants) == {after.nodes[0].reads[k] for k in "wb"}


def test_a_slope_per_channel_becomes_an_operand_and_a_scalar_one_a_parameter():
    (conv,) = optimize(bound_of(REWRITES["prelu per channel"])).nodes
    assert conv.call["act"] == "prelu" and conv.call.shape("slope") == (4,)
    for case in ("prelu of a conv2d with a scalar", "prelu of a matmul with one element"):
        (node,) = optimize(bound_of(REWRITES[case])).nodes
        assert node.call["act"] == "leaky_relu" and node.call["act_a"] in (0.5, 2.0) and "slope" not in node.reads


def test_a_fused_node_has_the_name_of_the_convolution_or_product():
    nodes = [CONV, ("mul", "c per_channel", "s"), ("relu", "s", "y"), MATMUL, ("add", "m columns", "z")]
    after = optimize(make_bound({**X, **A}, nodes, "y z", CONSTANTS))
    assert [node.name for node in after.nodes] == ["conv2d_c", "matmul_m"]


@pytest.mark.long
def test_long_rows_of_products_are_no_deeper_than_python_goes():
    count = 3000
    nodes = [("mul", f"v{i} along_width", f"v{i + 1}") for i in range(count)]
    before = make_bound({"v0": (2, 4)}, nodes, f"v{count}", CONSTANTS)
    after = optimize(before)
    assert 0 < len(after.nodes) < count


def test_new_constants_never_take_a_name_that_is_taken():
    constants = {**CONSTANTS, "mul_y.w": f32(1)}
    after = optimize(make_bound(X, [CONV, ("mul", "c two", "y")], "y mul_y.w", constants))
    np.testing.assert_array_equal(after.constants["mul_y.w"], constants["mul_y.w"])


def test_a_weight_that_two_convolutions_share_is_folded_for_each():
    nodes = [
        ("conv2d", "x w", "c1"),
        ("mul", "c1 two", "y"),
        ("conv2d", "x w", "c2"),
        ("mul", "c2 per_channel", "z"),
    ]
    before = make_bound(X, nodes, "y z", CONSTANTS)
    after = optimize(before)
    assert [node.call.op for node in after.nodes] == ["conv2d", "conv2d"]
    assert_same_results(before, after)


STEPS = st.sampled_from(
    [
        ("mul", "{} per_channel"),
        ("mul", "two {}"),
        ("div", "{} per_channel_4d"),
        ("add", "{} per_channel"),
        ("add", "half_0d {}"),
        ("sub", "{} per_channel"),
        ("mul", "{} one"),
        ("add", "{} zero"),
        ("add", "{} {}"),
        ("mul", "{} along_width"),
        ("identity", "{}"),
        ("relu", "{}"),
        ("prelu", "{} per_channel"),
        ("prelu", "{} along_width"),
        ("prelu", "{} half_0d"),
        ("tanh", "{}"),
        ("sigmoid", "{}"),
        ("batch_norm", "{} scale shift mean var"),
        ("conv2d", "{} w_same"),
        ("conv2d", "{} w_depthwise"),
        ("matmul", "{} square"),
    ]
)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(1, 3)), min_size=1, max_size=8), st.sets(st.integers(0, 7), max_size=2))
def test_any_chain_computes_the_same(steps, outputs):
    """Each step reads one of the last three values; any of them may be an output too."""
    made, nodes = ["x"], []
    for i, ((op, reads), back) in enumerate(steps):
        source = made[-min(back, len(made))]
        attrs = [{"groups": 4}] if "depthwise" in reads else []
        nodes.append((op, reads.replace("{}", source), f"v{i}", *attrs))
        made.append(f"v{i}")
    constants = {
        **CONSTANTS,
        "w_same": f32(4, 4, 1, 1, seed=20) / 4,
        "w_depthwise": f32(4, 1, 1, 1, seed=21),
        "square": f32(4, 4, seed=22) / 4,
    }
    wanted = dict.fromkeys([*(f"v{i}" for i in sorted(outputs) if i < len(steps)), made[-1]])
    before = make_bound({"x": (2, 4, 3, 4)}, nodes, " ".join(wanted), constants)
    arrays = {"x": np.abs(draw(before.inputs)["x"]) + np.float32(0.5)}
    after = optimize(before, LAVAPIPE)
    assert len(after.nodes) <= len(before.nodes)
    for want, got in zip(evaluate(before, arrays), evaluate(after, arrays), strict=True):
        scale = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0.0))
        np.testing.assert_allclose(got / scale, want / scale, rtol=1e-3, atol=1e-4)


@st.composite
def moves(draw):
    """Values that are moved about, each of the last few read again."""
    values, nodes = {"x": (2, 4, 6)}, []
    for i in range(draw(st.integers(2, 9))):
        source = draw(st.sampled_from(list(values)[-3:]))
        shape, y = values[source], f"v{i}"
        axis = draw(st.integers(0, len(shape) - 1))
        kind = draw(
            st.sampled_from(["transpose"] * 3 + ["reshape"] * 2 + ["slice", "split", "roll", "phases", "gather", "pad"])
        )
        n = shape[axis]
        if kind == "transpose":
            perm = tuple(draw(st.permutations(range(len(shape)))))
            nodes.append(("transpose", source, y, {"perm": perm}))
            shape = tuple(shape[p] for p in perm)
        elif kind == "reshape":
            size, dims = int(np.prod(shape)), []
            while size > 1 and len(dims) < 4:
                dims.append(draw(st.sampled_from([d for d in (1, 2, 3, 4, 6, 8, 12) if size % d == 0])))
                size //= dims[-1]
            shape = (*dims, size)
            nodes.append(("reshape", source, y, {"shape": shape}))
        elif kind in ("slice", "split") and n % 2 == 0:
            parts = [f"{y}a", f"{y}b"]
            if kind == "split":
                nodes.append(("split", source, " ".join(parts), {"axis": axis, "num_outputs": 2}))
            else:
                nodes += [part(source, name, axis, k * n // 2, (k + 1) * n // 2) for k, name in enumerate(parts)]
            shape = (*shape[:axis], n // 2, *shape[axis + 1 :])
            if draw(st.booleans()):
                perm = tuple(draw(st.permutations(range(len(shape)))))
                nodes += [("transpose", name, f"{name}t", {"perm": perm}) for name in parts]
                parts, shape = [f"{name}t" for name in parts], tuple(shape[p] for p in perm)
            values |= dict.fromkeys(parts, shape)
            nodes.append(("sub", " ".join(parts), y))
        elif kind == "roll" and n > 1:
            nodes += roll(source, y, axis, draw(st.integers(1, n - 1)), n)
        elif kind == "phases" and n % 2 == 0:
            nodes += [part(source, f"{y}{k}", axis, k, n, 2) for k in range(2)]
            along = draw(st.integers(0, len(shape) - 1))
            nodes.append(("concat", f"{y}0 {y}1", y, {"axis": along}))
            shape = tuple(d // (1 + (k == axis)) * (1 + (k == along)) for k, d in enumerate(shape))
        elif kind == "gather":
            nodes.append(("gather", f"{source} first_of_all", y, {"axis": axis}))
            shape = (*shape[:axis], *shape[axis + 1 :])
            if not shape:
                nodes.append(("reshape", y, f"{y}_1", {"shape": (1,)}))
                y, shape = f"{y}_1", (1,)
        else:
            nodes.append(("pad", source, y, {"pads": (0,) * (2 * len(shape))}))
        values[y] = shape
    outputs = dict.fromkeys([list(values)[-1], draw(st.sampled_from(list(values)[1:]))])
    return make_bound({"x": (2, 4, 6)}, nodes, " ".join(outputs), CONSTANTS)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(moves())
def test_whatever_is_moved_comes_to_the_same_place(before):
    after = optimize(before, SMALL_OFFSETS)
    for want, got in zip(*(evaluate(graph, draw(before.inputs)) for graph in (before, after)), strict=True):
        np.testing.assert_array_equal(got, want)
    for graph in (before, after):
        assert len({node.name for node in graph.nodes}) == len(graph.nodes)
