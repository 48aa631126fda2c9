"""What decided a choice: the facts and numbers that rules read, why a route is not taken, and how devices differ."""

import copy
import dataclasses
import itertools
import json

import pytest
from cli_kit import vkconv as run
from golden_routes import CALLS
from shipped import one_of_each_driver, share

from vkconv import policy
from vkconv.core import RouteError, UsageError
from vkconv.device import Device, load_device, target_of
from vkconv.device.numbers import NUMBERS
from vkconv.device.reads import Seen
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.plan import decisions
from vkconv.plan.decisions import compare, decide, why_not
from vkconv.plan.flips import Decision, decided_with, differing, flips
from vkconv.plan.planner import Options, choose_route
from vkconv.plan.read_values import apart, beside, shortened, value_text
from vkconv.requirement import Requirement
from vkconv.route import Candidate

CALL = "conv2d:x=1x512x7x7,w=512x512x3x3,p=1"
H200, MALI, PI, RADEON = (load_device(name) for name in ("h200", "mali-g715", "raspberry-pi-4", "radeon-680m-radv"))
PHONES = ("raspberry-pi-4", "adreno-618", "adreno-740", "mali-g78", "apple-m1")


def read(call, device):
    return {one.name: one for one in decide(parse_call(call, OPS), device, Options())[1]}


