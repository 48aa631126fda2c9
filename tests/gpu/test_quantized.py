"""8-bit integers over their whole range, with scales that spread the results over that of a byte."""

import numpy as np
import pytest

from vkconv.backend.runtime import select_device
from vkconv.check import check_call, run_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import judge

pytestmark = pytest.mark.gpu
U8_I8 = "x={}:u8,w={}:i8,x_scale=scalar,y_scale=scalar,x_zero=scalar:u8,w_scale={c},w_zero={c}:i8,y_zero=scalar:u8"
I8_U8 = "x={}:i8,w={}:u8,x_scale=scalar,y_scale=scalar,x_zero=1:i8,w_scale=scalar,w_zero=scalar:u8,y_zero=scalar:i8"
# Tails of all tiles; rows and planes that are whole fours or not; sums past 2^24; strides; dilation; groups.
CONVS = (
    ("2x5x11x9 7x5x3x3", "p=1"),
    ("1x70x12x12 37x70x3x3", "p=1"),
    ("1x19x7x20 21x19x3x3", "p=1x2x0x1,s=2"),
    ("2x67x7x8 35x67x1x1", ""),
    ("1x9x6x6 17x9x1x1", "p=1"),
    ("1x700x3x4 18x700x1x1", "s=1x2"),
    ("2x7x13x16 7x1x3x3", "g=7,p=1"),
    ("1x12x9x16 36x4x3x3", "g=3,p=2,d=2"),
    ("1x5x3x48 9x5x1x5", "d=1x3"),
)


def whole_range(call, seed=0):
    """Bytes from end to end, zero points about the middle, and scales that take sums to a good part of that range."""
    rng, arrays = np.random.default_rng(seed), {}
    for name, spec in call.operands.items():
        if spec is None:
            continue
        if spec.dtype.is_float:
            arrays[name] = rng.uniform(0.5, 2, spec.dims).astype(np.float32)
        elif spec.dtype.nbytes == 1:
            low, high = (-10, 10) if name.endswith("zero") else (-128, 128)
            middle = 0 if spec.dtype == "i8" else 128
            arrays[name] = (middle + rng.integers(low, high, spec.dims)).astype(spec.dtype.numpy)
        else:
            arrays[name] = rng.integers(-(2**17), 2**17, spec.dims).astype(np.int32)
    if "y_scale" in arrays:
        terms = np.prod(call.shape("w")[1:]) if "w" in arrays else call.shape("a")[-1]
        arrays["y_scale"] = (arrays["y_scale"] * 160 * np.sqrt(terms)).astype(np.float32)
    return arrays


def on_every_route(text, device, arrays_of=whole_range, **params):
    call = parse_call(text, OPS)
    _, facts = select_device(device)
    ran = []
    for route in OPS[call.op].routes:
        if judge(route, call, facts).allowed:
            run, checked = check_call(call, arrays_of(call), device=device, route=route.name, **params)
            assert run.route == route.name
            assert checked.ok, f"{text} by {route.name}: {checked.problem}"
            ran.append(route.name)
            (first, *_) = run.outputs
            if first[0].dtype.itemsize == 1 and first[0].size > 100:
                assert len(np.unique(first[0])) > 20  # not all at the ends
    return ran


def conv(kinds, shapes, attrs, bias=False):
    x, w = shapes.split(" ")
    c = w.split("x")[0]
    more = [attrs] * bool(attrs) + [f"b={c}:i32"] * bias
    return ",".join([f"qlinear_conv:{kinds.format(x, w, c=c)}", *more])


@pytest.mark.parametrize(("shapes", "attrs"), CONVS)
def test_every_route_gives_the_bytes_of_the_reference(shapes, attrs, device):
    assert "direct" in on_every_route(conv(U8_I8, shapes, attrs, bias=True), device)
    on_every_route(conv(I8_U8, shapes, attrs), device)


