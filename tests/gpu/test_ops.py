"""Every case of every op on every route that can take it, against the float64 reference."""

import functools
import itertools
import os

import pytest
from route_kit import draw, facts_of
from shipped import EXHAUSTIVE

from vkconv.check import expect, on_route, run_call
from vkconv.check.calls import hold
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan import bound
from vkconv.route import judge

# Routes, kinds and parameters of a case follow one another: what a case says and must give is made once for them.
parsed = functools.lru_cache(maxsize=4)(lambda text: parse_call(text, OPS))


@functools.lru_cache(maxsize=4)
def expected(text, kind):
    call = parsed(text)
    return expect(call, draw(call, kind))


def kinds(text):
    """What to draw for a call: normals are integers to one without an operand of floats."""
    specs = parsed(text).operands.values()
    return ("integers", "normals") if any(spec is not None and spec.dtype.is_float for spec in specs) else ("integers",)


# Every other case of each route and every other route of each case; make exhaustive has all.
CASES = [
    (text, route.name)
    for op in OPS.values()
    for i, text in enumerate(op.cases)
    for j, route in enumerate(op.routes)
    if EXHAUSTIVE or (i + j) % 2 == 0
]


@pytest.mark.share(1)
@pytest.mark.parametrize(("text", "route"), CASES, ids=["-".join(case) for case in CASES])
def test_route_agrees_with_the_reference(text, route, device, monkeypatch):
    monkeypatch.setattr(bound, "FOLD_LIMIT_BYTES", 0)  # what has no operands would fold
    call = parsed(text)
    chosen = next(r for r in OPS[call.op].routes if r.name == route)
    verdict = judge(chosen, call, facts_of(device))
    if not verdict.allowed:
        pytest.skip(f"{route} needs {verdict.refused_by}, here {verdict.actual}")
    for kind in kinds(text):
        agrees_with_the_reference(text, route, {}, kind, device)


def agrees_with_the_reference(text, route, params, kind, device):
    call, wanted = parsed(text), expected(text, kind)
    ran = run_call(call, wanted.arrays, device=device, route=route, params=params, replays=2)
    checked = hold(call, ran, on_route(call, wanted, ran.route))
    assert ran.route == (route if any(spec.size for spec in call.outputs.values()) else "empty")
    assert params.items() <= ran.params.items()
    assert checked.ok, f"{route} {params}: {checked.problem}"


# Tails on every side, and calls of each family of parameters. Compiling every combination of two register tiles takes
# minutes on a CPU driver.
EVERY_VALUE = (
    "conv2d:x=1x16x7x37,w=19x16x3x3,p=1,b=19,act=tanh",
    "conv2d:x=2x13x7x11,w=37x13x1x1,b=37,act=silu",
    "conv2d:x=2x7x13x17,w=7x1x3x3,b=7,g=7,p=1",
    "conv2d:x=2x10x7x37,w=14x5x3x3,p=1,b=14,g=2",
    "conv_transpose2d:x=2x5x7x19,w=5x19x3x3,s=2,p=1,b=19,op=1",
    "matmul:a=67x33,b=33x71",
    "matmul:a=131x17,b=17x5,bias=5",
    "matmul:a=3x1x17x40,b=2x33x40,trans_b=1",
    "softmax:x=5x131",
    "softmax:x=37x132,log=1",
    "layer_norm:x=5x67,scale=67,bias=67",
    "layer_norm:x=37x132,scale=132,bias=132,stats=1",
    "batch_norm_training:x=3x2x5x8,scale=2,bias=2,mean=2,var=2",
    "gemm_reduce:a=2x67x19,b=19x131,bias=131,axis=m",
    "conv_reduce:x=5x13x5x7,w=7x13x1x1,b=7,op=max",
    "conv_integer:x=1x9x5x37:u8,w=19x9x3x3:i8,x_zero=scalar:u8,p=1",
    "matmul_integer:a=67x33:u8,b=33x71:i8,a_zero=scalar:u8",
    "recurrence:x=3x2x148,r=1x37x148,extra=1x111",
    "recurrence:x=3x2x111,r=1x37x111,cell=gru",
    "reduce:x=13x1031,op=l2,axes=1",
    "reduce:x=3x67x140,op=max,axes=1",
    "arg_reduce:x=5x67x9,axis=1",
)
EVERY_COMBINATION = (
    "pool2d:x=2x3x13x17,kind=max,k=3,s=2,p=1",
    "add:a=2x5x3x37,b=5x1x1",
    "where:cond=2x1x3x1:bool,a=1x5x1x7,b=2x5x3x7",
    "less:a=5x1x3,b=2x3",
    "cast:x=3x67,to=bool",
    "relu:x=1x3x5x71",
    "transpose:x=7x13x5,perm=2x0x1",
    "concat:x0=3x5,x1=3x8,axis=1",
    "pad:x=2x3x5x7,pads=0x0x2x3x0x0x4x6,mode=reflect",
    "resize:x=2x9x5x7,sizes=2x9x10x14,mode=linear",
    "gather:x=3x7x13,indices=4:i32,axis=1",
    "batch_norm:x=2x3x5x7,scale=3,bias=3,mean=3,var=3",
    "trilu:x=5x7x13,k=-1",
    "cumulative:x=5x7x13,axis=1",
    "hardmax:x=37x7",
    "topk:x=13x31,k=5",
    "nonzero:x=5x131",
    "non_max_suppression:boxes=1x67x4,scores=1x2x67,most=9,iou=0.2",
    "roi_align:x=2x3x5x7,rois=3x4,batch_indices=3:i64,cells=2x3",
    "one_hot:indices=5x31:i64,values=2,depth=4",
    "gather_elements:x=5x17,indices=5x31:i32,axis=1",
    "gather_nd:x=4x5x7,indices=11x2:i64",
    "scatter_elements:x=5x17,indices=5x11:i64,updates=5x11,axis=1,reduction=add",
    "scatter_nd:x=7x13,indices=5x1:i32,updates=5x13,reduction=mul",
    "reverse_sequence:x=7x5x3,lengths=5:i64",
    "pool2d_argmax:x=2x3x13x17,k=3,s=2,p=1",
    "resize:x=2x9x5x7,sizes=2x9x4x11,mode=cubic,antialias=1",
    "grid_sample:x=2x3x5x7,grid=2x4x5x2,mode=cubic,pad=reflection",
    "affine_grid:theta=2x2x3,size=2x3x5x7",
    "col2im:x=1x18x6,image=5x7,block=3x3,s=2x3,p=1x1x0x1",
    "deform_conv2d:x=2x3x5x7,w=4x3x3x3,offset=2x18x5x7,p=1",
    "quantize_linear:x=5x31,y_scale=31,y_zero=31:i8",
    "dequantize_linear:x=5x32:u8,x_scale=scalar",
    "dynamic_quantize_linear:x=5x131",
    "logical_xor:a=5x1x3:bool,b=67x3:bool",
    "is_inf:x=3x67",
    "depth_to_space:x=2x12x5x7,block=2,mode=crd",
    "center_crop_pad:x=5x8x3,shape=8x5x3",
)


