"""What the check of a whole device does with a case, without one; and that references and tolerances stand numbers
that are not finite, which it draws."""

import dataclasses
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conform_kit import CRASH, HANG, LOST, SLOW, TALK, Fake, check, rows, that_ends, without_device

from vkconv.check import Checked, conformance
from vkconv.check.calls import Expected, compare, expect
from vkconv.check.conformance import (
    Check,
    call_of,
    checks,
    conform,
    refusal,
    route_label,
    row_of,
    ways,
    with_packed_storage,
)
from vkconv.check.coverage import Conformance
from vkconv.check.inputs import draw
from vkconv.check.pool import _Queue, default_jobs, in_workers
from vkconv.cli.conform import parse_storages
from vkconv.cli.options import parse_floats
from vkconv.core import DeviceError, DType, LimitError, UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import judge

LAVAPIPE, H200, MALI = map(load_device, ("lavapipe", "h200", "mali-g57"))
RIGHT = Checked(0.0, 0.0, 1.0)


def foreseen(facts, checks):
    """The coverage that these checks have on a device, by what its routes require, without running one."""

    def row(check):
        refused = refusal(check.path, call_of(check.text), facts)
        return row_of(check, "refused" if refused else "ok", refused)

    return Conformance(facts, checks, tuple(map(row, checks)), 0.0).coverage


def of(text, route):
    """The check of a case on a route, in f32 or integers."""
    call = parse_call(text, OPS)
    return Check(text, ((call.op, route),), conformance.form_of(call, False))


@pytest.fixture
def ran(monkeypatch):
    """What `conform` runs, on a device that does everything right."""
    seen = []
    monkeypatch.setattr(conformance, "select_device", lambda device: (0, LAVAPIPE))
    monkeypatch.setattr(
        conformance, "run_call", lambda call, arrays, **how: seen.append((how["params"], how["replays"]))
    )
    monkeypatch.setattr(conformance, "expected_of", lambda text, kind: Expected({}, (), ()))
    monkeypatch.setattr(conformance, "hold", lambda call, ran, wanted: RIGHT)
    return seen


def test_one_case_of_a_route_is_checked_with_every_value_of_its_parameters_too(ran):
    mine = [check for check in checks(LAVAPIPE, ["softmax"]) if check.route == "workgroup"]
    varied = [check for check in mine if check.params]
    (text,) = {check.text for check in varied}
    assert {check.form for check in varied} == {"f32"}
    call = parse_call(text, OPS)
    (route,) = (route for route in OPS["softmax"].routes if route.name == "workgroup")
    legal = route.legal(call, LAVAPIPE)
    tried = {name: [check.params[name] for check in varied if name in check.params] for name in legal}
    assert tried == {name: sorted(values[1:]) for name, values in legal.items()} and len(tried["local"]) > 2
    for one in (next(plain for plain in mine if not plain.params), varied[0]):
        ran.clear()
        assert conform(one).status == "ok"
        assert ran == ([(one.params, 2)] if one.params else [({}, 2), ({}, 1)])


def test_parameters_of_routes_for_f16_alone_are_tried_in_it():
    varied = [check for check in checks(H200, ["matmul"]) if check.params and check.route == "cooperative"]
    assert varied and {check.form for check in varied} == {"f16"}


def test_winograd_is_not_given_what_it_says_it_spreads(ran):
    conform(of("conv2d:x=2x5x6x9,w=7x5x3x3,b=7,p=1,act=relu", "winograd"))
    assert ran[0] == ({}, 2) and all(replays == 2 for _, replays in ran)


def test_very_many_workgroups_run_once(ran):
    assert conform(of("matmul:a=70000x1x2,b=70000x2x1", "shared")).status == "ok"
    assert ran == [({}, 1)]


def test_what_planning_computes_is_no_row_of_the_device(ran):
    mine = of("constant_of_shape:shape=2x3,value=1.5", "fill")
    row = conform(mine)
    assert (row.status, row.why) == ("refused", "it is computed when a graph is planned")
    assert not ran
    (missed,) = Conformance(LAVAPIPE, [mine], [row], 0.0).coverage.missed
    assert missed.reason == "computed when a graph is planned"