@pytest.mark.parametrize("text", ["x={}:u8,w={}:i8,x_zero=1:u8", "x={}:u8,w={}:u8", "x={}:i8,w={}:u8,w_zero={c}:u8"])
def test_sums_are_exact(text, device):
    for shapes, attrs in (*CONVS[1:3], CONVS[5], CONVS[6]):
        x, w = shapes.split(" ")
        call = ",".join(filter(None, [text.format(x, w, c=w.split("x")[0]), attrs]))
        on_every_route(f"conv_integer:{call}", device)


def test_sums_of_only_the_largest_products_are_exact(device):
    """4000 times 255 times -128, far past what a float holds."""

    def largest(call):
        x, w = (np.full(call.shape(name), value) for name, value in (("x", 255), ("w", -128)))
        return {"x": x.astype(np.uint8), "w": w.astype(np.int8), "x_zero": np.uint8(0)}

    on_every_route("conv_integer:x=1x4000x2x4:u8,w=3x4000x1x1:i8,x_zero=scalar:u8", device, largest)


def test_halves_go_to_the_even_number_and_ends_saturate(device):
    def halves(call):
        x = np.arange(256, dtype=np.uint8).reshape(call.shape("x"))
        ones = {name: np.float32(1) for name in ("x_scale", "w_scale")}
        zeros = {"x_zero": np.uint8(0), "w_zero": np.int8(0), "y_zero": np.int8(-3)}
        return {"x": x, "w": np.ones((1, 1, 1, 1), np.int8), **ones, **zeros, "y_scale": np.float32(2)}

    scales = "x_scale=scalar,w_scale=scalar,y_scale=scalar"
    text = f"x=1x1x16x16:u8,w=1x1x1x1:i8,{scales},x_zero=scalar:u8,w_zero=scalar:i8,y_zero=scalar:i8"
    on_every_route(f"qlinear_conv:{text}", device, halves)
    call = parse_call(f"qlinear_conv:{text}", OPS)
    ((y,),) = run_call(call, halves(call), device=device).outputs
    even = np.array([0, 0, 1, 2, 2, 2, 3, 4, 4]) - 3
    np.testing.assert_array_equal(y.ravel()[:9], even)
    assert y.max() == 125


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("conv_integer:x=1x1x911x641:u8,w=1x1x1x1:i8,x_zero=scalar:u8", "direct"),
        ("conv_integer:x=70000x1x2x1:u8,w=1x1x2x1:i8", "tile"),
        ("matmul_integer:a=70000x1x2:u8,b=70000x2x9:i8,a_zero=scalar:u8", "direct"),
        ("matmul_integer:a=70000x1x2:u8,b=70000x2x9:i8", "subgroup"),
    ],
)
def test_more_workgroups_than_one_axis_has(text, route, device):
    call = parse_call(text, OPS)
    params = {"local": 8} if route == "direct" else {}
    run, checked = check_call(call, whole_range(call), device=device, route=route, params=params)
    assert run.route == route and checked.ok, checked.problem


def test_sums_of_nothing_are_0(device):
    for route in ("dot", "shared", "subgroup", "direct"):
        call = parse_call("matmul_integer:a=5x0:u8,b=0x8:i8", OPS)
        ((y,),) = run_call(call, whole_range(call), device=device, route=route).outputs
        assert y.shape == (5, 8) and not y.any()
    call = parse_call("conv_integer:x=0x3x5x5:u8,w=4x3x3x3:i8", OPS)
    ((y,),) = run_call(call, whole_range(call), device=device).outputs
    assert y.shape == (0, 4, 3, 3)


