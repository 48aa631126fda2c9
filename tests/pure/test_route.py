"""choose(): the order of routes, forcing, the measured table, and refusals that say what was looked at."""

import dataclasses
import itertools

import pytest
from graph_kit import made_up_device

from vkconv.call import Call
from vkconv.core import RouteError, UsageError
from vkconv.device.reads import Watch, watching
from vkconv.graph import TensorSpec
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Candidate, Route, Sub, choose, judge

CALL = Call("op", {"x": TensorSpec((7,))}, {"y": TensorSpec((7,))}, {})
DEVICE = made_up_device()


EVERY_TRUTH = pytest.mark.parametrize(
    ("must_a", "prefer_a", "must_b", "prefer_b"), list(itertools.product([True, False], repeat=4))
)


def need(text, holds):
    """A need that holds or not, and shows the length of x."""
    return Requirement(text, lambda call, device: holds, lambda call, device: f"x of {call.shape('x')[0]}")


def route(name, must=(), prefer=(), **params):
    rows = [
        tuple(need(f"{kind} {i} of {name}", h) for i, h in enumerate(g)) for kind, g in (("m", must), ("p", prefer))
    ]
    return Route(name, lambda call, device, params: Program(()), (), "why", *rows, params=lambda call, device: params)


def fastest(*names, **params):
    """What a measured table knows: routes by name, the fastest last."""
    return [Candidate(name, params, 9.0 - i, 0.1) for i, name in enumerate(names)]


def chosen(*routes, **options):
    choice = choose(routes, CALL, DEVICE, **options)
    return choice.route.name, choice.by


def test_the_first_route_whose_every_need_holds_wins():
    assert chosen(route("a", must=[True], prefer=[True]), route("b"), route("c")) == ("a", "rule")
    assert chosen(route("a", must=[False]), route("b", prefer=[True, False]), route("c")) == ("c", "rule")


def test_the_last_route_is_the_last_resort():
    refused = [route("a", must=[False]), route("b", prefer=[False])]
    assert chosen(*refused, route("last")) == ("last", "rule")


def test_routes_for_those_who_ask_and_what_quirks_avoid_are_no_rules_choice(monkeypatch):
    asked = dataclasses.replace(route("asked"), opt_in="it takes more memory")
    half = dataclasses.replace(route("half"), f16_depth=lambda call: 32)
    avoided, last = route("avoided"), route("last")
    reason = "no quirk slow (always)"
    monkeypatch.setattr(type(DEVICE), "avoids", lambda self, op, name, call: reason if name == "avoided" else "")
    said = [judge(each, CALL, DEVICE) for each in (asked, half, avoided, last)]
    assert [(verdict.allowed, verdict.preferred) for verdict in said] == [(True, False)] * 3 + [(True, True)]
    assert [verdict.refused_by for verdict in said[:3:2]] == ["opt-in only: it takes more memory", reason]
    assert chosen(asked, half, avoided, last) == ("last", "rule")
    assert judge(half, CALL, DEVICE, half_sums=True).preferred


def test_where_no_route_is_preferred_opt_in_ones_and_those_of_changing_bits_come_last():
    plain, never = route("plain", prefer=[False]), route("never", must=[False])
    asked = dataclasses.replace(route("asked"), opt_in="it takes more memory")
    loose = dataclasses.replace(route("loose", prefer=[False]), deterministic=False)
    assert chosen(never, loose, asked, plain) == ("plain", "last resort")
    assert chosen(never, loose, asked) == ("asked", "last resort")
    assert chosen(never, loose) == ("loose", "last resort")


def test_a_route_whose_inner_call_no_route_takes_cannot_run():
    def around(*routes):
        return dataclasses.replace(route("outer"), inner=lambda call, device, params: {"sum": Sub(CALL, routes)})

    assert judge(around(route("a", must=[False]), route("b")), CALL, DEVICE).allowed
    empty = Call("op", {"x": TensorSpec((0,))}, {"y": TensorSpec((0,))}, {})
    assert judge(around(route("a", must=[False])), empty, DEVICE).allowed  # nothing of it runs
    one = judge(around(route("a", must=[False])), CALL, DEVICE)
    assert (one.allowed, one.refused_by, one.actual) == (False, "m 0 of a", "x of 7")
    two = judge(around(route("a", must=[False]), route("b", must=[False])), CALL, DEVICE)
    assert (two.allowed, two.refused_by) == (False, "a route of op for its sum")
    assert two.actual == "a needs m 0 of a (here x of 7); b needs m 0 of b (here x of 7)"