def test_a_value_over_a_limit_is_refused_and_a_wrong_one_told(ran, monkeypatch):
    def run(call, arrays, **how):
        if how["params"].get("items") == 1:
            raise LimitError("too much")
        return how["params"]

    monkeypatch.setattr(conformance, "run_call", run)
    plain = of("neg:x=3x67", "elementwise")
    over, wrong = (dataclasses.replace(plain, params=params) for params in ({"items": 1}, {"local": 128}))
    row = conform(over)
    assert (row.status, row.why) == ("refused", "too much")
    # The route itself may be taken.
    result = Conformance(LAVAPIPE, [plain, over], [conform(plain), row], 0.0)
    assert not result.refusals().cells and not result.coverage.missed and not result.failed
    problem = dataclasses.replace(RIGHT, problem="y[0] is 1, the reference 2", pattern="all over")
    monkeypatch.setattr(conformance, "hold", lambda call, params, wanted: problem if params else RIGHT)
    assert conform(plain).status == "ok"
    row = conform(wrong)
    assert row.status == "FAILED" and row.why == f"with local = 128: {problem.problem}"
    assert row.command().endswith("--route neg=elementwise --param neg:elementwise=local:128")


def test_a_fault_of_vkconv_itself_is_that_of_one_check(ran, monkeypatch):
    def broken(call, arrays, **how):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(conformance, "run_call", broken)
    row = conform(of("neg:x=3x67", "elementwise"))
    assert (row.status, row.why) == ("error", "ZeroDivisionError: division by zero")


def test_an_op_that_does_not_exist_is_refused_with_a_hint():
    with pytest.raises(UsageError, match=r"'sofmax'.*softmax"):
        checks(LAVAPIPE, ["sofmax"])


# ---- element forms


def test_packed_storage_is_planned_for_as_on_a_device_that_has_no_other(ran, monkeypatch):
    planned = []
    monkeypatch.setattr(conformance, "run_call", lambda call, arrays, **how: planned.append(how["limits"]))
    packed, native = ([c for c in checks(H200, ["neg"], [DType.F16]) if c.is_packed == wanted] for wanted in (1, 0))
    assert [check.text for check in packed] == [check.text for check in native]
    row = conform(packed[0])
    assert planned and all(not limits.feature(*conformance.NATIVE) for limits in planned)
    assert row.form == "f16 packed" and row.command().endswith(" --storage packed")
    planned.clear()
    row = conform(native[0])
    assert set(planned) == {None} and row.form == "f16" and "--storage" not in row.command()


def test_a_device_has_the_kinds_of_storage_that_it_has():
    bare = with_packed_storage(H200)
    forms = {check.form for check in checks(bare, ["exp"])}
    assert forms == {"f32", "f16 packed", "bf16 packed"}
    with pytest.raises(UsageError, match="has no native 16-bit storage"):
        checks(bare, ["exp"], storages=["native"])
    assert {check.form for check in checks(H200, ["exp"], storages=["native"])} == {"f32", "f16", "bf16"}
    # What a case has in 16 bits by its own text is in both, what it has not, once.
    casts = [(check.text, check.form) for check in checks(H200, ["cast"], [DType.F32]) if not check.params]
    assert len(set(casts)) == len(casts)
    assert ("cast:x=3x67,to=f16", "f16") in casts and ("cast:x=3x67,to=f16", "f16 packed") in casts


def test_kinds_of_storage_to_check_in():
    assert parse_storages("") == parse_storages("packed,native") == ["native", "packed"]
    assert parse_storages("packed") == ["packed"]
    with pytest.raises(UsageError, match=r"--storage 'paked' is none \(did you mean 'packed'\?\)"):
        parse_storages("paked")


def test_the_routes_of_inner_calls_are_told_and_repeated():
    path = (("conv_reduce", "unfused"), ("conv_reduce/conv2d", "winograd"))
    assert route_label(path) == "unfused conv2d=winograd"
    row = row_of(Check(OPS["conv_reduce"].cases[0], path, "f32"), "error")
    assert row.command().endswith("--route conv_reduce=unfused --route conv_reduce/conv2d=winograd")


# ---- what is covered


@pytest.mark.long
def test_a_route_that_did_not_run_is_told_with_what_it_requires():
    coverage = foreseen(MALI, checks(MALI, ["matmul"]))
    (missed,) = {m.requirement: m for m in coverage.missed}.values()
    assert (missed.op, missed.route, missed.reason) == ("matmul", "cooperative", "not run here")
    assert "cooperative matrices" in missed.requirement
    # In f32 it does not exist, nor in packed storage.
    assert [m.form for m in coverage.missed] == ["f16", "bf16"]
    routes = len(OPS["matmul"].routes)
    assert coverage.routes == (routes - 1, routes)
    said = coverage.summary()
    assert said.startswith(f"routes: {routes - 1} of {routes} run, in ") and "not run here: matmul:cooperative" in said
    assert missed.requirement in str(coverage.table()) and coverage.data()["not_run"][0]["route"] == "cooperative"


