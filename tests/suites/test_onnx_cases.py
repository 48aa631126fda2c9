"""ONNX's own node test cases through the importer, the binder and the passes, evaluated by the ops' references."""

import pytest
from graph_kit import evaluate, optimize, run_stages
from onnx_cases import supported_cases

from vkconv.ops import OPS
from vkconv.plan.bound import bind

CASES = supported_cases()


@pytest.mark.parametrize("case", [c for c in CASES if c.is_staged], ids=lambda c: c.name)
def test_the_references_give_it_in_stages(case):
    case.check(run_stages(case.graph, case.inputs), 1e-5)


@pytest.mark.parametrize("case", [c for c in CASES if not c.refusal and not c.is_staged], ids=lambda c: c.name)
def test_the_references_give_what_onnx_expects(case):
    bound = bind(case.graph, OPS, case.shapes)
    case.check(evaluate(bound, case.inputs), 1e-5)
    case.check(evaluate(optimize(bound), case.inputs), 1e-5)


def test_what_is_imported_can_be_bound():
    assert {case.name: case.refusal for case in CASES if case.refusal} == {}


def test_there_are_many_cases():
    """A change of the onnx package or of the rules must not empty this suite unnoticed."""
    assert sum(not case.refusal for case in CASES) >= 1350
