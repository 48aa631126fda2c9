"""What decided a choice: the numbers that rules read, why a route is not taken, and how devices differ."""

import json

import pytest
from cli_kit import vkconv as run
from golden_routes import CALLS
from shipped import one_of_each_driver

from vkconv.core import LimitError, RouteError, UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.decisions import compare, decide, why_not
from vkconv.plan.planner import Options

CALL = "conv2d:x=1x512x7x7,w=512x512x3x3,p=1"
H200, MALI, PI = (load_device(name) for name in ("h200", "mali-g715", "raspberry-pi-4"))


def read(call, device):
    return {one.name: one for one in decide(parse_call(call, OPS), device, Options())[1]}


def test_a_choice_tells_the_numbers_and_rows_that_it_read():
    found = read(CALL, MALI)
    assert (found["compute_units"].value, found["compute_units"].evidence) == ("7", "published")
    assert found["conv2d.im2col"].value == "least_c_out=1" and "executorch#20059" in found["conv2d.im2col"].source
    assert found["class"].value == "mobile"
    # Asked again, it is read again, whatever was kept from before.
    assert read(CALL, MALI) == found


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("winograd", "not preferred: as many tiles as pay on such devices (here 4 tiles, at least 16"),
        ("pointwise", "cannot run: a 1x1 kernel (here 3x3)"),
        (
            "subgroup_tile",
            "is not preferred: a CPU driver, or groups or a stem that this GPU takes by subgroups (here ",
        ),
        ("im2col_gemm", "im2col_gemm tile=shared_"),
    ],
)
def test_why_a_route_is_not_taken(route, said):
    table, data = why_not(parse_call(CALL, OPS), MALI, Options(), route)
    assert said in data["conclusion"] and data["conclusion"] in table.title
    held = [one["holds"] for one in data["requirements"]]
    assert all(held) == (route == "im2col_gemm") or route == data["taken"].split()[0]


def test_a_route_behind_the_one_that_is_taken_has_all_it_needs():
    _, data = why_not(parse_call(CALL, OPS), MALI, Options(), "direct")
    assert "stands before it in the list of" in data["conclusion"] and all(r["holds"] for r in data["requirements"])
    _, data = why_not(parse_call(CALL, OPS), MALI, Options(routes={"conv2d": "direct"}), "implicit_gemm")
    assert data["conclusion"].endswith("(forced)") or "is forced" in data["conclusion"]


def test_a_requirement_shows_the_row_that_it_read():
    _, data = why_not(parse_call(CALL, OPS), PI, Options(), "im2col_gemm")
    (reads,) = [r["read"] for r in data["requirements"] if r["text"].startswith("as many output channels")]
    assert reads[0]["name"] == "conv2d.im2col" and reads[0]["value"] == "least_c_out=128"


def test_a_route_whose_inner_call_no_route_takes_is_said_to_be_refused():
    call = parse_call("conv2d_backward_data:dy=1x64x56x56,w=64x64x3x3,x_shape=56x56,p=1,dtype=f16", OPS)
    _, data = why_not(call, MALI, Options(), "flipped_cooperative")
    assert "flipped_cooperative cannot run: cooperative matrices" in data["conclusion"]


def test_quirks_are_left_out_where_the_options_say_so():
    call, adreno = parse_call("conv2d:x=1x48x64x64,w=168x48x3x3,p=1", OPS), load_device("adreno-750")
    _, data = why_not(call, adreno, Options(), "im2col_gemm")
    assert "no quirk adreno-im2col-band" in data["conclusion"]
    _, data = why_not(call, adreno, Options(quirks=False), "im2col_gemm")
    assert data["conclusion"].startswith("im2col_gemm ") and data["conclusion"].endswith("is taken (rule)")


def test_an_unknown_route_is_refused():
    with pytest.raises(UsageError, match=r"conv2d has no route 'winogard' .did you mean 'winograd'"):
        why_not(parse_call(CALL, OPS), MALI, Options(), "winogard")


def test_devices_are_compared_with_the_numbers_that_differ():
    table, data = compare([parse_call(CALL, OPS)], [MALI, H200], Options())
    (row,) = data["calls"]
    assert not row["same"] and [one["value"] for one in row["differs"]["compute_units"]] == ["7", "132"]
    assert "0 of 1 calls by the same route" in table.title and "compute_units: 7 (published) / 132 (driver)" in str(
        table
    )


@pytest.mark.long
@pytest.mark.parametrize("name", one_of_each_driver("h200", "lavapipe", "swiftshader"))
def test_where_another_gpu_takes_another_route_than_the_h200_a_number_says_why(name):
    """Of the golden calls, those that no limit or missing feature decides."""
    device, unexplained = load_device(name), list[str]()
    for text in CALLS:
        call = parse_call(text, OPS)
        try:
            _, data = compare([call], [device, H200], Options())
        except (RouteError, LimitError):
            continue
        (row,) = data["calls"]
        if not row["same"] and not row["differs"] and device.subgroup_size == H200.subgroup_size:
            unexplained.append(text)
    assert not unexplained


def test_the_command_line_shows_it():
    code, out, _ = run("explain", CALL, "-d", "mali-g715")
    assert code == 0 and "number or policy" in out and "compute_units" in out
    code, out, _ = run("explain", CALL, "-d", "mali-g715", "--why-not", "winograd", "--json")
    assert code == 0 and json.loads(out)["schema"] == "vkconv.why_not/1"
    code, out, _ = run("explain", CALL, "--compare", "mali-g715,h200", "--json")
    assert code == 0 and json.loads(out)["devices"] == ["Mali-G715", "NVIDIA H200"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((CALL, "--compare", "h200"), "names 1 device; it takes two or more"),
        ((CALL, "--compare", "h200,h2000"), "h2000"),
        ((CALL, "--compare", "h200,orin", "--why-not", "direct"), "exclude each other"),
        (("model.vkc", "--why-not", "direct"), "--why-not is for a call"),
    ],
)
def test_wrong_use_is_refused(argv, said):
    code, _, err = run("explain", *argv)
    assert code == 2 and said in err
