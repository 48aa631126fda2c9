"""MatMulNBits of ONNX Runtime: taken as it is, written as it was, typed for what follows."""

import numpy as np
import pytest
from required import required

required("onnx", "onnxruntime")
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vkconv.check.reference import reference_outputs  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.onnx_export import to_onnx  # noqa: E402


def model(lead=(3,), k=40, n=5, block=16, bits=4, zero=True, bias=True, dtype=np.float32, flat=False):
    """x by such weights, then split in two, for which a reader must know the type."""
    rng = np.random.default_rng(5)
    blocks, element = -(-k // block), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = {
        "w": rng.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8),
        "s": (0.01 + 0.05 * rng.random((n, blocks))).astype(dtype),
        "z": rng.integers(0, 256, (n, -(-blocks * bits // 8)), dtype=np.uint8) if zero else None,
        "c": rng.standard_normal(n).astype(dtype) if bias else None,
    }
    names = ["x", "w", "s", "z" if zero else "", "", "c" if bias else ""]
    while not names[-1]:
        names.pop()
    nodes = [
        helper.make_node("MatMulNBits", names, ["h"], "mm", "", "com.microsoft", K=k, N=n, bits=bits, block_size=block),
        helper.make_node("ReduceMean", ["h"], ["m"], keepdims=1),
        helper.make_node("Sub", ["h", "m"], ["y"]),
    ]
    shapes = [("x", [*lead, k]), ("y", [*lead, n])]
    x, y = (helper.make_tensor_value_info(name, element, shape) for name, shape in shapes)
    held = [
        numpy_helper.from_array(a.reshape(-1) if flat and name in "sz" else a, name)
        for name, a in constants.items()
        if a is not None
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


CASES = (
    {},
    {"zero": False, "bias": False},
    {"k": 75, "n": 19, "bits": 8, "block": 32},
    {"lead": (2, 3), "k": 300, "n": 66, "block": 64, "flat": True},
    {"lead": (), "k": 64, "n": 7, "bias": False},
    {"k": 33, "n": 3, "bits": 2},
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_what_onnx_runtime_makes_of_it(case):
    made = model(**case)
    graph = load_onnx_proto(made)
    assert [node.op for node in graph.nodes if node.op.startswith("matmul")] == ["matmul_nbits"]
    again = to_onnx(graph)
    x = np.random.default_rng(1).standard_normal([d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim])
    inputs = {"x": x.astype(np.float32)}
    wanted, written = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        for m in (made, again)
    )
    (found,) = reference_outputs(graph, inputs).values()
    most = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * most)
    np.testing.assert_allclose(written, wanted, rtol=0, atol=3e-6 * most)


def test_halves_stay_halves():
    (node, *_) = load_onnx_proto(model(dtype=np.float16)).nodes
    assert node.op == "matmul_nbits"


def test_what_no_kernel_has_is_written_out():
    """Weights that are no constants, and blocks of no power of two."""
    made = model()
    (weights,) = [t for t in made.graph.initializer if t.name == "w"]
    made.graph.initializer.remove(weights)
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.UINT8, list(weights.dims)))
    assert "matmul_nbits" not in {node.op for node in load_onnx_proto(made).nodes}
    assert "matmul_nbits" not in {node.op for node in load_onnx_proto(model(block=48, k=96)).nodes}


def test_an_open_depth_is_not_written():
    """ONNX Runtime's operator has it as a number."""
    made = model()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    with pytest.raises(Exception, match="open; write the model at fixed shapes"):
        to_onnx(load_onnx_proto(made))
