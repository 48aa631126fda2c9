"""A bounded run of what tools/fuzz.py does for hours: damaged files and texts, and attributes at the edges.

Every way in answers, or raises VkconvError, within seconds, whatever bytes it gets.
"""

import random
import signal
import time

import pytest
from extremes import extremes
from mutants import mutant
from targets import REGRESSIONS, TARGETS, without_processes

from vkconv.core import VkconvError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.plan.planner import plan
from vkconv.plan.single import forcing, graph_of_shapes

pytestmark = pytest.mark.long

BUDGET_S = 1.4  # for each target
LEAST = 100  # mutants of each target, however slow the machine
LIMIT_S = 20
KEPT = sorted(path for path in REGRESSIONS.glob("*/*") if path.parent.name in TARGETS)  # the player has its own
EVERY = 19  # of the extremes, for a bounded run: no divisor of how many an attribute has


@pytest.fixture(autouse=True)
def no_hang():
    """A mutant that takes longer than LIMIT_S fails its test."""

    def hung(signum, frame):
        raise AssertionError(f"no answer in {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, hung)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def in_this_process(monkeypatch):
    from vkconv.graph.onnx import proto

    monkeypatch.setattr(proto, "run_apart", proto.run_apart)
    without_processes()


@pytest.mark.parametrize("name", TARGETS)
def test_whole_seeds_are_taken(name):
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_once_broke_a_target_no_longer_does(path):
    signal.alarm(LIMIT_S)
    TARGETS[path.parent.name].attempt(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_mutants_are_taken_or_refused(name, in_this_process):
    seeds, rng = list(TARGETS[name].seeds()), random.Random(name)
    end, count, taken = time.monotonic() + BUDGET_S, 0, 0
    while count < LEAST or time.monotonic() < end:
        data = mutant(rng.choice(seeds), rng)
        signal.alarm(LIMIT_S)
        try:
            taken += TARGETS[name].attempt(data)
        except Exception as error:
            raise AssertionError(f"mutant {count}: {type(error).__name__}: {error} from {data!r}") from error
        count += 1
    assert 0 < taken < count, "the damage did no harm, or all of it was the same"


def test_attributes_at_the_edges_plan_or_are_refused():
    device, refused, planned = load_device("lavapipe"), 0, 0
    for number, extreme in enumerate(extremes()):
        if number % EVERY:
            continue
        signal.alarm(LIMIT_S)
        try:
            call = OPS[extreme.op].call(extreme.specs, extreme.attrs)
            plan(graph_of_shapes(call), device, forcing(None))
            planned += 1
        except VkconvError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} from {extreme.text}") from error
    assert refused > 1000 and planned > 300
