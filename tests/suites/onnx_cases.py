"""ONNX's own node test cases, imported once: a graph, inputs and expected outputs, or the text of a refusal.

The cases come with the onnx package: a model of one node (or of the nodes that a function expands to). What the
importer refuses with UnsupportedError is left out.
"""

import dataclasses
import re
import tempfile
import warnings
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
from required import required

required("onnx")
import onnx  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from vkconv.core import DType, GraphError, UnsupportedError  # noqa: E402
from vkconv.graph import Graph  # noqa: E402
from vkconv.graph.onnx import load_onnx, proto, worker  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind, value_inputs  # noqa: E402
from vkconv.plan.stages import cut_stages, is_staged  # noqa: E402

# Cases whose expected values the package gives rounded to four digits.
_ROUNDED = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad",
    "test_gridsample_bicubic",
    "test_roialign_aligned_false",
    "test_roialign_aligned_true",
}
# Cases whose declared input shapes are not those of their inputs.
_INCONSISTENT = r"test_cast(like)?_B?FLOAT(16)?_to_B?FLOAT(16)?(_expanded)?"
# align_corners with scales: these cases divide by the size before it is rounded down, ONNX Runtime (which leaves
# them out of its own tests) and vkconv by the size that the output has.
# Expanded cases round at every step: some units of the last place.
_HALVES = {DType.F16: 2e-3, DType.BF16: 2e-2}
_RANDOM = r"test_(bernoulli.*|training_dropout(_default)?(_mask)?)"  # numpy's numbers
_UNROUNDED = r"test_resize_downsample_scales_(linear|cubic)_align_corners"
# Vulkan asks of a division 2.5 units in the last place, a quotient by the scale that it makes rounds by a half of one:
# where that is all that keeps it from a tie, it may become either neighbour. The NVIDIA H200's is such a one; to round
# every division by what is left of it takes lavapipe two thirds longer.
_TIES, _FROM_A_TIE = r"test_dynamicquantizelinear.*_expanded", 3 * 2.0**-23


@dataclasses.dataclass(frozen=True)
class Case:
    """One case; ``refusal`` is the text of the GraphError that binding it raised, if it did."""

    name: str
    graph: Graph
    inputs: dict[str, np.ndarray]
    wanted: tuple[np.ndarray, ...]
    refusal: str = ""

    @property
    def shapes(self):
        return {name: array.shape for name, array in self.inputs.items()}

    @property
    def is_staged(self):
        """Whether sizes in it depend on values."""
        return is_staged(cut_stages(self.graph, OPS))

    def check(self, outputs, rtol):
        """Hold outputs, in the graph's order, to the expected ones."""
        check_outputs(self.name, self._settled(outputs), self.wanted, rtol)

    def _settled(self, outputs):
        """The outputs, with the wanted neighbour where a quotient that is all but a tie became the other one."""
        if not re.fullmatch(_TIES, self.name):
            return outputs
        (x,), (wanted, scale, zero), (y, *others) = self.inputs.values(), self.wanted, outputs
        quotient = x / np.float64(scale)
        sides = [np.clip(np.rint(quotient * (1 + off)) + zero, 0, 255) for off in (-_FROM_A_TIE, _FROM_A_TIE)]
        return [np.where((y == sides[0]) | (y == sides[1]), wanted, y), *others]


def check_outputs(name, outputs, wanted, rtol):
    """Hold outputs of the case of that name to the expected ones, closer than onnx does."""
    for got, want in zip(outputs, wanted, strict=False):
        assert got.shape == want.shape
        rtol = _HALVES.get(DType.of(want.dtype), 5e-4 if name in _ROUNDED else rtol)
        got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol / 10, equal_nan=True)


def _array(item):
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else np.asarray(item)


def _prepare(case, path):
    """The case imported and bound. Inputs whose values vkconv needs when it plans become constants, as they are in
    real models; None for what the importer refuses."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    (given, wanted), *_ = case.data_sets
    names = [info.name for info in model.graph.input]
    arrays = {name: _array(array) for name, array in zip(names, given, strict=False)}
    while True:
        path.write_bytes(model.SerializeToString())
        try:
            graph = load_onnx(path)
        except UnsupportedError:
            return None
        steering = [info for info in model.graph.input if info.name in value_inputs(graph, OPS)]
        if not steering:
            break
        for info in steering:
            model.graph.initializer.append(numpy_helper.from_array(arrays[info.name], info.name))
            model.graph.input.remove(info)
    made = Case(case.name, graph, {n: arrays[n] for n in graph.inputs}, tuple(map(_array, wanted)))
    try:
        if not made.is_staged:
            bind(graph, OPS, made.shapes)
    except GraphError as error:
        return dataclasses.replace(made, refusal=str(error))
    return made


@cache
def supported_cases(without=frozenset()):
    """Every case that the importer takes, but those of the names ``without``."""
    from onnx.backend.test.case.node import collect_testcases

    # ONNX's own models are whole: what runs in a process of its own, 0.2 s each, may run in this one.
    here = mock.patch.object(proto, "run_apart", lambda task, model: worker.TASKS[task](model))
    with here, warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # the package's, while it computes its cases
        cases = [
            _prepare(case, Path(folder) / "case.onnx")
            for case in collect_testcases(None)
            if case.name not in without
            and not re.fullmatch(f"{_INCONSISTENT}|{_UNROUNDED}|{_RANDOM}", case.name)
            # tests/pure/test_onnx_narrow.py has what is of no type that kernels have.
            and not proto.narrow_types(case.model)
            and all(info.type.WhichOneof("value") == "tensor_type" for info in case.model.graph.input)
        ]
    return [case for case in cases if case is not None]
