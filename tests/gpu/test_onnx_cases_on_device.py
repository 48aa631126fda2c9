"""ONNX's own node test cases on the device, over memory filled with NaN bits, replayed: those that test_onnx_backend
does not run, of other element types than the core ones or expanded to the functions that define them."""

import numpy as np
import pytest
from onnx_backend_tests import node_tests
from onnx_cases import supported_cases

from vkconv.core import DType, RouteError
from vkconv.loading import load
from vkconv.session import Session

pytestmark = pytest.mark.gpu
CASES = [case for case in supported_cases(frozenset(test.name for test in node_tests())) if not case.refusal]
# What kernels compute with so far; values of other types only fold on the host.
COMPUTED = {DType.F32, DType.I32, DType.I64, DType.BOOL}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.share(1)
def test_the_device_gives_what_onnx_expects(case, device):
    try:
        if case.is_staged:
            session = load(case.graph, device)
        else:
            session = Session(case.graph, device, shapes=case.shapes, poison=True)
    except RouteError as error:
        assert " elements" in str(error)
        assert not {spec.dtype for spec in case.graph.inputs.values()} <= COMPUTED
        return
    with session:
        first, second = session.run(case.inputs), session.run(case.inputs)
    for name, want in zip(case.graph.outputs, case.wanted, strict=False):
        assert first[name].dtype == want.dtype
        assert first[name].tobytes() == second[name].tobytes(), f"{name} differs between two replays"
    case.check([first[name] for name in case.graph.outputs], 2e-5)


def test_many_cases_run():
    types = [{spec.dtype for spec in case.graph.inputs.values()} for case in CASES]
    assert len(types) >= 290 and np.sum([found <= COMPUTED for found in types]) >= 200
