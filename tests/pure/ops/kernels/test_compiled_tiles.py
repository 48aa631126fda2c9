"""Tiles that a GPU's own compiler did not keep in registers are no defaults there, and others stand for them."""

import dataclasses

import pytest
from golden_routes import CALLS

from vkconv.compilers.evidence import constants_of
from vkconv.compilers.pipelines import Asked, collect
from vkconv.core import GraphError
from vkconv.device import evidence, load_device, shipped_devices
from vkconv.device.evidence import Compiled, Evidence, load_evidence
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.implicit_gemm import params_by_rule
from vkconv.ops.conv.wgrad import winograd
from vkconv.ops.core.base import defaults
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels import compiled, gemm
from vkconv.ops.kernels.gemm import SHARED_TILES
from vkconv.ops.kernels.gemm_tile import GemmTile, instead_of, tile_by_rule
from vkconv.route import choose
from vkconv.shaders.kernels import MATMUL_SHARED

DEVICES = {name: load_device(name) for name in shipped_devices()}
WITH_TABLES = [name for name, device in DEVICES.items() if compiled.TABLE.of(device) != compiled.NO_TABLE]
KEPT, SPILLED = Compiled({"spills": 0.0, "fills": 0.0}, ()), Compiled({"spills": 1.0, "fills": 2.0}, ())
FAILED = Compiled({}, (), "too long")
# Devices of their own (they compare by identity): what caches keep by a fixture's tables is kept of no shipped one.
MALI, MALI_PANVK, PI = (
    dataclasses.replace(DEVICES[name]) for name in ("mali-g715", "mali-g610-panvk", "raspberry-pi-5")
)


@pytest.fixture
def table(monkeypatch):
    """A table of rows of a kernel in place of those of all GPUs: by element type, or variant, and constants."""

    def use(rows, kernel="matmul_shared"):
        kernels = {(f"{kernel}.{element}", "256x1x1", text): one for (element, text), one in rows.items()}
        monkeypatch.setattr(compiled, "load_evidence", lambda gpu: Evidence(gpu, "", "", "", kernels))

    compiled._rows.cache_clear()
    compiled._fits.cache_clear()
    yield use
    compiled._rows.cache_clear()
    compiled._fits.cache_clear()


def fits(name, element="f32", device=MALI):
    return compiled.fits(MATMUL_SHARED, SHARED_TILES[name].constants, element, device)


def test_a_tile_fits_where_no_row_of_it_spills_whatever_the_other_constants(table):
    table({("f32", ""): KEPT, ("f32", "A_VEC4=1"): SPILLED, ("f32", "BK=8"): KEPT, ("f32", "BK=8 ACT=1"): KEPT})
    assert fits("64x64x16_4x4") is False and fits("64x64x8") is True
    assert fits("32x32x16") is None, "without a row"
    assert fits("64x64x16loop") is None, "an unrolled k-tile is another kernel than a loop"


def test_rows_of_the_type_count_before_those_of_others(table):
    table({("f32", ""): KEPT, ("bf16", ""): SPILLED, ("f16", "BK=8"): FAILED})
    assert (fits("64x64x16_4x4"), fits("64x64x16_4x4", "bf16"), fits("64x64x16_4x4", "f16")) == (True, False, False)
    assert fits("64x64x8") is False, "rows of another type, where there are none of this one, and failures"
    assert fits("64x64x16_4x4", "") is False, "every type"


def test_rows_of_a_form_count_for_that_form_alone(table):
    table({("f32", ""): KEPT, ("f32.PROLOGUE", ""): SPILLED, ("f32.Y_F32", "BK=8"): SPILLED})
    constants = {name: SHARED_TILES[name].constants for name in ("64x64x16_4x4", "64x64x8")}

    def kept(name, form=""):
        return compiled.fits(MATMUL_SHARED, constants[name], "f32", MALI, form)

    assert kept("64x64x16_4x4") is True and kept("64x64x16_4x4", "PROLOGUE") is False
    assert kept("64x64x16_4x4", "DOT") is True, "without a row of the form the others count"
    assert kept("64x64x8") is False, "what is no form is as good as any row"


def test_a_prologue_takes_a_tile_that_stays_in_registers_with_it(table):
    """Of fewer registers than that of the convolution alone."""
    conv, device = parse_call("conv2d:x=1x192x20x20,w=384x192x1x1", OPS), MALI_PANVK
    table({("f32", ""): KEPT, ("f32.PROLOGUE", ""): SPILLED}, "conv2d_gemm")
    alone, fused = (params_by_rule(conv, device, form)["tile"][0] for form in ("", "PROLOGUE"))
    assert (alone, fused) == ("64x64x16_4x4", "64x64x8")


def test_a_gradient_adds_its_slices_up_in_parts_where_the_whole_spills(table):
    call = parse_call("conv2d_backward_weight:x=4x32x28x28,dy=4x64x28x28,w_shape=64x32x3x3,p=1", OPS)

    def taken(rows):
        table(rows, "winograd_weight_gradient")
        outputs = winograd.params(call, MALI)["outputs"][0]
        (*_, taps) = winograd.build(call, MALI, defaults(winograd.params(call, MALI))).steps
        compiled._rows.cache_clear()
        compiled._fits.cache_clear()
        return outputs, taps.constants["PARTS"]

    assert taken({("f32", "M=4"): KEPT}) == (4, 1)
    assert taken({("f32", "M=4"): SPILLED}) == (4, 2), "not known to spill"
    assert taken({("f32", "M=4"): SPILLED, ("f32", "M=4 PARTS=2"): KEPT}) == (4, 2)
    assert taken({("f32", "M=4"): SPILLED, ("f32", "M=4 PARTS=2"): SPILLED}) == (2, 1)


