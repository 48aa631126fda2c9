"""recurrence: functions by number, which route a device takes, launches, and calls that make no sense."""

import re
from pathlib import Path

import numpy as np
import pytest

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.recurrence.cells import FUNCTIONS
from vkconv.ops.recurrence.op import RECURRENCE
from vkconv.route import judge

SHADER = Path(__file__).parents[4] / "shaders" / "recurrence" / "recurrence.glsl"


def test_functions_have_the_numbers_of_the_shader() -> None:
    numbers = dict(re.findall(r"const uint ([A-Z_]+) = (\d+);", SHADER.read_text()))
    cases = re.findall(r"case ([A-Z_]+): return", SHADER.read_text())
    assert {name.lower(): int(numbers[name]) for name in cases} == FUNCTIONS


@pytest.mark.parametrize(
    ("device", "text", "route"),
    [
        ("h200", "recurrence:x=20x1x256,r=1x64x256", "sequence"),
        ("h200", "recurrence:x=20x1x4096,r=1x1024x4096", "steps"),
        ("adreno-740", "recurrence:x=20x1x4096,r=1x1024x4096", "steps"),
        ("lavapipe", "recurrence:x=20x1x256,r=1x64x256", "sequence"),
    ],
)
def test_one_launch_where_a_compute_unit_multiplies_the_weights_in_its_time(device: str, text: str, route: str) -> None:
    facts = load_device(device)
    call = parse_call(text, OPS)
    first = next(r for r in RECURRENCE.routes if judge(r, call, facts).preferred)
    assert first.name == route
    assert len(first.build(call, facts).steps) == (1 if route == "sequence" else 20)


def test_a_gru_with_its_reset_first_takes_two_launches_a_step() -> None:
    steps = next(r for r in RECURRENCE.routes if r.name == "steps")
    for more, launches in (("", 10), (",lbr=1", 5)):
        call = parse_call(f"recurrence:x=5x3x21,r=1x7x21,cell=gru{more}", OPS)
        assert len(steps.build(call, load_device("h200")).steps) == launches


def test_a_sequence_without_steps_ends_as_it_began() -> None:
    call = parse_call("recurrence:x=3x2x5,r=1x5x5,initial=1x1x2x5,lengths=2:i32,cell=rnn", OPS)
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(spec.dims) for name, spec in call.operands.items() if spec is not None}
    y, state = RECURRENCE.reference(call, {**arrays, "lengths": np.array([-1, 2]), "extra": None})
    np.testing.assert_array_equal(state[0, 0, 0], arrays["initial"][0, 0, 0])
    np.testing.assert_array_equal(state[0, 0, 1], y[1, 0, 1])
    assert not y[:, 0, 0].any() and not y[2, 0, 1].any() and y[:2, 0, 1].all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x=5x3x28,r=1x7x21", "r is 1x7x21; of lstm it is 1xHx4H"),
        ("x=5x3x27,r=1x7x28", "x is 5x3x27; it is TxNx28"),
        ("x=5x3x28,r=1x7x28,dir=bidirectional", "it is 2xHx4H"),
        ("x=5x3x28,r=1x7x28,initial=1x1x3x7", "initial is 1x1x3x7; it is 2x1x3x7"),
        ("x=5x3x21,r=1x7x21,cell=gru,extra=1x7", "extra is of lstm, and of gru with linear_before_reset"),
        ("x=5x3x28,r=1x7x28,lengths=4:i32", "of 3 sequences they are 3:i32"),
        ("x=5x3x28,r=1x7x28,functions=tanh", "lstm has 3 functions, given tanh"),
        ("x=5x3x7,r=1x7x7,cell=rnn,functions=tanhh", "there is no function 'tanhh' .did you mean 'tanh'"),
        ("x=5x3x7,r=1x7x7,cell=rnn,act_a=1x2", "act_a has 2 numbers, one for each of 1 functions"),
        ("x=5x3x28,r=1x7x28,clip=-1", "clip is -1.0"),
    ],
)
def test_calls_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        parse_call(f"recurrence:{text}", OPS)


def test_gates_that_infinity_saturates_may_round_as_others_do() -> None:
    """An infinite weight of a gate makes the gate 0 or 1, and what it lets through is finite and rounds."""
    call = parse_call("recurrence:x=1x1x3,r=1x1x3,initial=1x1x1x1,cell=gru", OPS)
    arrays = {
        "x": np.array([0.3, -0.2, 0.7], np.float32).reshape(1, 1, 3),
        "r": np.array([np.inf, 0.5, 0.25], np.float32).reshape(1, 1, 3),
        "initial": np.full((1, 1, 1, 1), 0.6, np.float32),
    }
    with np.errstate(all="ignore"):  # as in every check
        value, _ = RECURRENCE.reference(call, arrays)
        allowed = RECURRENCE.magnitude(call, arrays, value)
    assert np.isfinite(value).all() and (allowed > 0.1 * np.abs(value)).all()
