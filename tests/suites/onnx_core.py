"""The "CNN core" set of ONNX's own node tests: which they are, and which of them vkconv does not pass.

A test is in the set when its model is a node of the default domain (no ``_expanded`` function body) whose inputs and
outputs are all tensors of float32, int32, int64 or bool, and the node is none of `OTHER_FAMILIES`.
"""

from functools import cache
from pathlib import Path

from required import required

required("onnx")
import onnx  # noqa: E402

TYPES = {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL}
OTHER_FAMILIES = {
    "attention": ("Attention", "CausalConvWithState", "LinearAttention", "RotaryEmbedding", "TensorScatter"),
    "recurrence": ("GRU", "LSTM", "RNN"),
    "control flow": ("If", "Loop", "OptionalGetElement", "OptionalHasElement", "Scan"),
    "signals": ("BlackmanWindow", "DFT", "HammingWindow", "HannWindow", "MelWeightMatrix", "STFT"),
    "output shapes that depend on data, and detection": (
        "Compress",
        "NonMaxSuppression",
        "NonZero",
        "RoiAlign",
        "Unique",
    ),
    "text": ("TfIdfVectorizer",),
    "random numbers": ("Bernoulli",),
    "linear algebra": ("Det",),
}
COUNT = 784  # onnx 1.23.2
_EXPECTED = Path(__file__).with_name("onnx_core_failures.txt")


def _is_core(case):
    graph = case.model.graph
    others = {op for ops in OTHER_FAMILIES.values() for op in ops}
    infos = [*graph.input, *graph.output]
    return (
        "_expanded" not in case.name
        and all(node.domain in ("", "ai.onnx") and node.op_type not in others for node in graph.node)
        and all(i.type.WhichOneof("value") == "tensor_type" and i.type.tensor_type.elem_type in TYPES for i in infos)
    )


@cache
def core_cases():
    """The tests of the set, as onnx makes them."""
    import warnings

    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's, while it computes its cases
        return [case for case in collect_testcases(None) if _is_core(case)]


@cache
def expected_failures():
    """Test name to the reason why it does not pass, of both suites."""
    lines = [line for line in _EXPECTED.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)