def legal_params(text, device):
    """A call, and the legal values of every parameter of each route that may take it here."""
    call, facts = parsed(text), facts_of(device)
    routes = [r for r in OPS[call.op].routes if judge(r, call, facts).allowed]
    return call, {route.name: route.params(call, facts) for route in routes}


@pytest.mark.parametrize("text", EVERY_COMBINATION)
def test_every_combination_of_parameters_agrees_with_the_reference(text, device):
    _, routes = legal_params(text, device)
    for route, legal in routes.items():
        assert legal
        for values in itertools.product(*legal.values()):
            agrees_with_the_reference(text, route, dict(zip(legal, values, strict=True)), "normals", device)


# Their tiles are those of conv2d and matmul: compiling them takes a CPU driver seconds each.
TILES_OF_OTHERS = ("conv_reduce", "gemm_reduce")


@pytest.mark.share(6)
@pytest.mark.parametrize("text", EVERY_VALUE)
def test_every_value_of_a_tile_agrees_with_the_reference(text, device):
    """The calls of an op share its tiles out; every other parameter takes all its values in each of them."""
    call, routes = legal_params(text, device)
    calls_of_op = [other for other in EVERY_VALUE if other.partition(":")[0] == call.op]
    step = 4 if call.op in TILES_OF_OTHERS else len(calls_of_op)
    for route, legal in routes.items():
        for name, values in legal.items():
            for value in values[calls_of_op.index(text) :: step] if name == "tile" else values[1:]:
                agrees_with_the_reference(text, route, {name: value}, "normals", device)
        agrees_with_the_reference(text, route, {name: min(v) for name, v in legal.items()}, "normals", device)


@pytest.mark.slow
@pytest.mark.skipif("VKCONV_TEST_ALL_TILES" not in os.environ, reason="takes minutes; set VKCONV_TEST_ALL_TILES=1")
@pytest.mark.parametrize("text", EVERY_VALUE)
def test_every_combination_of_tiles_agrees_with_the_reference(text, device):
    _, routes = legal_params(text, device)
    for route, legal in routes.items():
        for values in itertools.product(*legal.values()):
            agrees_with_the_reference(text, route, dict(zip(legal, values, strict=True)), "normals", device)


@pytest.mark.parametrize("slices", [2, 3, 6])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_product_in_slices_that_are_not_equal(slices, dtype, device):
    """Odd and prime sums: the last slice is shorter, whether or not a binding may begin with it. Scratch starts as NaN
    bits."""
    for text in (
        "matmul:a=32x521,b=521x32,bias=32,residual=32x32,alpha=0.5,beta=2,act=relu",
        "matmul:a=33x1153,b=1153x35,bias=35,act=tanh",
        "matmul:a=3x1x1154x17,b=2x37x1154,ta=1,tb=1,bias=37,alpha=0.5",
        "matmul:a=5x34x523,b=5x523x36",
    ):
        agrees_with_the_reference(f"{text},dtype={dtype}", "shared", {"split_k": slices}, "normals", device)


@pytest.mark.parametrize(("text", "slices"), [("a=7x5120,b=5120x9", 1280), ("a=33x4620,b=4620x31", 110)])
def test_a_product_in_irees_slices(text, slices, device):
    agrees_with_the_reference(f"matmul:{text}", "shared", {"split_k": slices}, "normals", device)


@pytest.mark.parametrize("slices", [1, 2, 8, 24])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_product_in_slices_of_its_sum(slices, dtype, device):
    """Transposed, in batches, with all that follows the sums."""
    for text in (
        "matmul:a=33x192,b=192x35,bias=35,residual=33x35,alpha=0.5,beta=2,act=relu,out_shift=1",
        "matmul:a=3x1x192x17,b=2x37x192,ta=1,tb=1,bias=37,act=tanh",
    ):
        agrees_with_the_reference(f"{text},dtype={dtype}", "shared", {"split_k": slices}, "normals", device)
