"""Policies: every row can be read and is reached, and says what it rests on; rules know no device by themselves."""

import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest
from cli_kit import vkconv as run

import vkconv
from vkconv import policy
from vkconv.core import UsageError
from vkconv.device import load_device, shipped_devices, target_of
from vkconv.device.vendors import VENDORS
from vkconv.ops.kernels.gemm import SHARED_TILES, compilers
from vkconv.ops.kernels.gemm_tile import tile_by_rule
from vkconv.policy import Policy, row_of, table, tables

DEVICES = {name: load_device(name) for name in shipped_devices()}
PACKAGE = Path(vkconv.__file__).parent


@pytest.fixture(scope="module")
def policies():
    """Every policy that a module of vkconv reads, by its name."""
    for part in ("ops", "plan"):
        for module in pkgutil.walk_packages([str(PACKAGE / part)], f"vkconv.{part}."):
            importlib.import_module(module.name)
    for name in ("calibrate", "engine"):
        importlib.import_module(f"vkconv.bench.{name}")
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("vkconv.")]
    found = {id(v): v for module in modules for v in vars(module).values() if isinstance(v, Policy)}
    return {one.name: one for one in found.values()}


def test_each_table_is_one_policy_and_each_policy_one_table(policies):
    assert sorted(policies) == sorted(tables())


def test_rows_are_of_the_type_that_reads_them(policies):
    for name, one in policies.items():
        assert len(one.every()) == len(table(name).rows)
        for device in DEVICES.values():
            assert one.of(device) in one.every()


def fields(value, path=""):
    """Every field of a value, those of its parts too."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {path}.union(*(fields(part, f"{path}.{key}") for key, part in parts))


def test_rows_have_no_field_that_nothing_reads(policies):
    """One that is misspelt would be passed over, and have its default."""
    for name in policies:
        for row in table(name).rows:
            assert fields(row.value) <= fields(policy.whole_value(name, row)), name


@pytest.mark.parametrize("name", tables())
def test_the_last_row_and_no_other_is_for_every_device(name):
    rows = table(name).rows
    assert [index for index, row in enumerate(rows) if not row.when] == [len(rows) - 1]
    generations = {target_of(device).generation for device in DEVICES.values()}
    for row in rows:
        assert row.vendor is None or row.vendor in VENDORS.values()
        assert row.device is None or row.device in DEVICES
        assert row.generation is None or row.generation in generations


@pytest.mark.parametrize("name", tables())
def test_each_row_is_the_one_of_some_device(name):
    got = {id(row_of(name, device)) for device in DEVICES.values()}
    unreached = {(name, index) for index, row in enumerate(table(name).rows) if id(row) not in got}
    assert not unreached


@pytest.mark.parametrize("name", tables())
def test_rows_say_what_they_rest_on(name):
    for row in table(name).rows:
        if row.evidence == "measured":
            assert re.search("H[12]00|lavapipe|SwiftShader", row.source), f"{name}: on which device?"
        if row.evidence == "published":
            assert re.search(r"#\d+|https?://", row.source), f"{name}: where?"


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(UsageError, match=r"no policy 'conv2d.im2cool' .did you mean 'conv2d.im2col'"):
        table("conv2d.im2cool")


def test_rules_do_not_know_devices_by_kind_or_vendor():
    """What a rule wants to know of a device stands in its target or in a policy."""
    for folder in ("ops", "plan"):
        for path in (PACKAGE / folder).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"(device|facts)\.(kind|vendor)\b|deviceType|vendorID", text), path


def test_vkconv_policies_lists_them_and_shows_one_with_its_measurements():
    assert "conv2d.im2col" in run("policies")[1]
    code, out, _ = run("policies", "conv2d.im2col")
    assert code == 0 and "executorch#20059" in out and "Mali-G715" in out and "every other device" in out
    code, out, _ = run("policies", "-d", "mali-g715", "conv2d.im2col")
    assert code == 0 and "least_c_out=1 " in out and "cpu" not in out
    code, _, err = run("policies", "im2col")
    assert code == 2 and "no policy 'im2col'" in err


def test_a_row_suits_what_it_asks_for():
    h200, row = target_of(DEVICES["h200"]), table("conv2d.im2col").rows[0]
    assert row.when == {"vendor": "arm"} and not row.suits(h200) and row.suits(target_of(DEVICES["mali-g57"]))
    assert policy.row_of("conv2d.im2col", DEVICES["h200"]).device_class == "discrete"


def test_tiles_that_all_pad_much_are_taken_by_what_they_pad():
    """16 rows of an integrated GPU: of tiles of 64 and 32 rows that fit, not the one of fewest registers."""
    names, by = ("64x64x16_4x4", "32x32x16"), compilers(DEVICES["adreno-740"])
    assert all(by.suit(SHARED_TILES[name]) for name in names)
    assert tile_by_rule(names, SHARED_TILES, 16, lambda name: 10**6, 1.0, by) == "32x32x16"
    assert tile_by_rule(names, SHARED_TILES, 64, lambda name: 10**6, 1.0, by) == "64x64x16_4x4"
    assert tile_by_rule(names, SHARED_TILES, 64, lambda name: 0, 1.0, by) == "32x32x16"
