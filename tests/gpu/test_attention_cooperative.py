"""Attention by cooperative matrices, where a device has them (docs/testing_devices.md: a driver that does on a CPU)."""

import numpy as np
import pytest
from route_kit import draw

from vkconv.backend.runtime import select_device
from vkconv.check import check_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.fused.attention_cooperative import COOPERATIVE, TILES
from vkconv.route import judge

pytestmark = pytest.mark.gpu
drivers = pytest.mark.drivers
# Windows with both of Swin's masks; several steps, whose last one has few keys; one query; heads in several parts of a
# line, and of no whole matrices or vectors; masks that broadcast; keys side by side; more blocks than one.
MORE = (
    "attention:q=4x3x49x32,k=4x3x49x32,v=4x3x49x32,mask=2x3x49x49",
    "attention:q=1x2x197x64,k=1x2x197x64,v=1x2x197x64",
    "attention:q=1x2x1x64,k=1x2x1000x64,v=1x2x1000x64",
    "attention:q=1x2x130x80,k=1x2x130x80,v=1x2x130x80,causal=1",
    "attention:q=2x4x33x16,k=2x2x97x16,v=2x2x97x16,mask=97,zero=0",
    "attention:q=1x2x70x48,k=1x2x48x83,v=1x2x83x40,tk=1,mask=2x70x1",
    "attention:q=1x3x49x96,k=1x1x49x96,v=1x1x49x24,mask=1x1x49x49",
    "attention:q=1x2x67x128,k=1x2x128x72,v=1x2x72x128,tk=1,causal=1",
    "attention:q=1x1x19x72,k=1x1x41x72,v=1x1x41x40,mask=19x41",
    "attention:q=2x65x17,k=2x129x17,v=2x129x9,scale=0.5",
    "attention:q=1x2x17x8,k=1x2x3x8,v=1x2x3x8",
)


@pytest.fixture(scope="module")
def facts(device):
    _, facts = select_device(device)
    return facts


def call_of(text, dtype, facts):
    """The call in that type; where the device cannot take it, the test is skipped."""
    call = parse_call(f"{text},dtype={dtype}", OPS)
    verdict = judge(COOPERATIVE, call, facts)
    if not verdict.allowed:
        pytest.skip(f"it needs {verdict.refused_by}, here {verdict.actual}")
    return call


def agrees(call, device, arrays=None, **params):
    """With the smallest tile on a CPU driver, which takes a minute to compile a large one."""
    _, facts = select_device(device)
    small = {"tile": "16x32_8"} if facts.kind == "cpu" else {}
    params = small | params
    ran, checked = check_call(
        call, arrays or draw(call, "normals"), device=device, route=COOPERATIVE.name, params=params
    )
    assert ran.route == COOPERATIVE.name and checked.ok, f"{format_call(call, OPS)} {params}: {checked.problem}"
    return ran.outputs[0][0]


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("text", [*OPS["attention"].cases, *(pytest.param(text, marks=drivers) for text in MORE)])
def test_every_case_agrees_with_the_reference(text, dtype, facts, device):
    agrees(call_of(text, dtype, facts), device)


@drivers
@pytest.mark.share(4)
@pytest.mark.parametrize("tile", [*reversed(TILES)])
def test_every_tile_agrees_with_the_reference(tile, facts, device):
    for text in (MORE[0], "attention:q=1x1x75x32,k=1x1x32x150,v=1x1x150x40,tk=1,causal=1"):
        call = call_of(text, "f16", facts)
        if tile in COOPERATIVE.params(call, facts)["tile"]:
            agrees(call, device, tile=tile)


@drivers
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rows_that_see_nothing_are_0_and_infinite_scores_make_their_row_nan(dtype, facts, device):
    call = call_of("attention:q=1x2x35x32,k=1x2x131x32,v=1x2x131x16,mask=35x131", dtype, facts)
    arrays = draw(call, "normals")
    mask = np.where(np.random.default_rng(3).random((35, 131)) < 0.5, -np.inf, 0)
    mask[[0, 17, 34]] = -np.inf
    mask[5, :-1] = -np.inf  # nothing but the last key, which lies in the last step
    mask[5, -1] = 0
    mask[6, 1:] = -np.inf  # nothing but the first
    mask[3, 2], mask[4, 130], mask[7, 70] = np.inf, np.nan, np.inf
    arrays["mask"] = mask.astype(arrays["mask"].dtype)
    y = agrees(call, device, arrays)
    assert not y[:, :, [0, 17, 34]].astype(np.float32).any()
    assert np.isnan(y.astype(np.float32)).all(-1)[0].nonzero()[1].tolist() == [3, 4, 7] * 2


@drivers
@pytest.mark.parametrize("falling", [False, True])
def test_scores_that_rise_from_step_to_step_lose_nothing(falling, facts, device):
    """Every step has a larger score than all before it, by more than f16 has exponents for."""
    call = call_of("attention:q=1x1x17x16,k=1x1x200x16,v=1x1x200x16,scale=1", "f16", facts)
    arrays = draw(call, "normals")
    arrays["q"][:] = 1
    arrays["k"][:] = np.arange(200)[:: -1 if falling else 1, None] * 2
    y = agrees(call, device, arrays)
    np.testing.assert_array_equal(y[0, 0], np.broadcast_to(arrays["v"][0, 0, 0 if falling else -1], y[0, 0].shape))
