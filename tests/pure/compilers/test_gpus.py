"""The data file of GPUs, and the GPUs that a command line names."""

import json
import re
from pathlib import Path

import pytest

from vkconv.compilers import gpus
from vkconv.compilers.rows import Code, statistics_of
from vkconv.core import UsageError
from vkconv.device import shipped_devices

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "compiled.json").read_text())["rows"]


def test_every_gpu_has_a_driver_in_a_set_and_a_device_that_is_there() -> None:
    known = gpus.data()
    names = [name for gpu in known.gpus for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names)) >= 39
    assert {gpu.driver for gpu in known.gpus} == set(known.drivers)
    assert {driver.set for driver in known.drivers.values()} == set(known.sets)
    assert {gpu.device for gpu in known.gpus} - {""} <= set(shipped_devices())


def test_gpus_of_one_driver_differ_in_its_variable() -> None:
    for name, driver in gpus.data().drivers.items():
        values = [gpu.value for gpu in gpus.data().gpus if gpu.driver == name]
        assert len(set(values)) == len(values)
        assert all(values) == bool(driver.variable), name


def test_columns_are_those_of_the_rows_and_name_statistics_that_the_driver_has() -> None:
    recorded = {gpus.find_gpu(row["gpu"]).driver: set[str]() for row in RECORDED}
    for row in RECORDED:
        for executable in row["compiled"]["executables"]:
            recorded[gpus.find_gpu(row["gpu"]).driver] |= set(executable["statistics"])
    assert set(recorded) == set(gpus.data().drivers)
    for name, driver in gpus.data().drivers.items():
        assert set(driver.columns) <= set(Code.__struct_fields__)
        named = {one for terms in driver.columns.values() for term in terms for one in statistics_of(term)[1]}
        assert named <= recorded[name]
        assert {"instructions", "spills"} <= set(driver.columns)


def test_tried_packages_have_the_drivers_with_version_and_digest() -> None:
    for name, packages in gpus.data().sets.items():
        tried = gpus.tried(name)
        assert {*packages.packages, *packages.emulator, "libc6"} <= set(tried)
        assert all(re.fullmatch(r"[0-9a-f]{64}", package.sha256) for package in tried.values())


def test_gpus_are_found_by_name_each_once() -> None:
    assert [gpu.name for gpu in gpus.find_gpus("navi31, adreno-740,navi31")] == ["navi31", "adreno-740"]
    assert [gpu.name for gpu in gpus.find_gpus("sm86,v3d-71,ga102")] == ["ga102", "raspberry-pi-5"]


@pytest.mark.parametrize(
    ("text", "said"), [("adreno-741", r"did you mean 'adreno-740'\?"), (" ,", "names no GPU"), ("navi31,x", "'x'")]
)
def test_a_gpu_that_is_not_there_is_named_with_what_is(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gpus.find_gpus(text)
