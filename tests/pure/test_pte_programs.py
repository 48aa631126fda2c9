"""ExecuTorch's programs: delegates among kernels, values in planned memory, states, sizes and names."""

import numpy as np
import pytest
from required import required

required("flatbuffers")
from pte_kit import Size, T, const, delegated, found, program, vulkan  # noqa: E402

from vkconv.check.reference import reference_outputs  # noqa: E402
from vkconv.core import DType, GraphError, UnsupportedError  # noqa: E402
from vkconv.graph import load_model  # noqa: E402
from vkconv.graph.pte.view import Memory, Ref  # noqa: E402

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
ROWS = RNG.standard_normal((2, 5, 6)).astype(np.float32)
WHERE = np.array([[2, 0, 1], [1, 1, 4]], np.int64)


def test_delegates_between_kernels():
    """Two delegates and a kernel, 64-bit integers that are 32-bit ones inside, a move, blobs in segments."""
    i = T((2, 3), "i32", staging="i64")
    first = vulkan({"i": T((2, 3), "i32"), "j": i}, [("aten.add.Tensor", ["i", "i", 1], "j")], "i", "j")
    second = vulkan({"i": i, "k": i}, [("aten.neg.default", ["i"], "k")], "i", "k")
    tensors = {name: T((2, 3), "i64") for name in "xabcy"}
    steps = [(0, "x a"), ("aten::mul.out", ["a", "x"], "b"), (1, "b c"), ("move", "c", "y")]
    for inline in (True, False):
        graph = load_model(program(tensors, steps, "x", "y x", [first, second], inline=inline))
        assert [n.attrs.get("to") for n in graph.nodes if n.op == "cast"] == ["i32", "i64"] * 2
        made = list(reference_outputs(graph, {"input_0": WHERE}).values())
        np.testing.assert_array_equal(made[0], -2 * WHERE * WHERE)
        np.testing.assert_array_equal(made[1], WHERE)


def test_views_are_what_lies_in_the_same_memory():
    """ExecuTorch leaves views of planned memory out: another value at the same place is the same data."""
    tensors = {"x": T((2, 6), memory=(1, 0)), "v": T((3, 4), memory=(1, 0)), "a": T((3, 4), memory=(1, 48))}
    tensors |= {"b": T((4, 3), memory=(1, 48)), "y": T((4, 3), memory=(1, 0)), "z": T((12,), memory=(1, 0))}
    steps = [("aten::neg.out", ["v"], "a"), ("aten::exp.out", ["b"], "y")]
    x = RNG.standard_normal((2, 6)).astype(np.float32)
    made = found(program(tensors, steps, "x", "z"), x)[0]
    np.testing.assert_allclose(made, np.exp(-x.reshape(12)), rtol=1e-6)
    tensors["v"] = T((3, 4), memory=(1, 16))  # where nothing was written
    with pytest.raises(UnsupportedError, match="a state that is kept between runs"):
        load_model(program(tensors, steps, "x", "z"))


@pytest.mark.parametrize("initial", [None, 2.5])
def test_what_a_run_leaves_to_the_next_is_an_input_and_an_output(initial):
    """Also where it is seen in another shape, and is changed before the end."""
    z = T((2, 3), memory=(1, 0)) if initial is None else const(np.full((2, 3), initial), memory=(1, 0))
    tensors = {"x": T((2, 3)), "z": z, "seen": T((6,), memory=(1, 0)), "s": T((2, 3), memory=(1, 32))}
    tensors |= {"a": T((6,)), "b": T((6,)), "fixed": const(np.ones(6), memory=(2, 0)), "y": T((6,)), "v": T((6,))}
    steps = [
        ("aten::neg.out", ["seen"], "a"),
        ("aten::add.out", ["z", "x", 1], "s"),
        ("aten::copy_", ["z", "s", False], "z"),
        ("aten::exp.out", ["seen"], "b"),
        ("aten::add.out", ["a", "b", 1], "v"),
        ("aten::add.out", ["v", "fixed", 1], "y"),
    ]
    graph = load_model(program(tensors, steps, "x", "y"))
    assert list(graph.inputs) == ["input_0", "state_0"] and graph.outputs == ("output_0", "state_0/next")
    assert graph.metadata["pte.state.state_0"] == "state_0/next"
    assert float(graph.metadata["pte.initial.state_0"]) == (initial or 0)
    state = held = np.full((2, 3), initial or 0.0, np.float32)
    for _ in range(3):
        x = RNG.standard_normal((2, 3)).astype(np.float32)
        made = reference_outputs(graph, {"input_0": x, "state_0": state})
        np.testing.assert_allclose(made["output_0"], (1 - held + np.exp(held + x)).reshape(6), rtol=1e-5)
        held, state = held + x, made["state_0/next"].astype(np.float32)
        np.testing.assert_allclose(state, held, rtol=1e-5)


