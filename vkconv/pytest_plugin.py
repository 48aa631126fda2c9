"""The pytest plugin: fixtures that run calls and models on a Vulkan device, and a summary that says what ran where.

Installed with vkconv as an entry point. It imports vkconv's own modules only when a fixture is used.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vkconv.device import Device
    from vkconv.session import Session
    from vkconv.staged import StagedSession
    from vkconv.testing import CallUnderTest, DeviceUnderTest

_DEVICE, _ROUTE, _SKIPPED = "vk_device", "vk_route", "vk_skipped"
_NO_DEVICE, _REFUSED, _NO_QUIRK = "no Vulkan device", "refused by the device", "no such quirk"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vkconv", "tests on a Vulkan device")
    group.addoption("--vk-device", default="auto", metavar="SEL", help="auto, an index or part of a name")
    group.addoption(
        "--vk-limits",
        default="",
        metavar="FILE|NAME",
        help="plan with the limits and routes of another device: mali-g57, or a device file",
    )
    group.addoption(
        "--vk-route", action="append", default=[], metavar="OP=ROUTE", help="force a route for an op; repeatable"
    )
    group.addoption(
        "--vk-require", action="store_true", help="fail, instead of skipping, where there is no Vulkan device"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vk_quirk(id): runs only on devices whose driver has this known quirk")
    if config.getoption("--vk-route") or config.getoption("--vk-limits"):
        from vkconv.core import VkconvError

        try:
            _asked_for(config)
        except VkconvError as error:
            raise pytest.UsageError(str(error)) from None


def _asked_for(config: pytest.Config) -> "tuple[dict[str, str], Device | None]":
    """The routes that are forced for ops, and the device whose limits are used. Raises VkconvError for neither."""
    from vkconv.core import UsageError, did_you_mean
    from vkconv.device import load_device
    from vkconv.ops import OPS

    forced: dict[str, str] = {}
    for text in config.getoption("--vk-route"):
        op, equals, route = text.partition("=")
        if not equals:
            raise UsageError(f"--vk-route {text!r} is not OP=ROUTE")
        if op not in OPS:
            raise UsageError(f"--vk-route {text}: there is no op {op!r}{did_you_mean(op, OPS)}; vkconv ops lists them")
        names = [known.name for known in OPS[op].routes]
        if route not in names:
            has = ", ".join(names) or "none"
            raise UsageError(
                f"--vk-route {text}: {op} has no route {route!r}{did_you_mean(route, names)}; it has {has}"
            )
        forced[op] = route
    limits = config.getoption("--vk-limits")
    return forced, load_device(limits) if limits else None


@pytest.fixture(scope="session")
def _vk_found(request: pytest.FixtureRequest) -> "DeviceUnderTest | str":
    """The device under test, or why there is none."""
    from vkconv.backend.runtime import select_device
    from vkconv.core import DeviceError, UsageError
    from vkconv.testing import DeviceUnderTest

    forced, other = _asked_for(request.config)
    selector = request.config.getoption("--vk-device")
    try:
        index, facts = select_device(selector)
    except (DeviceError, UsageError) as error:
        if selector != "auto":  # one that was asked for, and is not here: nothing would be tested
            pytest.fail(f"--vk-device {selector}: {error}", pytrace=False)
        return str(error)
    limits = request.config.getoption("--vk-limits")
    return DeviceUnderTest("auto" if selector == "auto" else index, facts, other, forced, limits)


@pytest.fixture
def vk_device(_vk_found: "DeviceUnderTest | str", request: pytest.FixtureRequest) -> "DeviceUnderTest":
    """The device under test: `vkconv.testing.DeviceUnderTest`. Skips where there is none; fails with --vk-require."""
    if isinstance(_vk_found, str):
        if request.config.getoption("--vk-require"):
            pytest.fail(f"--vk-require: {_vk_found}", pytrace=False)
        _skip(request, _NO_DEVICE, _vk_found)
    assert not isinstance(_vk_found, str)
    _property(request, _DEVICE, _vk_found.facts.name)
    known = {quirk.id for quirk in _vk_found.facts.quirks}
    for mark in request.node.iter_markers("vk_quirk"):
        for quirk in _quirks(mark):
            if quirk not in known:
                _skip(request, _NO_QUIRK, f"{_vk_found.facts.name} has no quirk {quirk}")
    return _vk_found


def _quirks(mark: pytest.Mark) -> tuple[str, ...]:
    """The quirks that a mark names, which vkconv must know: a test for any other would never run."""
    from vkconv.core import UsageError, did_you_mean
    from vkconv.device.quirks import QUIRKS

    ids = [row.id for row in QUIRKS]
    if not mark.args:
        raise UsageError('vk_quirk needs the id of a quirk, such as vk_quirk("adreno-im2col-band")')
    for quirk in mark.args:
        if quirk not in ids:
            raise UsageError(f"vkconv knows no quirk {quirk!r}{did_you_mean(str(quirk), ids)}; {', '.join(ids)}")
    return mark.args


@pytest.fixture
def vk_call(
    vk_device: "DeviceUnderTest", request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Callable[..., CallUnderTest]":
    """``vk_call("conv2d:x=1x3x9x9,w=4x3x3x3", inputs=None, route=None, params=None, seed=0)`` runs a call and gives a
    `vkconv.testing.CallUnderTest`. A route that the device may not be given skips the test, and is counted."""
    from vkconv.ops import OPS
    from vkconv.ops.core.calls import parse_call
    from vkconv.testing import CallUnderTest

    def run(
        text: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        route: str | None = None,
        params: Mapping[str, int | str] | None = None,
        seed: int = 0,
    ) -> CallUnderTest:
        call = parse_call(text, OPS)
        forced = route or vk_device.routes.get(call.op)
        if forced and not (verdict := vk_device.verdict(call, forced)).allowed:
            _skip(request, _REFUSED, f"{forced} needs {verdict.refused_by}, here {verdict.actual}")
        folder = tmp_path_factory.mktemp("vkconv-failure") if inputs else None
        ran = CallUnderTest(vk_device, text, inputs, route=route, params=params, seed=seed, folder=folder)
        _property(request, _ROUTE, f"{call.op} {ran.route}")
        return ran

    return run


@pytest.fixture
def vk_session(
    vk_device: "DeviceUnderTest", request: pytest.FixtureRequest
) -> "Iterator[Callable[..., Session | StagedSession]]":
    """``vk_session("model.onnx", **options)`` loads a model as `vkconv.load` does, on the device under test; it is
    closed with the test."""
    from vkconv.loading import load
    from vkconv.plan.planner import Options

    opened: list[Session | StagedSession] = []

    def start(source: Any, *, routes: Mapping[str, str] | None = None, **more: Any) -> "Session | StagedSession":
        options = more.pop("options", None) or Options()
        forced = {**vk_device.routes, **(routes or {})}
        session = load(source, vk_device.selector, routes=forced, options=options, limits=vk_device.limits, **more)
        opened.append(session)
        return session

    yield start
    for session in opened:
        session.close()


@pytest.fixture
def vk_check(vk_device: "DeviceUnderTest", tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """``vk_check("model.onnx", inputs, repeat=0)`` checks a model node by node, and with ``repeat`` so many replays;
    AssertionError names the first node that is wrong, with a folder and a command that repeat it alone."""
    from vkconv.check.dump import dump_node
    from vkconv.check.model import check_model
    from vkconv.check.repeat import repeat_model
    from vkconv.graph import Graph, load_model
    from vkconv.plan.planner import Options

    def checked(source: Graph | str | Path, inputs: Mapping[str, Any], *, repeat: int = 0) -> None:
        graph = source if isinstance(source, Graph) else load_model(source)
        options = Options(routes=dict(vk_device.routes))
        where: dict[str, Any] = {
            "device": vk_device.selector,
            "options": options,
            "limits": vk_device.limits,
        }
        found = check_model(graph, inputs, stop_at_first=True, **where)
        if found.first is not None:
            node = found.first
            _, command = dump_node(
                tmp_path_factory.mktemp("vkconv-failure"),
                node.node,
                node.call,
                node.arrays,
                route=node.route,
                params=node.params,
                constant=node.constant,
                more=tuple(vk_device.options()),
            )
            raise AssertionError(f"{found.problem}\n  device   {vk_device}\n  repeat   {command}")
        problem = found.problem or (repeat_model(graph, inputs, repeat, **where).problem if repeat else "")
        if problem:
            raise AssertionError(f"{problem}\n  device   {vk_device}")

    return checked


def _property(request: pytest.FixtureRequest, name: str, value: str) -> None:
    """A property of the test, which reports, junit files and the summary carry; each once."""
    if (name, value) not in request.node.user_properties:
        request.node.user_properties.append((name, value))


def _skip(request: pytest.FixtureRequest, kind: str, reason: str) -> None:
    _property(request, _SKIPPED, kind)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What ran where, by route, and what was skipped because of the device."""
    results: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    skipped: collections.Counter[str] = collections.Counter()
    devices: dict[str, None] = {}
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == _DEVICE:
                    devices[value] = None
                elif name == _ROUTE and report.when == "call" and outcome != "skipped":
                    results[value][outcome] += 1
                elif name == _SKIPPED and outcome == "skipped":
                    skipped[value] += 1
    if not (devices or skipped):
        return
    terminalreporter.section("vkconv")
    terminalreporter.line(f"device: {', '.join(devices) or 'none'}")
    for route, counts in sorted(results.items()):
        terminalreporter.line(f"{route}: {', '.join(f'{counts[o]} {o}' for o in ('passed', 'failed') if counts[o])}")
    for kind, count in sorted(skipped.items()):
        terminalreporter.line(f"skipped, {kind}: {count}")