def test_a_choice_tells_the_numbers_and_rows_that_it_read():
    found = read(CALL, MALI)
    assert (found["compute_units"].value, found["compute_units"].evidence) == ("7", "published")
    assert found["conv2d.im2col"].value == "least_c_out=1" and "executorch#20059" in found["conv2d.im2col"].source
    assert found["class"].value == "mobile"
    assert (found["maxComputeSharedMemorySize"].value, found["maxComputeSharedMemorySize"].evidence) == (
        "32768",
        "driver",
    )
    assert found["minStorageBufferOffsetAlignment"].evidence == "assumed"
    # Asked again, it is read again, whatever was kept from before.
    assert read(CALL, MALI) == found


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("winograd", "not preferred: as many tiles as pay on such devices (here 4 tiles, at least 16"),
        ("pointwise", "cannot run: a 1x1 kernel (here 3x3)"),
        (
            "subgroup_tile",
            "is not preferred: a CPU driver that unrolls loops over tiles, or groups or a stem that this GPU takes by "
            "subgroups (here ",
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
    assert "im2col_gemm stands before direct in the list of" in data["conclusion"]
    assert all(r["holds"] for r in data["requirements"])
    _, data = why_not(parse_call(CALL, OPS), MALI, Options(routes={"conv2d": "direct"}), "implicit_gemm")
    assert data["conclusion"].endswith("(forced)") or "is forced" in data["conclusion"]


def test_a_requirement_shows_the_row_that_it_read():
    _, data = why_not(parse_call(CALL, OPS), PI, Options(), "im2col_gemm")
    (reads,) = [r["read"] for r in data["requirements"] if r["text"].startswith("as many output channels")]
    assert reads[0]["name"] == "conv2d.im2col" and reads[0]["value"] == "least_c_out=128"


def test_a_route_whose_inner_call_no_route_takes_is_said_to_be_refused():
    call = parse_call("conv2d_backward_data:dy=1x64x56x56,w=64x64x3x3,x_shape=56x56,p=1,dtype=f16", OPS)
    _, data = why_not(call, MALI, Options(), "flipped_cooperative")
    assert "flipped_cooperative cannot run: a route of conv2d for its conv2d" in data["conclusion"]
    assert "cooperative needs cooperative matrices of that type" in data["conclusion"]


def test_quirks_are_left_out_where_the_options_say_so():
    call, adreno = parse_call("conv2d:x=1x48x64x64,w=168x48x3x3,p=1", OPS), load_device("adreno-750")
    _, data = why_not(call, adreno, Options(), "im2col_gemm")
    assert "no quirk adreno-im2col-band" in data["conclusion"]
    _, data = why_not(call, adreno, Options(quirks=False), "im2col_gemm")
    assert data["conclusion"].startswith("im2col_gemm ") and data["conclusion"].endswith("is taken (rule)")


def test_an_unknown_route_is_refused():
    with pytest.raises(UsageError, match=r"conv2d has no route 'winogard' .did you mean 'winograd'"):
        why_not(parse_call(CALL, OPS), MALI, Options(), "winogard")


@pytest.mark.parametrize(
    ("text", "name", "route", "ahead", "rows"),
    [
        ("conv2d:x=1x64x56x56,w=64x64x3x3,p=1", "raspberry-pi-4", "implicit_gemm", "winograd", {"conv2d.winograd"}),
        (
            "conv2d:x=1x256x56x56,w=128x256x3x3,p=1",
            "raspberry-pi-4",
            "implicit_gemm",
            "im2col_gemm",
            {"conv2d.im2col", "conv2d.winograd"},
        ),
        ("reduce:x=1x512x7x7,op=mean,axes=2x3", "adreno-618", "serial", "clusters", {"reduce.short_row"}),
    ],
)
def test_a_route_that_could_run_is_told_what_those_before_it_rest_on(text, name, route, ahead, rows):
    table, data = why_not(parse_call(text, OPS), load_device(name), Options(), route)
    said = data["conclusion"]
    assert f"every requirement of {route} holds" in said and f"{route} is taken where" in said
    assert data["ahead"][0]["route"] == ahead and data["ahead"][0]["why"] in said
    read = {r["name"]: r for one in data["ahead"] for need in one["requirements"] for r in need["read"]}
    assert rows <= read.keys() and all(read[row]["evidence"] and read[row]["source"] for row in rows)
    first = {r["name"] for need in data["ahead"][0]["requirements"] for r in need["read"]}
    assert all(f"{row} ({read[row]['evidence']}: {shortened(read[row]['source'])})" in said for row in rows & first)
    assert f"{ahead}: prefer" in str(table)


def test_what_of_another_device_would_have_a_route_taken_is_told():
    call = parse_call("conv2d:x=1x512x7x7,w=512x512x3x3,p=1", OPS)
    _, data = why_not(call, MALI, Options(), "implicit_gemm")
    assert data["nearest"]["names"] == ["conv2d.im2col"] and data["nearest"]["takes"].startswith("implicit_gemm")
    assert " it would be taken with conv2d.im2col: least_c_out=" in data["conclusion"]
    assert "in place of least_c_out=1 (published)" in data["conclusion"]


def test_parameters_are_told_by_their_estimated_times_where_a_cost_model_chose():
    call = parse_call("conv2d:x=1x64x28x28,w=64x64x3x3,p=1,dtype=f16", OPS)
    asked = Options(params={"conv2d:cooperative": {"tile": "128x128x64"}})
    _, data = why_not(call, H200, asked, "cooperative")
    assert data["estimated_us"]["asked"] > data["estimated_us"]["taken"] > 0
    assert "cooperative tile=128x128x64 could run; cooperative tile=" in data["conclusion"]
    assert f"estimates {data['estimated_us']['asked']:.4g} us" in data["conclusion"]
    _, data = why_not(call, H200, Options(), "cooperative")
    assert data["estimated_us"] is None and data["conclusion"].endswith("is taken (rule)")
    call = parse_call("conv2d:x=1x64x28x28,w=64x64x1x1", OPS)
    asked = Options(params={"conv2d:implicit_gemm": {"tile": "64x64x8"}})
    _, data = why_not(call, PI, asked, "implicit_gemm")
    assert "Rules chose, no cost model of times" in data["conclusion"]
    with pytest.raises(UsageError, match="cannot take tile=9"):
        why_not(call, PI, Options(params={"conv2d:implicit_gemm": {"tile": "9"}}), "implicit_gemm")


def test_devices_are_compared_with_what_flips_the_choice_before_what_else_was_read():
    table, data = compare([parse_call(CALL, OPS)], [MALI, H200], Options())
    (row,) = data["calls"]
    assert not row["same"] and [one["value"] for one in row["differs"]["compute_units"]] == ["7", "132"]
    assert "0 of 1 calls by the same route" in table.title and "compute_units: 7 (published) / 132 (driver)" in str(
        table
    )
    assert {name for flip in row["flips"] for name in flip["names"]} == {"conv2d.im2col"}
    (cells,) = table.rows
    assert "Mali-G715 would take implicit_gemm with conv2d.im2col: " in cells["flips the choice"]
    assert "conv2d.im2col" not in cells["also read"]


def test_a_missing_matrix_unit_is_what_flips_the_choice():
    call = parse_call("conv2d:x=1x64x28x28,w=64x64x3x3,p=1,dtype=f16", OPS)
    table, data = compare([call], [H200, RADEON], Options())
    (row,) = data["calls"]
    assert row["choices"][0].startswith("cooperative ") and not row["choices"][1].startswith("cooperative")
    missing = {"VK_KHR_cooperative_matrix", "cooperativeMatrix", "cooperativeMatrices"}
    flips = [flip for flip in row["flips"] if missing & set(flip["names"])]
    assert {name for flip in flips for name in flip["names"]} == missing
    assert all(flip["device"] == H200.name and not flip["takes"].startswith("cooperative") for flip in flips)
    (cells,) = table.rows
    assert "VK_KHR_cooperative_matrix: no in place of yes (driver)" in cells["flips the choice"]


def test_a_measured_table_is_what_flips_the_choice(monkeypatch):
    call = parse_call(CALL, OPS)
    winograd = next(route for route in OPS["conv2d"].routes if route.name == "winograd")
    best = Candidate("winograd", winograd.resolve(call, MALI, {}), 1, 0)
    monkeypatch.setattr(
        decisions, "find_measured", lambda device: {format_call(call, OPS): [best]} if device is MALI else {}
    )
    table, data = compare([call], [MALI, dataclasses.replace(MALI)], Options())
    (row,) = data["calls"]
    assert row["choices"][0].startswith("winograd") and row["flips"][0]["names"] == ["no measured table"]
    assert "would take im2col_gemm too with no measured table" in table.rows[0]["flips the choice"]


def test_devices_that_choose_the_same_have_nothing_that_flips_it():
    _, data = compare([parse_call("relu:x=1000", OPS)], [MALI, H200], Options())
    (row,) = data["calls"]
    assert row["same"] and not row["flips"]


def test_numbers_that_flip_a_choice_only_together_are_told_so(monkeypatch):
    call, mine = parse_call(CALL, OPS), {"compute_units": 7, "registers_per_lane": 64, "launch_us": 20}

    def most_are_mine(call, device):
        return sum(target_of(device).value(name) == value for name, value in mine.items()) >= 2

    op, need = OPS["conv2d"], Requirement("two of three numbers", most_are_mine, lambda call, device: "")
    routes = (dataclasses.replace(op.routes[-1], name="two_of_three", prefer=(need,)), *op.routes)
    monkeypatch.setitem(OPS, "conv2d", dataclasses.replace(op, routes=routes))
    table, data = compare([call], [MALI, H200], Options())
    (row,) = data["calls"]
    assert row["choices"][0].startswith("two_of_three") and row["flips"][0]["device"] == MALI.name
    assert len(row["flips"][0]["names"]) == 2 and set(row["flips"][0]["names"]) < set(mine)
    assert "(only together)" in table.rows[0]["flips the choice"]


@pytest.mark.parametrize("name", list(policy.tables()))
def test_two_rows_of_a_policy_never_have_the_same_text(name):
    for a, b in itertools.combinations(policy.table(name).rows, 2):
        values = [policy.whole_value(name, row) for row in (a, b)]
        texts = list(map(value_text, values))
        if texts[0] != texts[1]:
            first, second = apart(values, texts)
            assert first != second and max(len(first), len(second)) <= 63


def test_only_the_fields_of_a_row_that_differ_are_shown():
    seen = differing([Decision.of(parse_call(CALL, OPS), device, Options()) for device in (MALI, H200)])
    said = beside(seen["kernels.enough"], [MALI, H200])
    assert said == "kernels.enough: waste=1.5 least_occupancy=0.5 (assumed) / waste=inf least_occupancy=0 (measured)"
    rows = [{"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}}]
    assert apart(rows, ["", ""]) == ["a.c=2 d=3", "a.c=4 d=none"]


row_of = policy.row_of


def with_of(own: Device, other: Device, seen: Seen, patch: pytest.MonkeyPatch) -> Device:
    """A device with something of another one, by its facts and tables themselves."""
    facts, name = copy.deepcopy(dict(own.facts)), seen.name
    if seen.kind == "policy":
        row = row_of(name, other)
        patch.setattr(policy, "row_of", lambda one, device: row if one == name else row_of(one, device))
        return dataclasses.replace(own)
    if seen.kind == "quirks":
        return dataclasses.replace(own, own_quirks=other.quirks)
    if seen.kind == "number":
        for struct, field, _ in NUMBERS[name].driver:  # what the driver says goes before what a file says
            facts["properties"].get(struct, {}).pop(field, None)
        target = target_of(own)
        numbers = {key: value for key, value in target.numbers.items() if value.evidence != "driver"}
        numbers[name] = target_of(other).numbers[name]
        texts = {key: {"value": n.value, "evidence": n.evidence, "source": n.source} for key, n in numbers.items()}
        facts["target"] = {
            "generation": target.generation,
            "device_class": target.device_class,
            "numbers": texts,
        }
        return Device(facts, own.own_quirks)
    if seen.kind == "extension":
        facts["extensions"] = {key: value for key, value in facts["extensions"].items() if key != name}
        facts["extensions"] |= {name: 1} if other.has(name) else {}
        return Device(facts, own.own_quirks)
    paths = {
        "limit": ("properties", "VkPhysicalDeviceProperties", "limits", name),
        "property": ("properties", *seen.words),
        "feature": ("features", *seen.words),
        "cooperativeMatrices": ("cooperativeMatrices",),
    }
    *path, last = paths[seen.kind]
    inside, theirs = facts, dict(other.facts)
    for step in path:
        inside, theirs = inside.setdefault(step, {}), theirs.get(step, {})
    inside.pop(last, None)
    inside |= {last: theirs[last]} if last in theirs else {}
    return Device(facts, own.own_quirks)


def choice_of(call, device):
    try:
        return str(choose_route(call, "", device, Options()))
    except RouteError:
        return None


def explained(text: str, device: Device) -> None:
    """Hold what is said to flip a golden call to choosing again on a device that has it so."""
    call = parse_call(text, OPS)
    decisions = [Decision.of(call, one, Options()) for one in (device, H200)]
    if str(decisions[0].choice) == str(decisions[1].choice):
        assert not flips(call, decisions)
        return
    some = flips(call, decisions)
    assert some, f"nothing flips {text} on {device.name}"
    for flip in some:
        own, other = (decisions[at].device for at in (flip.device, flip.of))
        if len(flip.seen) == 1 and flip.seen[0].kind not in ("class", "format"):
            with pytest.MonkeyPatch.context() as patch:
                taken = choice_of(call, with_of(own, other, flip.seen[0], patch))
            assert taken == (str(flip.takes) if flip.takes else None), (text, flip.names)
            assert taken != str(decisions[flip.device].choice)


@pytest.mark.long
@pytest.mark.parametrize(("turn", "name"), list(enumerate(PHONES)))
def test_where_a_phone_chooses_otherwise_than_the_h200_something_flips_the_choice(turn, name):
    for text in share(5, CALLS, turn):
        explained(text, load_device(name))


@pytest.mark.long
@pytest.mark.parametrize("name", one_of_each_driver("h200"))
def test_where_another_gpu_chooses_otherwise_than_the_h200_something_flips_the_choice(name):
    for text in share(3, CALLS):
        explained(text, load_device(name))


@pytest.mark.long
@pytest.mark.parametrize("name", PHONES)
def test_all_that_a_choice_rests_on_is_read(name):
    """With all that is read taken from another device, a device chooses as that one."""
    for text in CALLS:
        call = parse_call(text, OPS)
        own, other = (Decision.of(call, one, Options()) for one in (load_device(name), H200))
        for a, b in ((own, other), (other, own)):
            choice, _ = decided_with(call, a, b, lambda kind, name: True)
            assert str(choice) == str(b.choice), text


def test_the_command_line_shows_it():
    code, out, _ = run("explain", CALL, "-d", "mali-g715")
    assert code == 0 and "number, policy or fact" in out and "compute_units" in out
    code, out, _ = run("explain", CALL, "-d", "mali-g715", "--why-not", "winograd", "--json")
    assert code == 0 and json.loads(out)["schema"] == "vkconv.why_not/1"
    code, out, _ = run("explain", CALL, "--compare", "mali-g715,h200", "--json")
    assert code == 0 and json.loads(out)["devices"] == ["Mali-G715", "NVIDIA H200"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((CALL, "--compare", "h200"), "names 1 device; it takes two or more"),
        ((CALL, "--compare", ","), "names 0 devices; it takes two or more"),
        ((CALL, "--compare", "h200,h2000"), "h2000"),
        ((CALL, "--compare", "h200,orin,h200"), "names h200 twice"),
        ((CALL, "--compare", "h200,orin", "-d", "h100"), "--device is of one device, and --compare h200,orin"),
        (("m.onnx", "--compare", "h200,orin", "--pass-dump", "d"), "--pass-dump is of one device"),
        ((CALL, "--compare", "h200,orin", "--why-not", "direct"), "exclude each other"),
        (("model.vkc", "--why-not", "direct"), "--why-not is for a call"),
        (("relu:slope=8",), "relu has no attribute 'slope'; it has none"),
    ],
)
def test_wrong_use_is_refused(argv, said):
    code, _, err = run("explain", *argv)
    assert code == 2 and said in err