def test_memory_forgets_what_is_written_over():
    memory, a, b = Memory(), Ref(1, 1), Ref(1, 2)
    memory.write((1, 0), 16, a)
    memory.write((1, 16), 16, b)
    assert memory.at((1, 0), 16) == a and memory.at((1, 16), 16) == b and memory.at((2, 0), 16) is None
    assert memory.at((1, 0), 8) is None
    memory.write((1, 8), 16, b)  # over half of each
    assert memory.at((1, 0), 16) is None and memory.at((1, 16), 16) is None and memory.at((1, 8), 16) == b
    memory.write((1, 0), 64, None)
    assert memory.at((1, 8), 16) is None and memory.at((1, 0), 64) is None


def test_constants_of_a_program_lie_in_the_order_that_it_says():
    w = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
    tensors = {"x": T(w.shape), "w": const(w, order=(0, 2, 3, 1)), "y": T(w.shape)}
    np.testing.assert_allclose(found(program(tensors, [("aten::mul.out", ["x", "w"], "y")], "x", "y"), X)[0], X * w)


@pytest.mark.parametrize("named", ["", "key"])
def test_forced_f16_is_f32_with_weights_of_f16(named):
    """By the option, or by tensors of f16 that come in as f32."""
    shape = ROWS.shape
    tensors = {"x": T(shape, "f16", staging="f32"), "w": const(ROWS, "f16", named=named)}
    tensors["y"] = T(shape, "f16", staging="f32")
    data = delegated(tensors, [("aten.mul.Tensor", ["x", "w"], "y")], "x", "y")
    graph = load_model(data)
    assert graph.metadata["pte.force_fp16"] == "true" and {s.dtype for s in graph.inputs.values()} == {DType.F32}
    np.testing.assert_allclose(found(data, ROWS)[0], ROWS * ROWS.astype("f2").astype("f4"), rtol=1e-6)
    tensors |= {name: T(shape, "f16") for name in "xy"}
    outer = {name: T(shape) for name in "xy"}
    again = delegated(tensors, [("aten.mul.Tensor", ["x", "w"], "y")], "x", "y", outer, options={"force_fp16": b"\1"})
    assert load_model(again).nodes == graph.nodes
    assert (
        load_model(delegated(tensors, [("aten.mul.Tensor", ["x", "w"], "y")], "x", "y")).inputs["input_0"].dtype
        == "f16"
    )


def test_sizes_are_those_of_the_file():
    """A size that the program finds out is the one that there is, also across a delegate's border."""
    sliced = [("aten.slice_copy.Tensor", ["x", 0, "n", 2, 1], "y")]
    inner = vulkan({"x": T((2, 6)), "n": Size(), "y": T((1, 6))}, sliced, "x n", "y")
    tensors = {"x": T((2, 6)), "k": const(np.zeros((3, 1))), "n": 0, "y": T((1, 6))}
    steps = [("aten::sym_size.int", ["k", 1], "n"), (0, "x n y")]
    x = RNG.standard_normal((2, 6)).astype(np.float32)
    np.testing.assert_array_equal(found(program(tensors, steps, "x", "y", [inner]), x)[0], x[1:2])
    unknown = [("executorch_prim::add.Scalar", ["n", 1], "n"), (0, "x n y")]
    with pytest.raises(UnsupportedError, match=r"executorch_prim::add\.Scalar.*computes a size while"):
        load_model(program(tensors, unknown, "x", "y", [inner]))


def test_inputs_that_are_numbers_are_fixed_and_outputs_have_names_of_their_own():
    tensors = {"x": T((3,)), "n": 4, "y": T((3,))}
    graph = load_model(program(tensors, [("aten::add.out", ["x", "x", 1], "y")], "n x", "y y x", method="encode"))
    assert list(graph.inputs) == ["input_1"] and graph.metadata["pte.input_0"] == "4"
    assert graph.outputs == ("output_0", "output_1", "output_2") and graph.metadata["pte.method"] == "encode"
    graph = load_model(
        program(tensors, [("aten::add.out", ["x", "x", 1], "y")], "x", "y", methods=("encode", "decode"))
    )
    assert graph.metadata["pte.other_methods"] == "encode, decode"


def test_a_shape_that_no_call_makes_is_told():
    data = program({"x": T((3,)), "y": T((4,))}, [("aten::relu.out", ["x"], "y")], "x", "y")
    with pytest.raises(GraphError, match="is declared as 4:f32, and its nodes make 3:f32"):
        found(data, np.ones(3, np.float32))
