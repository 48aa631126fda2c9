"""ONNX's own node test cases through the importer, the binder and the passes, evaluated by the ops' references.

The cases come with the onnx package: a model of one node (or of the nodes that a function expands to), inputs and
expected outputs. What the importer refuses with UnsupportedError is left out here; nothing else may fail.
"""

import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
sys.path.append(str(Path(__file__).parents[1] / "pure"))

from graph_kit import evaluate  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from vkconv.core import GraphError, UnsupportedError  # noqa: E402
from vkconv.graph.onnx import load_onnx  # noqa: E402
from vkconv.graph.onnx.rules import RULES  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402
from vkconv.plan.passes import optimize  # noqa: E402

# Cases that ask for something vkconv refuses by design, with the words that the refusal must hold.
REFUSED = {
    r"test_(blackman|hamming|hann)window(_symmetric)?_expanded": "depends on the values of an input",
    r"test_center_crop_pad_.*_expanded": "depends on the values of an input",
    r"test_maxpool_2d_uint8": "float dtype, not 1x1x5x5:u8",
    r"test_pow_types_int(32|64)_int(32|64)": "cast them to f32 first",
    r"test_reduce_(min|max)_(bool_inputs|empty_set_bool)": "cast it to f32 first",
}
# Cases whose expected values the package gives rounded to four digits.
ROUNDED = {"test_averagepool_2d_ceil_last_window_starts_on_pad"}
# Cases whose declared input shapes are not those of their inputs.
INCONSISTENT = {"test_castlike_FLOAT_to_FLOAT16_expanded", "test_castlike_FLOAT16_to_FLOAT_expanded"}


def supported_cases():
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        if {node.op_type for node in case.model.graph.node} <= set(RULES) and case.name not in INCONSISTENT:
            yield pytest.param(case, id=case.name)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the package's, while it computes its cases
    CASES = list(supported_cases())


def bind_case(case, path):
    """The bound graph and its inputs; inputs that vkconv needs when it plans become constants, as in real models."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    names = [info.name for info in model.graph.input]
    arrays = {name: np.asarray(array) for name, array in zip(names, case.data_sets[0][0], strict=False)}
    while True:
        path.write_bytes(model.SerializeToString())
        try:
            graph = load_onnx(path)
        except UnsupportedError:
            pytest.skip("the importer refuses it")
        inputs = {name: arrays[name] for name in graph.inputs}
        try:
            return bind(graph, OPS, {name: array.shape for name, array in inputs.items()}), inputs
        except GraphError as error:
            needed = re.search(r"comes from '(\w+)', which depends", str(error))
            info = next((i for i in model.graph.input if needed and i.name == needed[1]), None)
            if info is None:
                raise
            model.graph.initializer.append(numpy_helper.from_array(arrays[info.name], info.name))
            model.graph.input.remove(info)


@pytest.mark.parametrize("case", CASES)
def test_case(case, tmp_path):
    words = next((w for pattern, w in REFUSED.items() if re.fullmatch(pattern, case.name)), None)
    if words is not None:
        with pytest.raises(GraphError, match=words):
            bind_case(case, tmp_path / "case.onnx")
        return
    bound, inputs = bind_case(case, tmp_path / "case.onnx")
    for graph in (bound, optimize(bound, OPS)):
        for got, want in zip(evaluate(graph, inputs), case.data_sets[0][1], strict=False):
            want = np.asarray(want)
            assert got.shape == want.shape
            rtol = 2e-3 if want.dtype == np.float16 else 5e-4 if case.name in ROUNDED else 1e-5
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=rtol / 10, equal_nan=True
            )


def test_there_are_many_cases():
    """A change of the onnx package or of the rules must not empty this suite unnoticed."""
    assert len(CASES) > 700