def test_an_element_form_that_was_not_asked_for_is_not_counted():
    coverage = foreseen(MALI, checks(MALI, ["matmul"], [DType.F32]))
    assert not coverage.missed and coverage.routes[0] < len(OPS["matmul"].routes)


@pytest.mark.long
def test_a_route_that_no_case_reaches_is_told(monkeypatch):
    texts = tuple(text for text in OPS["conv2d"].cases if "3x3" not in text and "5x5" not in text)
    without = {**OPS, "conv2d": dataclasses.replace(OPS["conv2d"], cases=texts)}
    monkeypatch.setattr(conformance, "OPS", without)
    coverage = foreseen(LAVAPIPE, checks(LAVAPIPE, ["conv2d"], [DType.F32, DType.F16]))
    told = {(m.route, m.form): m for m in coverage.missed if m.reason == "no case reaches it"}
    assert told["winograd", "f16"].requirement and told["winograd", "f32"].cases == len(texts)
    (told,) = (part for part in coverage.summary().split("; ") if part.startswith("no case reaches it: "))
    assert "conv2d:winograd" in told.removeprefix("no case reaches it: ").split(", ")


def test_what_was_stopped_before_a_route_ran_is_told():
    work = checks(LAVAPIPE, ["softmax"], [DType.F32])
    result = Conformance(LAVAPIPE, work, [row_of(work[0], "ok")], 1.0, "stopped by Ctrl-C")
    assert result.coverage.routes == (1, len(OPS["softmax"].routes))
    assert {missed.reason for missed in result.coverage.missed} == {"not checked"}
    assert not result.coverage.table().cells and "not checked" not in result.coverage.summary()
    assert result.summary().startswith(f"INCOMPLETE, stopped by Ctrl-C after 1 of {len(work)} checks; 1 ran, of 1 ops")
    assert result.data()["incomplete"] and result.data()["checks"] == len(work)


def test_what_was_stopped_before_anything_ran_is_not_all_right():
    work = checks(LAVAPIPE, ["softmax"], [DType.F32])
    for done in ([], [row_of(work[0], "refused")]):
        result = Conformance(LAVAPIPE, work, done, 1.0, "stopped by Ctrl-C")
        assert result.summary().endswith("nothing was checked")
    assert (
        Conformance(LAVAPIPE, work, [row_of(work[0], "ok")], 1.0, "stopped by Ctrl-C").summary().endswith("all right")
    )


@pytest.mark.long
def test_every_route_is_reached_in_every_element_form_that_it_takes():
    """By a declared case, on this device or another one."""
    coverage = foreseen(H200, checks(H200, extent="short"))
    assert not [missed for missed in coverage.missed if missed.reason == "no case reaches it"]


def test_every_route_of_a_case_is_a_way_to_run_it():
    planned = [path for path, params, _ in ways(OPS["softmax"].cases[0], LAVAPIPE) if not params]
    assert planned == [(("softmax", route.name),) for route in OPS["softmax"].routes]


@pytest.mark.long
def test_every_route_of_the_calls_inside_a_route_is_a_way_to_run_it(ran):
    text = "conv_reduce:x=2x8x9x9,w=16x8x3x3,b=16,p=1,act=relu,op=mean"
    (unfused,) = (route for route in OPS["conv_reduce"].routes if route.name == "unfused")
    subs = unfused.inner(parse_call(text, OPS), LAVAPIPE, {})
    found = [(path, covered) for path, _, covered in ways(text, LAVAPIPE) if path[0][1] == "unfused"]
    ((_, first), *others) = found
    told = {route_label(path) for path, _ in found} | {route_label(path) for path in first}
    assert told >= {f"unfused {name}={route.name}" for name, sub in subs.items() for route in sub.routes}
    # With what is planned inside, it is run once.
    assert first[0] == (("conv_reduce", "unfused"),) and len(first) > len(subs)
    assert not {path for path, _ in others} & set(first)
    forced = next(path for path, _ in others if path[-1] == ("conv_reduce/conv2d", "direct"))
    row = conform(Check(text, forced, "f32"))
    assert (row.status, row.route) == ("ok", "unfused conv2d=direct")
    assert [params for params, _ in ran] == [{"conv2d": "direct"}] * 2
    refused = next(path for path, _ in others if path[-1][1] == "cooperative")
    assert conform(Check(text, refused, "f32")).why == "elements of one 16-bit float type"


