"""Every case of every op on every route that can take it, against the float64 reference."""

import numpy as np
import pytest

from vkconv.backend.runtime import select_device
from vkconv.check import run_call
from vkconv.ops import OPS
from vkconv.ops.calls import parse_call
from vkconv.ops.tolerance import tolerance
from vkconv.plan.bound import widen
from vkconv.route import judge

CASES = [(text, route.name) for op in OPS.values() for text in op.cases for route in op.routes]


def draw(call, kind, seed=7):
    """Inputs of a call: small integers (every partial sum is exact in f32) or normals."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, spec in call.operands.items():
        if spec is None:
            continue
        if not spec.dtype.is_float or kind == "integers":
            arrays[name] = rng.integers(0 if spec.dtype == "bool" else -3, 4, spec.dims).astype(spec.dtype.numpy)
        else:
            arrays[name] = rng.standard_normal(spec.dims).astype(spec.dtype.numpy)
    return arrays


@pytest.mark.parametrize("kind", ["integers", "normals"])
@pytest.mark.parametrize(("text", "route"), CASES, ids=[f"{t}-{r}" for t, r in CASES])
def test_route_agrees_with_the_reference(text, route, kind, device):
    call = parse_call(text, OPS)
    op = OPS[call.op]
    chosen = next(r for r in op.routes if r.name == route)
    _, facts = select_device(device)
    verdict = judge(chosen, call, facts)
    if not verdict.allowed:
        pytest.skip(f"{route} needs {verdict.refused_by}, here {verdict.actual}")
    arrays = draw(call, kind)
    ran = run_call(call, arrays, device=device, route=route, replays=2)
    assert ran.route == (route if any(spec.size for spec in call.outputs.values()) else "empty")
    operands = dict.fromkeys(call.operands) | {name: widen(a) for name, a in arrays.items()}
    with np.errstate(all="ignore"):
        expected = op.reference(call, operands)
    for (name, spec), first, again, want in zip(
        call.outputs.items(), ran.outputs[0], ran.outputs[1], expected, strict=True
    ):
        assert first.tobytes() == again.tobytes(), f"{name} differs between two replays"
        assert first.shape == spec.dims and first.dtype == spec.dtype.numpy
        allowed = tolerance(call, want, op.terms(call))
        np.testing.assert_allclose(first.astype(np.float64), want, rtol=0, atol=allowed, equal_nan=True)