def test_lanes_of_a_row_meet_in_shared_memory_where_subgroups_spill(table):
    subgroup, tree = "f32.REDUCTION_SUBGROUP.REGISTERS", "f32.REDUCTION_TREE.REGISTERS"

    def taken(rows):
        table(rows, "normalize")
        call = parse_call("layer_norm:x=196x768,scale=768,bias=768,axis=1", OPS)  # a call keeps its choices
        choice = choose(OPS["layer_norm"].routes, call, MALI_PANVK)
        compiled._rows.cache_clear()
        compiled._fits.cache_clear()
        return choice.route.name, choice.params.get("lanes"), choice.params.get("tree")

    three = "LANES=64 ITEMS=3"
    assert taken({}) == taken({(subgroup, three): KEPT}) == ("one_pass", 64, 0)
    assert taken({(subgroup, three): SPILLED}) == ("one_pass", 64, 1)
    assert taken({(subgroup, "LANES=64 ITEMS=2"): SPILLED}) == ("one_pass", 64, 1), "more items spill too"
    assert taken({(subgroup, three): SPILLED, (tree, three): SPILLED}) == ("one_pass", 128, 0)
    every = {(form, f"LANES={32 << n} ITEMS=1"): SPILLED for form in (subgroup, tree) for n in range(6)}
    route, *_ = taken(
        {**every, **{(form, f"LANES=16 ITEMS={n}"): SPILLED for form in (subgroup, tree) for n in (1, 2)}}
    )
    assert route != "one_pass", "rows are read again rather than spilled"


def test_devices_without_a_table_are_left_to_estimates():
    for name in ("h200", "lavapipe", "swiftshader", "arc-a770"):
        assert fits("64x64x16_4x4", device=DEVICES[name]) is None


def test_what_stands_for_a_tile_has_its_blocks_and_needs_fewer_registers():
    tile = SHARED_TILES["64x64x16_4x4"]
    assert list(instead_of(tile, SHARED_TILES)) == ["64x64x8", "64x64x16loop", "64x64x8loop"]
    assert not instead_of(SHARED_TILES["64x64x8loop"], SHARED_TILES)
    two = GemmTile(64, 32, 16, 4, 4, 2)
    assert dataclasses.replace(two, buffers=1) in instead_of(two, SHARED_TILES).values()


def test_the_rule_takes_the_first_that_stays_in_registers_in_place_of_its_own(table):
    names, by = ("64x64x16_4x4", "32x32x16"), gemm.compilers(MALI, "f32")

    def taken(blocks=10**6):
        return tile_by_rule(names, SHARED_TILES, 64, lambda name: blocks, 1.0, by)

    table({("f32", "BK=4"): KEPT})
    assert taken() == "64x64x16_4x4", "by estimate"
    compiled._rows.cache_clear()
    compiled._fits.cache_clear()
    table({("f32", ""): SPILLED, ("f32", "BK=8"): FAILED, ("f32", "BM=32 BN=32"): SPILLED, ("f32", "UNROLL=0"): KEPT})
    assert taken() == "64x64x16loop" and taken(0) == "32x32x8"


def test_the_registers_of_what_was_kept_are_no_more_than_there_are(table):
    """A Raspberry Pi's 32, of which a tile needs 54 by estimate."""
    tile = SHARED_TILES["64x64x16loop"]
    table({("f32", "BK=4"): KEPT})
    assert not gemm.compilers(PI).suit(tile)
    compiled._rows.cache_clear()
    compiled._fits.cache_clear()
    table({("f32", "UNROLL=0"): KEPT})
    assert gemm.compilers(PI).suit(tile)


def kernels_of(text, device):
    """The kernels that a call's first choice launches, as tables name them."""
    (made,) = collect([Asked(parse_call(text, OPS), text)], device)
    for step in made.steps:
        p = step.pipeline
        local = "x".join(map(str, p.local))
        yield p.shader.key, local, constants_of(p.shader, p.words[3:])


@pytest.mark.parametrize("name", WITH_TABLES)
@pytest.mark.parametrize("dtype", ["", "f16"])
@pytest.mark.long
def test_no_first_choice_of_the_golden_calls_is_a_row_that_spills_or_fails(name, dtype):
    device, known = DEVICES[name], load_evidence(compiled.TABLE.of(DEVICES[name]))
    found, unfit = 0, set()
    for text in CALLS:
        try:
            keys = list(kernels_of(f"{text},dtype={dtype}" if dtype and "dtype" not in text else text, device))
        except GraphError:
            continue  # no such type of this op
        rows = {key: known.kernels[key] for key in keys if key in known.kernels}
        found += len(rows)
        unfit |= {shader for (shader, _, _), row in rows.items() if row.spills or row.failure}
    assert not unfit
    assert found > 40 or known.gpu != name, "the table has the first choices of its own GPU"


def test_every_policy_row_names_a_table():
    assert {value for value in compiled.TABLE.every() if value != compiled.NO_TABLE} <= set(evidence.evidence_gpus())