@pytest.mark.long
def test_a_route_that_is_planned_inside_another_counts_as_run():
    work = [check for check in checks(LAVAPIPE, ["conv_reduce"], [DType.F32], extent="short") if len(check.covers) > 1]
    result = Conformance(LAVAPIPE, work, [row_of(check, "ok") for check in work], 0.0)
    assert not result.coverage.missed
    assert {route for _, route, _ in result.coverage.ran} == {route for check in work for route in check.covers}


# ---- workers


@pytest.mark.long
def test_every_check_is_done_once_whatever_is_done_first():
    work = [check(SLOW), *(check(3 + n, route) for n in range(9) for route in ("elementwise", "other"))]
    done = rows(work)
    assert sorted(index for index, _ in done) == list(range(len(work)))
    assert [index for index, _ in done] != sorted(index for index, _ in done)
    assert all(row.call == work[index].text and row.route == work[index].route for index, row in done)
    assert str(os.getpid()) not in {row.why for _, row in done}
    assert not multiprocessing.active_children()


def test_a_worker_keeps_to_a_route_while_it_has_checks_then_helps():
    work = [check(3 + n, route) for n in range(4) for route in ("elementwise", "other")]
    queue = _Queue(work)
    (first, mine), (second, its) = queue.take(None), queue.take(None)
    assert (first, second) == (0, 1) and mine != its
    assert [queue.take(mine)[0] for _ in range(3)] == [2, 4, 6]
    assert queue.take(mine) == (3, its)
    assert [queue.take(its)[0] for _ in range(2)] == [5, 7]
    assert not queue


@pytest.mark.long
def test_a_crash_is_the_row_of_its_check_and_the_others_go_on():
    work = [check(3), check(CRASH), check(4), check(CRASH), check(5), check(6)]
    done = dict(rows(work))
    for index, mine in enumerate(work):
        crashed = mine.text.endswith(str(CRASH))
        assert done[index].call == mine.text
        assert done[index].status == ("error" if crashed else "ok")
        if crashed:
            assert done[index].why == "the process that checked it ended by SIGSEGV"
    result = Conformance(LAVAPIPE, work, [done[index] for index in sorted(done)], 0.0)
    assert len(result.failed) == 2 and "--route relu=elementwise" in result.failed[0].command()


@pytest.mark.long
def test_a_check_that_does_not_end_is_ended():
    done = dict(rows([check(3), check(HANG), check(4)], most_s=1.0))
    assert [done[index].status for index in range(3)] == ["ok", "error", "ok"]
    assert done[1].why == "no end after 1 s: the process that checked it was ended by SIGKILL"


@pytest.mark.long
def test_a_lost_device_is_left_to_a_new_process():
    done = dict(rows([check(3), check(LOST), check(4), check(5)], jobs=1))
    assert [done[index].status for index in range(4)] == ["ok", "error", "ok", "ok"]
    assert done[0].why == done[1].why != done[2].why == done[3].why


@pytest.mark.long
def test_what_a_driver_prints_is_no_result(capfd):
    assert rows([check(TALK)])[0][1].status == "ok"
    told = capfd.readouterr()
    assert told.out == "" and "a driver's remark" in told.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (without_device, "no Vulkan device found; --jobs 1"),
        (that_ends, "one ended with exit code 3 as it began"),
        (Fake, "they find another device, fake"),
    ],
)
def test_workers_that_cannot_begin_are_told_of(make, words):
    with pytest.raises(DeviceError, match=words):
        rows([check(3)], make, device_key="other")


@pytest.mark.long
def test_workers_end_with_what_asked_for_them():
    started = in_workers([check(3), check(HANG)], Fake, 1, device_key="fake")
    next(started)
    assert multiprocessing.active_children()
    started.close()
    assert not multiprocessing.active_children()


@pytest.mark.long
def test_workers_end_with_a_process_that_is_killed():
    program = Path(__file__).with_name("conform_kit.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        worker = Path("/proc", parent.stdout.readline().strip(), "stat")
        assert worker.exists()
        parent.kill()
    until = time.monotonic() + 30
    # Nobody may be there to take note of its end.
    while worker.exists() and worker.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.05)