@EVERY_TRUTH
def test_a_forced_route_skips_prefer_and_never_must(must_a, prefer_a, must_b, prefer_b):
    routes = (route("a", [must_a], [prefer_a]), route("b", [must_b], [prefer_b]), route("last"))
    if must_b:
        assert chosen(*routes, forced="b") == ("b", "forced")
    else:
        with pytest.raises(RouteError, match="'b' cannot take op"):
            chosen(*routes, forced="b")


@EVERY_TRUTH
def test_a_measured_route_outranks_prefer_and_never_must(must_a, prefer_a, must_b, prefer_b):
    routes = (route("a", [must_a], [prefer_a]), route("b", [must_b], [prefer_b]), route("last"))
    ruled = chosen(*routes)
    assert chosen(*routes, measured=lambda call: fastest("b")) == (("b", "measured") if must_b else ruled)


def test_a_measured_route_that_no_longer_exists_is_ignored():
    assert chosen(route("a"), measured=lambda call: fastest("gone")) == ("a", "rule")


def test_the_fastest_measured_route_that_can_run_is_taken_with_its_parameters():
    routes = (route("a"), route("b", tile=(8, 4)), route("c", must=[False]))
    choice = choose(routes, CALL, DEVICE, measured=lambda call: [*fastest("a"), *fastest("a", "b", "c", tile=4)])
    assert (choice.route.name, choice.by, choice.params) == ("b", "measured", {"tile": 4})
    assert [c.us_median for c in choice.measured] == [7.0, 8.0, 9.0, 9.0]
    assert str(choice) == "b tile=4"


def test_measured_parameters_that_are_no_longer_legal_are_ignored():
    routes = (route("a"), route("b", tile=(8, 4)))
    assert chosen(*routes, measured=lambda call: [*fastest("b", tile=3), *fastest("b", size=4), *fastest("b")]) == (
        "a",
        "rule",
    )
    assert chosen(*routes, measured=lambda call: [*fastest("b", tile=3), *fastest("b", tile=8)]) == ("b", "measured")


def test_a_forced_route_outranks_a_measured_one():
    assert chosen(route("a"), route("b"), route("c"), forced="b", measured=lambda call: fastest("c")) == ("b", "forced")


def test_refusing_a_forced_route_gives_the_need_and_the_actual_value():
    with pytest.raises(RouteError) as error:
        chosen(route("a", must=[True, False]), route("b"), forced="a")
    assert f"on {DEVICE.name}: it needs m 1 of a, and here it is x of 7" in str(error.value)


def test_an_unknown_forced_route_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match=r"op has no route 'dierct' \(did you mean 'direct'\?\); it has direct, tile"):
        chosen(route("direct"), route("tile"), forced="dierct")


def test_when_no_route_can_run_every_reason_is_given():
    with pytest.raises(RouteError) as error:
        chosen(route("a", must=[False]), route("b", must=[True, False]))
    assert "a needs m 0 of a (here x of 7); b needs m 1 of b (here x of 7)" in str(error.value)


def test_verdicts_come_for_every_route_in_order_and_look_at_must_first():
    routes = (route("a", [True, False], [False]), route("b", [True], [True, False]), route("c", [True], [True]))
    verdicts = choose(routes, CALL, DEVICE).verdicts
    assert [(v.route.name, v.allowed, v.preferred, v.refused_by) for v in verdicts] == [
        ("a", False, False, "m 1 of a"),
        ("b", True, False, "p 1 of b"),
        ("c", True, True, ""),
    ]
    assert tuple(verdicts) == tuple(judge(r, CALL, DEVICE) for r in routes)


def spied(looked, name):
    """A route that is preferred, and says that it was looked at."""
    spy = Requirement("spy", lambda call, device: looked.append(name) or True, lambda call, device: "")
    return dataclasses.replace(route(name), must=(spy,))


def test_routes_behind_the_one_that_is_taken_are_judged_when_somebody_looks():
    looked = []
    choice = choose([spied(looked, name) for name in "abc"], CALL, DEVICE)
    assert (choice.route.name, looked) == ("a", ["a"])
    assert [v.preferred for v in choice.verdicts] == [True] * 3 and choice.verdicts[-1].route.name == "c"
    assert looked == ["a", "b", "c"]


def test_a_forced_route_is_judged_alone():
    looked = []
    choose([spied(looked, name) for name in "abc"], CALL, DEVICE, forced="b")
    assert looked == ["b"]


def test_who_watches_is_told_of_every_route():
    looked = []
    with watching(Watch()):
        choose([spied(looked, name) for name in "abc"], CALL, DEVICE)
    assert looked == ["a", "b", "c"]


def test_a_need_sees_the_call_and_the_device():
    seen = []
    spy = Requirement("spy", lambda call, device: seen.append((call, device)) or True, lambda call, device: "")
    choose((Route("a", lambda call, device, params: Program(()), (), "why", (spy,)),), CALL, DEVICE)
    assert seen == [(CALL, DEVICE)]