# Divisors of every length, the subnormal ones too; what divides them lies at and beside the middle of two numbers.
def hard_divisions(seed):
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 1, 64).astype(np.float32) * np.exp2(rng.integers(-100, 100, 64), dtype=np.float32)
    scale[:8] = [1e-40, 2.0**-126, 2.0**-149, 2.0**127, 3e38, 1.0, 0.1, np.inf]
    with np.errstate(all="ignore"):
        x = ((rng.integers(-300, 300, (1000, 64)) + 0.5) * scale.astype(np.float64)).astype(np.float32)
        beside = np.where(rng.random(x.shape) < 0.5, np.float32(np.inf), np.float32(-np.inf))
        x = np.where(rng.random(x.shape) < 0.6, np.nextafter(x, beside), x)
    x[:2, :8] = [[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, 5.0]] * 2
    return x, scale


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_quantization_rounds_as_f32_says(dtype, device):
    x, scale = hard_divisions(1)
    zero = np.arange(-32, 32).astype(np.int8) if dtype == "i8" else np.arange(96, 160).astype(np.uint8)
    text = f"quantize_linear:x=1000x64,y_scale=64,y_zero=64:{dtype}"
    ((y,),) = run_call(parse_call(text, OPS), {"x": x, "y_scale": scale, "y_zero": zero}, device=device).outputs
    with np.errstate(all="ignore"):
        quotient = np.nan_to_num(np.rint(x / scale), nan=0.0).astype(np.float64) + zero
    info = np.iinfo(y.dtype)
    np.testing.assert_array_equal(y, np.clip(quotient, info.min, info.max))


@pytest.mark.parametrize("seed", range(8))
def test_dynamic_scales_are_those_of_f32(seed, device):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(1031) * 10.0 ** rng.integers(-6, 6) + rng.uniform(-2, 2)).astype(np.float32)
    if seed == 0:
        x[:] = 0
    if seed == 1:
        x[5] = np.nan
    ((y, scale, zero),) = run_call(parse_call("dynamic_quantize_linear:x=1031", OPS), {"x": x}, device=device).outputs
    low, high = np.nanmin(x, initial=0), np.nanmax(x, initial=0)
    want = np.float32(high - low if high != low else 1) / np.float32(255)
    assert scale == want
    assert zero == np.clip(np.rint(-low / want), 0, 255)
    quantized = np.nan_to_num(np.rint(x / want), nan=0.0) + zero
    np.testing.assert_array_equal(y, np.clip(quantized, 0, 255))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 64, 67])
def test_bytes_of_any_count_fill_their_words(count, device):
    x = np.random.default_rng(count).uniform(-300, 300, count).astype(np.float32)
    for dtype in (np.int8, np.uint8):
        info, name = np.iinfo(dtype), {np.int8: "i8", np.uint8: "u8"}[dtype]
        want = np.clip(np.trunc(x), info.min, info.max).astype(dtype)
        ((y,),) = run_call(parse_call(f"cast:x={count},to={name}", OPS), {"x": x}, device=device).outputs
        np.testing.assert_array_equal(y, want)
        for to in ("f32", "i32", "i64", "bool", "u8", "i8"):
            ((z,),) = run_call(parse_call(f"cast:x={count}:{name},to={to}", OPS), {"x": want}, device=device).outputs
            np.testing.assert_array_equal(z, want.astype(z.dtype))


QLINEAR = "a_scale={m},a_zero={m}:u8,b_scale={n},b_zero={n}:i8,y_scale=scalar,y_zero=scalar:i8"


@pytest.mark.parametrize(
    "text",
    [
        f"qlinear_matmul:a=67x130:u8,b=130x140:i8,{QLINEAR.format(m=67, n=140)}",
        f"qlinear_matmul:a=67x130:u8,b=130x140:i8,{QLINEAR.format(m='scalar', n=140)}",
        f"qlinear_matmul:a=3x9x700:u8,b=700x20:i8,{QLINEAR.format(m=9, n='scalar')}",
        f"qlinear_matmul:a=5x31:u8,b=2x31x7:i8,{QLINEAR.format(m='1', n='1x7')}",
        "matmul_integer:a=17x300:u8,b=300x33:i8,a_zero=17:u8,b_zero=33:i8",
        "matmul_integer:a=2x1x9x16:u8,b=3x16x20:u8,a_zero=1:u8",
        "matmul_integer:a=9x4003:i8,b=4003x12:i8",
    ],
)
def test_products_of_matrices_are_those_of_the_reference(text, device):
    on_every_route(text, device)
