"""fully_connected without a device: which calls and devices take it, what it launches, and what it refuses."""

import pytest

from vkconv.core import RouteError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.fully_connected import FULLY_CONNECTED
from vkconv.ops.core.calls import parse_call
from vkconv.route import choose, judge

ROUTES = OPS["conv2d"].routes
# Both products of squeeze-and-excite in regnet, efficientnet and mobilenet, with one image and with 32.
GATES = (
    "x=1x672x1x1,w=168x672x1x1,b=168,act=relu",
    "x=1x1536x1x1,w=64x1536x1x1,b=64,act=silu,dtype=f16",
    "x=1x48x1x1,w=1152x48x1x1,b=1152,act=sigmoid",
    "x=1x8x1x1,w=32x8x1x1,b=32,act=sigmoid,dtype=f16",
    "x=32x336x1x1,w=84x336x1x1,b=84,act=relu",
    "x=32x1536x1x1,w=64x1536x1x1,dtype=f16",
    "x=32x1536x1x1,w=64x1536x1x1,dtype=bf16",
)


def taken(text, device):
    return choose(ROUTES, parse_call(f"conv2d:{text}", OPS), load_device(device)).route.name


@pytest.mark.parametrize("device", ["h200", "mali-g715", "adreno-740"])
@pytest.mark.parametrize("text", GATES)
def test_gates_are_skinny_products_on_gpus(text, device):
    assert taken(text, device) == "fully_connected"


@pytest.mark.parametrize(
    ("text", "device", "is_taken"),
    [
        ("x=1x672x7x7,w=168x672x1x1", "h200", False),
        ("x=1x672x7x7,w=168x672x1x1", "mali-g715", False),
        ("x=1x512x7x7,w=512x512x7x7", "h200", True),
        ("x=1x512x7x7,w=512x512x7x7,p=1", "h200", False),
        ("x=1x672x1x1,w=168x672x1x1,s=2x3,d=2", "h200", True),
        ("x=1x672x1x1,w=168x336x1x1,g=2", "h200", False),
        ("x=64x672x1x1,w=168x672x1x1", "h200", True),
        ("x=65x672x1x1,w=168x672x1x1", "h200", False),
        ("x=1000x672x1x1,w=10x672x1x1", "h200", True),  # few output channels
        ("x=31x2048x1x1,w=2048x2048x1x1", "h200", True),
        ("x=32x2048x1x1,w=2048x2048x1x1", "h200", False),  # 2^27 multiply-adds
        ("x=1x1536x1x1,w=64x1536x1x1", "lavapipe", True),
        ("x=1x1535x1x1,w=64x1535x1x1", "lavapipe", False),
        ("x=513x256x1x1,w=1000x256x1x1", "lavapipe", False),
    ],
)
def test_few_images_or_channels_of_a_whole_plane_take_it(text, device, is_taken):
    assert (taken(text, device) == "fully_connected") is is_taken


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x=1x672x7x7,w=168x672x1x1",
            "needs a kernel as large as the planes, no padding, and here it is 1x1 over 7x7, padding 0x0x0x0",
        ),
        ("x=1x3x5x5,w=4x3x5x5,p=1", "and here it is 5x5 over 5x5, padding 1x1x1x1"),
        ("x=1x6x1x1,w=4x3x1x1,g=2", "needs groups 1, and here it is 2 groups"),
    ],
)
def test_forced_where_it_does_not_apply_it_says_why(text, message):
    with pytest.raises(RouteError, match=message):
        choose(ROUTES, parse_call(f"conv2d:{text}", OPS), load_device("h200"), forced="fully_connected")


@pytest.mark.parametrize(
    ("text", "swap", "operands", "by_row"),
    [("x=3x20x2x3,w=33x20x2x3,b=33", 0, ("x", "w"), False), ("x=33x20x1x1,w=3x20x1x1,b=3", 1, ("w", "x"), True)],
)
def test_it_is_one_launch_of_operands_as_they_lie(text, swap, operands, by_row):
    call, device = parse_call(f"conv2d:{text}", OPS), load_device("h200")
    assert FULLY_CONNECTED.resolve(call, device, {})["swap"] == swap
    program = FULLY_CONNECTED.build(call, device)
    (step,) = program.steps
    assert not program.prepack and not program.scratch
    assert (step.buffers["a"], step.buffers["b"]) == operands
    assert {step.constants[name] for name in ("A_VEC4", "B_VEC4", "B_BY_ROW")} == {True}
    assert step.constants["BIAS_BY_ROW"] is by_row


def test_refused_by_policy_it_can_be_forced_on_any_number_of_images():
    call, device = parse_call("conv2d:x=500x64x1x1,w=500x64x1x1", OPS), load_device("h200")
    verdict = judge(FULLY_CONNECTED, call, device)
    assert verdict.allowed and not verdict.preferred
    assert verdict.actual.startswith("500x500 over 64, 16000000 products, of 0 or more up to 64 (measured: ")


def test_squeeze_excite_takes_it_for_both_products():
    call = parse_call("squeeze_excite:x=1x672x14x14,w1=168x672x1x1,b1=168,w2=672x168x1x1,b2=672", OPS)
    choice = choose(OPS["squeeze_excite"].routes, call, load_device("h200"), forced="unfused")
    assert [choice.inner[name].route.name for name in ("squeeze", "excite")] == ["fully_connected"] * 2
