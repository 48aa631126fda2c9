"""What the table of a checked model says of where errors are."""

from types import SimpleNamespace

from vkconv.check import Checked
from vkconv.check.report import model_table

RIGHT = Checked(1e-7, 1e-7, 1e-6, output="y", worst=(0, 1))
WRONG = Checked(1.0, 1.0, 1e-6, "y[2, 3] is wrong", "y", worst=(2, 3), pattern="all of row 2")
FAR = Checked(1e-3, 1e-3, 1e-6, "y[4, 5] is far", "y", worst=(4, 5), pattern="9 of 20 elements")


def where(alone, run, accumulated, refused=""):
    node = SimpleNamespace(
        node="n", call=SimpleNamespace(op="relu"), route="r", params={}, alone=alone, run=run, accumulated=accumulated
    )
    node.refused = refused
    return model_table(SimpleNamespace(nodes=[node])).rows[0]["where"]


def test_only_what_is_wrong_has_a_pattern():
    assert where(RIGHT, RIGHT, FAR) == "y[4, 5]"
    assert where(RIGHT, WRONG, FAR) == "y[2, 3]: all of row 2"
    assert where(WRONG, RIGHT, FAR) == "y[2, 3]: all of row 2"
    assert where(RIGHT, RIGHT, FAR, "over a limit") == "over a limit"