def test_so_many_workers_as_there_is_work_cores_and_memory_for(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    assert default_jobs(H200, 10_000) == 16
    assert default_jobs(H200, 70) == 2 and default_jobs(H200, 1) == 1
    phone = dataclasses.replace(MALI, facts={**MALI.facts, "memory": {"memoryHeaps": [{**_HEAP, "size": 3 << 30}]}})
    assert default_jobs(phone, 10_000) == 6


_HEAP = {"flags": ["VK_MEMORY_HEAP_DEVICE_LOCAL_BIT"]}


# Values a little beside the reference, as a kernel has them, and specials exactly where the reference has them.
@pytest.mark.parametrize(
    "text",
    [text for op in ("chain", "deform_conv2d", "grid_sample", "resize") for text in OPS[op].cases],
)
def test_rounding_beside_numbers_that_are_not_finite_is_no_fault(text):
    call = parse_call(text, OPS)
    if not any(judge(route, call, LAVAPIPE).allowed for route in OPS[call.op].routes):
        pytest.skip("no route here")
    wanted = expect(call, draw(call, 7, "specials"))
    with np.errstate(invalid="ignore"):
        near = [np.asarray(out, np.float64) * (1 + 2.0**-22) for out in wanted.outputs]
    typed = [out.astype(spec.dtype.numpy) for out, spec in zip(near, call.outputs.values(), strict=True)]
    checked = compare(call, typed, wanted)
    assert checked.ok, checked.problem


def test_a_place_outside_the_picture_reads_zero_whatever_is_nearest():
    call = parse_call("deform_conv2d:x=1x1x2x2,w=1x1x1x1,offset=1x2x2x2", OPS)
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    offset = np.zeros((1, 2, 2, 2), np.float32)
    offset[0, 0] = [[-1.0, np.nan], [np.inf, -1e30]]
    (y,) = expect(call, {"x": x, "w": np.ones((1, 1, 1, 1), np.float32), "offset": offset}).outputs
    np.testing.assert_array_equal(y, np.zeros((1, 1, 2, 2)))


def test_cases_in_other_types_are_those_that_have_floats_and_go_with_them():
    def texts(op, *dtypes):
        return list(dict.fromkeys(check.text for check in checks(H200, [op], dtypes or (DType.F32,))))

    assert texts("exp", DType.F16, DType.BF16) == [
        f"{text},dtype={d}" for d in ("f16", "bf16") for text in texts("exp")
    ]
    assert texts("neg", DType.F32) == texts("neg")
    assert not texts("logical_xor", DType.F16) and not texts("conv_integer", DType.BF16)
    assert all(parse_call(text, OPS).half is DType.F16 for text in texts("cast", DType.F16))


def test_types_to_check_in():
    assert parse_floats(None) == [DType.F32]
    assert parse_floats(["bf16,f16", "f16"]) == [DType.BF16, DType.F16]
    with pytest.raises(UsageError, match="'relu=f16': with --all-ops it is one or more of"):
        parse_floats(["relu=f16"])


def runs_by_route(device, work):
    """Of each route in each element form: how many checks run, and what operands and attributes they have."""
    facts = {False: device, True: conformance.emulated(with_packed_storage(device), device)}
    found = {}
    for one in work:
        if not conformance.refusal(one.path, conformance.call_of(one.text), facts[one.is_packed]):
            count, words = found.get((one.op, one.route, one.form), (0, set()))
            found[one.op, one.route, one.form] = count + 1, words | set(re.findall(r"[:,](\w+)=", one.text))
    return found


@pytest.mark.long
@pytest.mark.parametrize("device", [LAVAPIPE, MALI], ids=["lavapipe", "mali-g57"])
def test_few_checks_reach_every_route_with_all_its_operands_and_attributes(device):
    ops = ("matmul", "pool2d", "softmax", "add")
    short, few = (checks(device, ops, extent=extent) for extent in ("short", "few"))
    plain = [[dataclasses.replace(one, fixed=None) for one in work] for work in (short, few)]
    assert [one for one in plain[0] if one in plain[1]] == plain[1]
    (all_runs, runs) = (runs_by_route(device, work) for work in (short, few))
    assert {key: words for key, (_, words) in runs.items()} == {key: words for key, (_, words) in all_runs.items()}
    assert sum(count for count, _ in runs.values()) < 0.6 * sum(count for count, _ in all_runs.values())
    assert foreseen(device, few).forms == foreseen(device, short).forms
    assert set(foreseen(device, few).ran) == set(foreseen(device, short).ran)
