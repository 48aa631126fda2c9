"""What chooses parameters: every route that has some does it by a cost model or by rows of policies, which it reads."""

import pytest

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.plan.chosen import Chosen, chosen_by
from vkconv.route import Route

DEVICES = {name: load_device(name) for name in ("h200", "lavapipe", "mali-g715")}
NONE = Route("none", lambda call, device, params: None, (), "").params  # of a route that declares none


def all_chosen(name: str) -> dict[str, Chosen]:
    """By route of an op, on all of the devices together."""
    found = dict[str, Chosen]()
    for device in DEVICES.values():
        for route, one in chosen_by(OPS[name], device).items():
            found[route] = found.get(route, Chosen()) | one
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.routes])
def test_parameters_are_chosen_by_a_cost_or_a_policy(name: str) -> None:
    found = all_chosen(name)
    with_some = {route.name for route in OPS[name].routes if route.params is not NONE}
    assert with_some <= found.keys(), "no case of the op takes them on these devices"
    asked = {route: one for route, one in found.items() if one.parameters}
    by_none = [route for route, one in asked.items() if not (one.by_cost or one.policies or one.by_call)]
    assert not by_none, "numbers of a device belong into a policy or a cost model, what is left is by_call"
    # What somebody reads why has a reason, and no other one.
    assert not [route for route, one in asked.items() if one.by_call and (one.by_cost or one.policies)]


@pytest.mark.long
def test_cost_models_read_their_device_from_the_target() -> None:
    """Of what a device is a cost model knows its numbers; what it takes from elsewhere is no microsecond of it."""
    for name in ("conv2d", "conv2d_backward_weight", "matmul", "pool2d", "separable_conv2d", "inverted_residual"):
        for route, one in all_chosen(name).items():
            if one.by_cost and one.parameters:
                assert {"compute_units", "clock_mhz"} <= {*one.numbers}, (name, route)


def test_what_chooses_is_told_with_what_rows_rest_on() -> None:
    h200, mali = DEVICES["h200"], DEVICES["mali-g715"]
    gemm = chosen_by(OPS["conv2d"], h200)["implicit_gemm"]
    assert {"tile", "split_k"} <= {*gemm.parameters} and gemm.by_cost
    said = gemm.said(h200)
    assert said.startswith("cost; ") and "conv2d.vec4_columns (judged by its table, upheld)" in said
    assert gemm.data(h200)["policies"]["conv2d.gemm_costs"] == "fitted"
    assert gemm.data(mali)["policies"]["conv2d.gemm_costs"] == "assumed"
    assert chosen_by(OPS["relu"], mali)["elementwise"].said(mali) == "rule; kernels.workgroups (assumed)"
