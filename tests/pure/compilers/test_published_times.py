"""The published timings, and what is computed of them."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from vkconv.compilers.gpus import find_gpu
from vkconv.device import shipped_devices
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

TOOL = Path(__file__).resolve().parents[3] / "tools" / "published.py"


@pytest.fixture(scope="module")
def published() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published", TOOL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_is_a_call_with_a_source_and_a_gpu_that_compiles(published: ModuleType) -> None:
    sources = msgspec.toml.decode((published.FOLDER / "sources.toml").read_bytes(), type=published.Sources)
    choices, timings = published.read("choices.csv"), published.read("timings.csv")
    assert len(choices) == 2 * 26 and len(timings) == 120
    for row in (*choices, *timings):
        assert parse_call(row["call"], OPS).op == "conv2d"
        assert row["source"] in sources.sources and row["gpu"] in sources.gpus
    assert {row[way] for row in choices for way in ("faster", "slower")} <= set(published.ROUTES)
    assert {row["route"] for row in timings} <= set(published.ROUTES)
    assert all(float(row["us"]) > 0 for row in timings)
    assert all(one.url.startswith("https://") for one in sources.sources.values())
    for stand_in in sources.gpus.values():
        assert find_gpu(stand_in.compiler) and (not stand_in.device or stand_in.device in shipped_devices())
    known = {route.name for route in OPS["conv2d"].routes}
    assert {route for ways in published.ROUTES.values() for route, _ in ways} <= known


def test_calls_that_were_timed_in_two_ways_are_pairs(published: ModuleType) -> None:
    row = {"source": "s", "gpu": "g", "call": "c"}
    timings = [{**row, "route": "direct", "us": "30"}, {**row, "route": "winograd", "us": "20.5"}]
    assert published.pairs([*timings, {**row, "call": "d", "route": "direct", "us": "1"}]) == [
        {**row, "faster": "winograd", "slower": "direct"}
    ]
    assert len(published.pairs(published.read("timings.csv"))) == 17


def test_spearmans_correlation_is_of_ranks_with_ties(published: ModuleType) -> None:
    assert published.spearman([1, 2, 3, 4], [10, 20, 30, 1e9]) == 1
    assert published.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    # By hand: ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4 have covariance 4.5 and squares 4.5 and 5.
    assert published.spearman([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(published.spearman([1, 1], [1, 2]))
