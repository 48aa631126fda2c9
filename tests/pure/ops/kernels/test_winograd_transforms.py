"""Winograd's transforms as shaders/kernels/winograd.glsl has them, in rationals: they are exact, and transposes of each
other."""

import itertools
import re
from fractions import Fraction
from pathlib import Path

import pytest

from vkconv.ops.kernels.winograd import OUTPUTS

SOURCE = Path(__file__).parents[4] / "shaders" / "kernels" / "winograd.glsl"
# A function, a condition, the end of a block, or a statement.
PIECE = re.compile(r"(?:void|float\[MOST_T\]) (\w+)\(([^{]*)\) \{|if \(([^{]*)\) \{|(\})|([^;{}]+);")
TAKES_TO = {  # elements that each transform takes, and those that it makes
    "transform_input": "tt",
    "transform_weight": "rt",
    "transform_output": "tm",
    "transform_output_gradient": "mt",
    "transform_weight_gradient": "tr",
}


def split(text):
    """The parts between commas that are in no parentheses."""
    depth, parts = 0, [""]
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        parts = [*parts, ""] if letter == "," and depth == 0 else [*parts[:-1], parts[-1] + letter]
    return parts


def in_python(source):
    """The functions as Python, whose numbers are fractions; an array that is written has its elements replaced."""
    source = re.sub(r"//.*|#.*", "", source)
    lines, depth = [], 0
    for name, parameters, condition, end, statement in PIECE.findall(source[source.index("float[MOST_T] of_four") :]):
        statement = re.sub(r"\d+\.\d+", lambda number: f"Fraction('{number[0]}')", statement.strip())
        statement = statement.replace("float[MOST_T](", "array(")
        indent = "    " * depth
        if name:
            names = re.findall(r"(\w+)(?:\[\w+\])?(?:,|$)", parameters)
            lines.append(f"{indent}def {name}({', '.join(names)}):")
        elif condition:
            lines.append(f"{indent}if {condition}:")
        elif statement.startswith("float "):
            lines += [indent + part.strip() for part in split(statement.removeprefix("float "))]
        elif statement:
            lines.append(indent + re.sub(r"^([dum]) = ", r"\1[:] = ", statement))
        depth += bool(name or condition) - bool(end)
    return "\n".join(lines)


PYTHON = in_python(SOURCE.read_text())


def matrix(name, m, r):
    """What a transform is, by what it makes of each unit vector."""
    sizes = {"m": m, "r": r, "t": m + r - 1}
    takes, makes = (sizes[letter] for letter in TAKES_TO[name])
    scope = {"M": m, "R": r, "T": sizes["t"], "Fraction": Fraction, "array": lambda *elements: [*elements]}
    exec(PYTHON, scope)
    columns = []
    for at in range(takes):
        unit = [Fraction(i == at) for i in range(takes)]
        line = unit + [None] * (8 - takes)  # what lies behind is not read
        if name == "transform_weight":
            line = [None] * 8
            scope[name](unit, line)
        else:
            scope[name](line)
        columns.append(line[:makes])
    return [list(row) for row in zip(*columns, strict=True)]


TILES = [(m, r) for r, by in OUTPUTS.items() for m in by]


@pytest.mark.parametrize(("m", "r"), TILES)
def test_products_between_transforms_are_the_convolution(m, r):
    """Of each output, tap and input: the sum over points is 1 where they meet, else 0, with no rounding."""
    sums, weights, inputs = (matrix(f"transform_{name}", m, r) for name in ("output", "weight", "input"))
    for k, j, i in itertools.product(range(m), range(r), range(m + r - 1)):
        of_points = (sums[k][t] * weights[t][j] * inputs[t][i] for t in range(m + r - 1))
        assert sum(of_points) == (i == k + j), (k, j, i)


@pytest.mark.parametrize(("m", "r"), TILES)
def test_gradients_are_transformed_by_the_transposes(m, r):
    for name, transposed in (("output", "output_gradient"), ("weight", "weight_gradient")):
        rows = matrix(f"transform_{transposed}", m, r)
        assert [list(column) for column in zip(*rows, strict=True)] == matrix(f"transform_{name}", m, r), name


@pytest.mark.parametrize(("m", "r"), TILES)
def test_points_are_small_and_their_powers_are_what_sums_are_multiplied_by(m, r):
    halves = Fraction(1, 2), Fraction(-1, 2)
    points = [0, 1, -1, 2, -2, *halves][: m + r - 2]
    infinity = [0] * (m - 1) + [1]
    by_points = [[point**k for k in range(m)] for point in points]
    rows = [list(column) for column in zip(*matrix("transform_output", m, r), strict=True)]
    assert rows[:-1] == by_points and rows[-1] in (infinity, [-one for one in infinity])
