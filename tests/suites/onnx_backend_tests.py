"""ONNX's own backend tests: the "CNN core" set of its node tests, those of 8-bit integers, and its model tests; and
what is known of them.

A node test is in the core set when its model is a node of the default domain (no ``_expanded`` function body) whose
inputs and outputs are all tensors of float32, int32, int64 or bool, and the node is none of `OTHER_FAMILIES`. Those of
8-bit integers are the tests of `QUANTIZED` operators, with int8 and uint8 besides; those of 16-bit floats have a tensor
of float16 or bfloat16 besides.
"""

import dataclasses
import warnings
from functools import cache
from pathlib import Path

from required import required

required("onnx")
import onnx  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402
from onnx.backend.test.runner import Runner  # noqa: E402

TYPES = {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL}
BYTES = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
HALVES = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
QUANTIZED = {
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
}
OTHER_FAMILIES = {
    "attention": ("Attention", "CausalConvWithState", "LinearAttention", "RotaryEmbedding", "TensorScatter"),
    "recurrence": ("GRU", "LSTM", "RNN"),
    "control flow": ("If", "Loop", "OptionalGetElement", "OptionalHasElement", "Scan"),
    "signals": ("BlackmanWindow", "DFT", "HammingWindow", "HannWindow", "MelWeightMatrix", "STFT"),
    "detection, and shapes that depend on data": ("Compress", "NonMaxSuppression", "NonZero", "RoiAlign", "Unique"),
    "text": ("TfIdfVectorizer",),
    "random numbers": ("Bernoulli",),
    "linear algebra": ("Det",),
}
_OTHERS = {op for ops in OTHER_FAMILIES.values() for op in ops}
# What numpy's random numbers come to, which ONNX does not ask for.
RANDOM = ("test_bernoulli", "test_training_dropout")
# Of onnx 1.23.2.
NODE_TESTS, QUANTIZED_TESTS, HALF_TESTS, MODEL_TESTS = 784, 17, 29, 149
_MODELS = ("simple", "pytorch-converted", "pytorch-operator", "real")
_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class BackendTest:
    """One test: its name (of a model test, behind its kind), the model or where it lies, and how close to come."""

    name: str
    source: onnx.ModelProto | Path
    data_sets: tuple = ()
    rtol: float = 1e-3
    atol: float = 1e-7

    def load(self):
        """The model, and pairs of inputs and expected outputs."""
        if isinstance(self.source, onnx.ModelProto):
            arrays = lambda items: [_array(item) for item in items]  # noqa: E731
            return self.source, [(arrays(given), arrays(wanted)) for given, wanted in self.data_sets]
        model = onnx.load(self.source)
        return model, list(
            _real_data(model, self.source) if self.name.startswith("real/") else _data(model, self.source)
        )

    def check(self, wanted, outputs):
        """Hold outputs to the expected ones as onnx's runner does: shapes, element types, values."""
        Runner.assert_similar_outputs(wanted, outputs, self.rtol, self.atol, self.name)


def _array(item):
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def _data(model, source):
    """The data sets beside a model."""
    read = object.__new__(Runner)._load_proto  # needs nothing of a runner
    for folder in sorted(source.parent.glob("test_data_set*")):
        pair = []
        for word, infos in (("input", model.graph.input), ("output", model.graph.output)):
            arrays = []
            for i in range(len(list(folder.glob(f"{word}_*.pb")))):
                read(folder / f"{word}_{i}.pb", arrays, infos[i].type)
            pair.append(arrays)
        yield tuple(pair)


def _real_data(model, source):
    """For a model without data: the inputs that onnx's runner makes up, and the outputs that come with the model."""
    constant = {tensor.name for tensor in model.graph.initializer}
    given = [Runner.generate_dummy_data(info) for info in model.graph.input if info.name not in constant]
    files = [source.with_name(f"{source.stem}_output_{i}.pb") for i in range(len(model.graph.output))]
    yield given, [numpy_helper.to_array(onnx.load_tensor(file)) for file in files]


def _is_a_node_of(case, types):
    graph = case.model.graph
    infos = [*graph.input, *graph.output]
    return (
        "_expanded" not in case.name
        and all(node.domain in ("", "ai.onnx") and node.op_type not in _OTHERS for node in graph.node)
        and all(i.type.WhichOneof("value") == "tensor_type" and i.type.tensor_type.elem_type in types for i in infos)
    )


def _is_core(case):
    return _is_a_node_of(case, TYPES)


def _is_quantized(case):
    return _is_a_node_of(case, TYPES | BYTES) and QUANTIZED.issuperset(n.op_type for n in case.model.graph.node)


def _is_half(case):
    infos = [*case.model.graph.input, *case.model.graph.output]
    return _is_a_node_of(case, TYPES | BYTES | HALVES) and any(i.type.tensor_type.elem_type in HALVES for i in infos)


@cache
def _all_cases():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's, while it computes its cases
        return list(collect_testcases(None))


@cache
def _cases():
    return [case for case in _all_cases() if _is_core(case) or _is_quantized(case) or _is_half(case)]


def _tests(cases):
    return [BackendTest(c.name, c.model, tuple(c.data_sets), c.rtol, c.atol) for c in cases]


@cache
def all_node_tests():
    """Every node test of onnx, whatever it takes: what tools/onnx_backend.py counts."""
    return _tests(_all_cases())


@cache
def node_tests():
    """The core set, as onnx makes it."""
    return _tests(case for case in _cases() if _is_core(case))


@cache
def quantized_tests():
    """Those of 8-bit integers."""
    return _tests(case for case in _cases() if _is_quantized(case))


@cache
def half_tests():
    """Those of 16-bit floats."""
    return _tests(case for case in _cases() if _is_half(case))


@cache
def model_tests():
    """The models that come with onnx."""
    package = Path(onnx.__file__).parents[1]
    return [
        BackendTest(
            f"{kind}/{case.name}",
            Path(case.model_dir) / "model.onnx" if case.model_dir else package / case.url,
            rtol=case.rtol,
            atol=case.atol,
        )
        for kind in _MODELS
        for case in load_model_tests(kind=kind)
    ]


def _lines(file):
    return [line for line in (_FOLDER / file).read_text().splitlines() if line and not line.startswith("#")]


@cache
def expected_failures():
    """Test name to the reason why it does not pass."""
    return dict(line.split(": ", 1) for line in _lines("onnx_backend_failures.txt"))


@cache
def without_dispatches():
    """Tests that need no kernel: shapes, views and values that are known when the graph is planned."""
    return set(_lines("onnx_backend_without_dispatches.txt"))
