"""What earlier versions wrote is read: models, device files, results and measured tables, as docs/versions.md says."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import vkconv
from vkconv.bench import compare_results, read_result
from vkconv.check.compared import SCHEMAS, compare_checks, read_checks
from vkconv.device import load_device
from vkconv.graph.vkc import load_vkc
from vkconv.plan import pack
from vkconv.plan.measured import read_table
from vkconv.version import VERSION

ROOT = Path(__file__).parents[2]
KEPT = sorted((Path(__file__).parent / "data" / "versions").iterdir())
EVERY_VERSION = pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)


def test_the_version_is_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION == vkconv.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", VERSION)


def test_the_version_is_the_last_one_of_the_changelog_or_on_the_way_to_the_next():
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## \[(.*?)\](.*)$", text, re.MULTILINE)
    assert heads[0] == ("Unreleased", "")
    versions = [tuple(map(int, name.split("."))) for name, _ in heads[1:]]
    assert versions == sorted(versions, reverse=True)
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in heads[1:])
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0].strip()
    number = tuple(map(int, VERSION.removesuffix(".dev0").split(".")))
    if unreleased:
        assert VERSION.endswith(".dev0") and number > versions[0]
    else:
        assert number == versions[0] and not VERSION.endswith(".dev0")


def test_the_page_of_versions_names_every_schema_that_is_kept():
    text = (ROOT / "docs" / "versions.md").read_text()
    named = set(re.findall(r"`(vkconv\.\w+/\d+)`", text))
    kept = {json.loads(path.read_text())["schema"] for folder in KEPT for path in folder.glob("*.json")}
    assert kept | set(SCHEMAS) <= named and "vkconv.graph/1" in named
    assert f"`{pack.INDEX_HEADER}`" in text


def test_files_of_every_release_are_kept():
    """A release adds a folder of what it writes: make them anew with its code, not with what came after."""
    released = set(re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert released <= {folder.name for folder in KEPT}
    assert len({tuple(sorted(path.name for path in folder.iterdir() if path.is_file())) for folder in KEPT}) == 1


@EVERY_VERSION
def test_a_model_is_read(folder):
    graph = load_vkc(folder / "graph.vkc")
    assert graph.inputs["x"].shape == ("n", 3, 8, 8) and [node.op for node in graph.nodes] == ["conv2d", "leaky_relu"]
    assert graph.constants["w"].shape == (2, 3, 3, 3) and graph.metadata == {"made.by": f"vkconv {folder.name}"}


@EVERY_VERSION
def test_a_device_file_is_read(folder):
    assert load_device(folder / "device.json").name == "Mali-G57"


@EVERY_VERSION
def test_a_result_of_bench_is_read_and_compared(folder):
    result = read_result(folder / "bench.json")
    assert len(result.rows) == 2 and result.header.versions["vkconv"] == folder.name
    assert {pair.verdict for pair in compare_results(result, result).pairs} == {"same"}


@EVERY_VERSION
@pytest.mark.parametrize("name", ["check.json", "conformance.json"])
def test_a_result_of_check_is_read_and_compared(folder, name):
    found = read_checks(folder / name)
    compared = compare_checks(found, found)
    assert compared.pairs and {pair.verdict for pair in compared.pairs} == {"same"} and not compared.warnings


@EVERY_VERSION
def test_a_measured_table_is_read(folder):
    table = read_table(folder / "measured.json")
    assert table.vkconv == folder.name and list(table.rows) == ["relu:x=3x5,dtype=f32"]
