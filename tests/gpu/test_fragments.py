"""cooperative_fragment on devices with cooperative matrices (docs/testing_devices.md: a driver that has them on a CPU).

Stages and slices of any number of steps, what lanes hold, what is not finite."""

import numpy as np
import pytest
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, expect
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d import coopmat_fragment
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels import coopmat
from vkconv.ops.kernels.coopmat import FRAGMENT_TILES, MATRICES, FragmentTile, matrix_of

pytestmark = [pytest.mark.gpu, pytest.mark.drivers]
ROUTE = "cooperative_fragment"


def of_f16(text):
    return parse_call(f"conv2d:{text},dtype=f16", OPS)


@pytest.fixture(scope="module")
def facts(device):
    _, facts = select_device(device)
    call = of_f16("x=1x8x4x4,w=8x8x1x1")
    if not MATRICES.test(call, facts):
        pytest.skip(f"{facts.name} has {MATRICES.actual(call, facts)}")
    return facts


@pytest.fixture
def tiles(facts, monkeypatch):
    """Names of tiles of one matrix a subgroup, of two stages and three: a CPU driver takes minutes for larger ones."""
    matrix = matrix_of(facts)
    small = (
        FragmentTile(2 * matrix.m, 2 * matrix.n, 2 * matrix.k, matrix.m, matrix.n, stages=stages) for stages in (2, 3)
    )
    named = {tile.name: tile for tile in small}
    for name, tile in named.items():
        monkeypatch.setitem(FRAGMENT_TILES, name, tile)
    monkeypatch.setattr(coopmat, "_held", coopmat._held.__wrapped__)  # which keeps what tiles there are
    return tuple(named)


def right(call, device, params, kind="integers"):
    arrays = draw(call, kind)
    ran, checked = check_call(call, arrays, device=device, route=ROUTE, params=params)
    assert checked.ok, f"{params}: {checked.problem}"
    if kind == "integers":
        np.testing.assert_array_equal(ran.outputs[0][0], expect(call, arrays).outputs[0].astype(np.float16))


@pytest.mark.parametrize("order", [1, 0])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
def test_any_number_of_steps_agrees_with_the_reference(taps, order, tiles, facts, device):
    """One block of channels and two, so many taps of each, and slices of some of these."""
    for channels in (matrix_of(facts).k - 1, matrix_of(facts).k + 3):
        call = of_f16(f"x=2x{channels}x3x9,w=11x{channels}x1x{taps}")
        for tile in tiles:
            for slices in (1, 2, 3):
                right(call, device, {"tile": tile, "fragment_order": order, "split_k": slices})


@pytest.mark.parametrize(
    "text",
    [
        "x=2x26x7x9,w=34x13x3x3,g=2,s=2,p=1,b=34,act=relu",
        "x=3x9x8x8,w=10x9x2x3,p=1x0x2x3,d=2x3,residual=3x10x9x5",
        "x=2x24x5x8,w=17x24x1x1,s=2x3,p=1",
        "x=1x40x6x10,w=24x40x3x3,p=1,out_scale=0.5,out_shift=2",
        "x=2x8x9x7,w=12x4x5x5,g=2,p=0x2x1x2",
    ],
)
@pytest.mark.parametrize("kind", ["integers", "normals"])
def test_windows_agree_with_the_reference(text, kind, tiles, facts, device):
    call = of_f16(text)
    route = next(route for route in OPS["conv2d"].routes if route.name == ROUTE)
    for order in route.params(call, facts)["fragment_order"]:
        right(call, device, {"tile": tiles[1], "fragment_order": order}, kind)


@pytest.mark.parametrize("tile", [0, 1])
def test_what_is_not_finite_stays_in_its_windows(tile, tiles, device):
    """Channels up to whole blocks are zeros in both operands; the last pixel is read in place of those behind it."""
    call = of_f16("x=2x21x5x7,w=37x21x3x3,p=1")
    arrays = draw(call, "integers")
    arrays["x"][1, 3, 0, 6], arrays["x"][0, 20, 4, 6], arrays["x"][1, 20, 4, 6] = np.nan, np.inf, -np.inf
    ran, checked = check_call(call, arrays, device=device, route=ROUTE, params={"tile": tiles[tile]})
    assert checked.ok, checked.problem
    finite = np.ones((2, 5, 7), bool)
    finite[1, :2, 5:] = finite[0, 3:, 5:] = finite[1, 3:, 5:] = False
    np.testing.assert_array_equal(np.isfinite(ran.outputs[0][0]), np.broadcast_to(finite[:, None], (2, 37, 5, 7)))


def test_where_lanes_hold_something_else_nothing_is_made_of_it(tiles, facts, device, monkeypatch):
    """No wrong numbers where a driver's order is not what the policy says: weights are NaN, and so are results."""
    if coopmat_fragment._is_in_runs(facts):
        pytest.skip(f"{facts.name} has that order")
    monkeypatch.setattr(coopmat_fragment, "_orders", lambda device: (2,))
    call = of_f16("x=1x24x4x8,w=16x24x1x1")
    params = {"tile": tiles[0], "fragment_order": 2}
    ran, _ = check_call(call, draw(call, "integers"), device=device, route=ROUTE, params=params)
    assert np.isnan(ran.outputs[0][0]).all()
