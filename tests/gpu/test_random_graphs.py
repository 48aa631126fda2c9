"""Random graphs on the device against the references: routes, shared memory, barriers and passes all at once."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Theme, random_graph
from run_graphs import kept, random_options, run_graph

from vkconv.backend.runtime import select_device

pytestmark = pytest.mark.gpu
KEPT = sorted((Path(__file__).parent.parent / "fuzz" / "graphs").glob("*.vkc"))


def run_any_routes(device, graph, exact, rng, theme):
    options = random_options(graph, select_device(device)[1], exact, rng, theme)
    return run_graph(device, graph, exact, options)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_any_routes_of_a_random_graph_agree_with_the_references(device, validation, rng):
    theme = Theme(rng)
    graph, exact = random_graph(rng, theme)
    run_any_routes(device, graph, exact, rng, theme)
    assert validation.take() == ""


@pytest.mark.parametrize("seed", range(5))
def test_graphs_of_a_narrow_theme_agree_with_the_references(device, validation, seed):
    rng = random.Random(seed)
    theme = Theme(rng, narrow=True)
    for _ in range(20):
        graph, exact = random_graph(rng, theme)
        run_any_routes(device, graph, exact, rng, theme)
        assert validation.take() == "", graph


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_once_disagreed_no_longer_does(device, path):
    run_graph(device, *kept(path))
