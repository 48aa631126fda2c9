"""Ways in from other programs and machines: what players, drivers, shells and package tools answer, results, caches."""

import io
import json
import tarfile
from collections.abc import Mapping
from functools import cache

from graph_kit import make_graph
from target import FOLDER, Target, file_of, refusable

from vkconv import compiler
from vkconv.bench.rows import Row
from vkconv.check.compared import SCHEMAS, read_checks
from vkconv.check.conformance import Conformed
from vkconv.cli import compare, probe
from vkconv.cli.loader import library_of
from vkconv.compilers.installed import MANIFEST, Installed
from vkconv.compilers.packages import parse_digests, parse_uris
from vkconv.compilers.runner import answer_of, compiled_of, read_kept
from vkconv.core import DType
from vkconv.device import load_device
from vkconv.device.importer import import_device
from vkconv.files import read_cache
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.phone.board import device_of, unpack
from vkconv.phone.calls import PackedCheck
from vkconv.phone.packs import PackedModel, PackedNode
from vkconv.phone.results import conditions, conformed, fill_row, kept_output, model_check
from vkconv.phone.told import read_line
from vkconv.phone.transport import devices_of
from vkconv.plan.planner import plan
from vkconv.spirv import capabilities, is_spirv

# ---- the player


@cache
def _packed() -> PackedModel:
    call = parse_call("relu:x=2x3x5", OPS)
    nodes = tuple(PackedNode(name, call, "relu:x=2x3x5", "walk", {}, (), {}) for name in ("a", "b"))
    return PackedModel("files/a.plan", "net", load_device("lavapipe"), nodes, 2)


def _told(data: bytes) -> None:
    """Lines of a player, each as all commands take it."""
    for text in data.decode("utf-8", "replace").split("\n"):
        result = read_line(text)
        if result is None or "pack" not in result:
            continue
        row = Row(call="relu:x=2x3x5", op="relu", route="walk")
        row.flops, row.bytes = 30, 240
        fill_row(row, result, 1.0)
        conditions(result)
        model_check(_packed(), result)
        check = Conformed("relu", "relu:x=2x3x5", "walk", ("f32",), "ok")
        conformed(PackedCheck(check, {"normals": 0, "specials": 1}), {0: result, 1: result}, "")


def _told_seeds() -> list[bytes]:
    output = {
        **{"output": "y", "ok": False, "problem": "wrong", "max_abs": 1.5, "max_rel": None, "relative": 1e-5},
        **{"wrong": 2, "elements": 30, "nan": 0, "inf": 1, "sha256": "ab", "worst": 17, "got": 1.0, "expected": 2.0},
        **{"allowed": 0.1, "places": "column 4, the last, of 5"},
    }
    times = {
        **{"clock": "host", "us_median": 2.5, "us_min": 2.0, "us_p90": 3.0, "us_p99": 3.5, "us_spread_percent": 1.0},
        **{"runs": 9, "together": 3, "submissions": 3, "us_wall": 4.0, "us_wall_repeated": 3.0, "us_compile": 900.0},
        **{"samples_us": [2.0, 2.5, 3.0], "dispatches": [{"name": "relu", "us": 2.5}], "us_prepack": 3.5},
    }
    header = {"schema": "vkconv.played/1", "device": "d", "driver": "v", "timestamp_period_ns": 52.0}
    node = {"node": "a", "label": "a", "cause": "alone", "problem": "", "alone": [output], "run": [output]}
    begin = {"pack": "files/a.plan", "label": "relu", "status": "FAILED", "why": "y is wrong"}
    about = {"hottest_celsius": 41.5, "gpu_mhz": 900.0, "battery_percent": 77.0, "battery_status": "Discharging"}
    failed = {**begin, "outputs": [output], "nodes": [node], "shared": ["b"], "conditions": about}
    timed = {**begin, "status": "ok", "why": "", "times": times, "outputs": [{**output, "ok": True}]}
    return ["\n".join(map(json.dumps, (header, line, "noise"))).encode() for line in (failed, timed)]


def _archive(data: bytes) -> None:
    """Outputs as a board sends them: packed, and each of them."""
    refusable(lambda: kept_output("y", data[:-10_216], DType.F32, (2, 3)))
    unpack(data, FOLDER / "got")


def _archive_seeds() -> list[bytes]:
    packed = io.BytesIO()
    with tarfile.TarFile(fileobj=packed, mode="w") as archive:
        for name in ("run-1/got/a_0.bin", "run-1/got/" + "b" * 120):
            member = tarfile.TarInfo(name)
            member.size = 600
            archive.addfile(member, io.BytesIO(b"x" * 600))
    return [packed.getvalue()]


def _report_seeds() -> list[bytes]:
    """What vulkaninfo, its older versions, and phones report, as far as anything reads it."""
    facts = load_device("mali-g57").facts
    block = {name: facts[name] for name in ("properties", "features", "extensions")}
    block["heaps"] = facts["memory"]["memoryHeaps"]
    profile = {"capabilities": {"device": block}, "profiles": {"player": {"capabilities": ["device"]}}}
    base = facts["properties"]["VkPhysicalDeviceProperties"]
    old = {
        "VkPhysicalDeviceProperties": base,
        "ArrayOfVkExtensionProperties": [{"extensionName": name, "specVersion": 1} for name in facts["extensions"]],
        "VkPhysicalDeviceMemoryProperties": {"memoryHeaps": [{"size": 1 << 30, "flags": 1}]},
        **facts["features"],
    }
    core = {"properties": {"subgroupSize": 16.0, "subgroupSupportedStages": 32.0}, "features": {"shaderFloat16": 1}}
    phone = {"devices": [{"properties": base, "core11": core, "core12": core, "memory": {"memoryHeaps": []}}]}
    return [json.dumps(report).encode() for report in (profile, old, phone)]


def _report(data: bytes) -> None:
    refusable(lambda: device_of(data))
    device = import_device(file_of("report.json", data))
    device.describe()
    plan(make_graph({"x": (2,)}, [("relu", "x", "y")], "y"), device, shapes={})


# ---- results of checks, of other machines and releases


def _checks(data: bytes) -> None:
    """A result of checks on either side of a whole one, as the command tells and saves it, and of one board."""
    path, whole = file_of("checks.json", data), file_of("whole.json", _checks_seeds()[0])
    refusable(lambda: read_checks(path, "1A2B"))
    if compare._schema(path) not in SCHEMAS:  # bench reads it: the target `result`
        read_checks(path)
    for a, b in ((path, whole), (whole, path)):
        report = compare._of_checks(a, "", b, "")
        report.save([FOLDER / f"compared{suffix}" for suffix in (".json", ".csv", ".md", ".html", ".xml")])


@cache
def _checks_seeds() -> list[bytes]:
    """Of all ops, of a model that was run again and swept, and of two boards, one of which did not answer."""
    device = {"name": "GPU", "driver": "1.0"}
    row = {"call": "relu:x=4", "route": "vec4", "form": "f32", "status": "ok", "max_rel": 0.5, "allowed": 1.0}
    refused = row | {"call": "relu:x=5", "status": "refused", "why": "no f16", "params": {"local": 64}}
    ops = {"schema": "vkconv.conformance/1", "device": device, "rows": [row, refused], "stopped": ""}
    judged = {"call": "relu:x=4", "route": "vec4", "params": {"local": 64}}
    error = {"max_rel": 0.5, "allowed": 1.0, "ok": True}
    node = judged | {"node": "a", "alone": error, "cause": "alone", "problem": "y is wrong"}
    again = judged | {"node": "a", "runs": 3, "problem": "other bytes"}
    model = {
        **{"schema": "vkconv.check/1", "device": device, "check": {"nodes": [node], "complete": False}},
        **{"repeat": {"nodes": [again]}, "sweep": [judged | {"check": error}], "problems": ["y is wrong"]},
    }
    boards = [ops | {"board": "1A2B"}, {"board": "3C4D", "problem": "it did not answer"}]
    every = (ops, model, {"schema": "vkconv.boards/1", "boards": boards})
    return [json.dumps(result).encode() for result in every]


# ---- programs and caches of this machine


def _shell(data: bytes) -> bool:
    """What adb and apt print, in which something is found or nothing."""
    text = data.decode(errors="replace")
    return any([devices_of(text), parse_uris(text), parse_digests(text)])


def _shell_seeds() -> list[bytes]:
    uri = b"'http://deb/pool/m/mesa-vulkan-drivers_26.1.0-1%2bb1_amd64.deb' mesa-vulkan-drivers_26.1.0-1%2bb1_amd64.deb"
    stanza = b"Package: a\nVersion: 1.0-1\nSHA256: 00ff\n\nPackage: b\nVersion: 2\nSHA256: 11\n"
    return [b"List of devices attached\none\tdevice\ntwo\tunauthorized\n", uri + b" 1234 SHA256:00ff\n", stanza]


def _compiled(data: bytes) -> bool:
    """What a compiler said of a pipeline: as it says it, and as it is kept."""
    text = data.decode("utf-8", "replace")
    taken = refusable(lambda: compiled_of(answer_of(text, "gpu"), 9.0, "gpu").why)
    kept = read_kept(file_of("compiled.json", data), 9.0)
    if kept is not None:
        str(kept.why)
    return taken or kept is not None


def _compiled_seeds() -> list[bytes]:
    executable = {"name": "cs", "subgroup_size": 16, "statistics": {"Code size": 128, "Cycles": 2.5}}
    said = {"id": 3, "outcome": "compiled", "compile_ms": 2.5, "executables": [executable], "call": "", "said": ""}
    return [json.dumps(line).encode() for line in (said, {"outcome": "signal", "signal": 11, "seconds": 3.0})]


def _set(data: bytes) -> None:
    folder = FOLDER / "amd64"
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_bytes(data)
    there = Installed("amd64", folder)
    list(there.differences)


def _set_seeds() -> list[bytes]:
    package = {"version": "26.1.0-1", "sha256": "00ff"}
    return [json.dumps({"schema": "vkconv.compilers/1", "packages": {"mesa-vulkan-drivers": package}}).encode()]


def _spirv(data: bytes) -> None:
    """A module of a cache, whose checksum holds or does not, and the index of a folder of them."""
    code = read_cache(file_of("a.spv", data), 1 << 20)
    if is_spirv(code):
        capabilities(code, "a")
    (FOLDER / "index.json").write_bytes(data)
    index = compiler.read_index(FOLDER)
    for key in index:
        assert isinstance(index[key]["source"], str) and isinstance(index[key]["sha256"], str)


def _spirv_seeds() -> list[bytes]:
    words = (0x07230203, 0x00010300, 0, 9, 0, 0x00020011, 1, 0x00020011, 4433, 0x0003000E, 0, 1)
    index = {"schema": compiler.INDEX_SCHEMA, "shaders": {"a": {"source": "00", "sha256": "11"}}}
    return [b"".join(word.to_bytes(4, "little") for word in words), json.dumps(index).encode()]


def _driver(data: bytes) -> bool:
    """A manifest of a Vulkan driver, and what a process says that opened one, for vkconv doctor."""
    told = refusable(lambda: probe.answer_of(data.decode("utf-8", "replace")))
    library = library_of(file_of("icd.json", data))
    return told or ", Vulkan " in library


def _driver_seeds() -> list[bytes]:
    icd = {"library_path": "libvulkan_lvp.so", "api_version": "1.3.230"}
    return [json.dumps({"ICD": icd, "file_format_version": "1.0.0"}).encode()]


ANSWERS: Mapping[str, Target] = {
    "archive": Target(_archive, _archive_seeds),
    "checks": Target(_checks, _checks_seeds),
    "compiled": Target(_compiled, _compiled_seeds),
    "driver": Target(_driver, _driver_seeds),
    "report": Target(_report, _report_seeds),
    "set": Target(_set, _set_seeds),
    "shell": Target(_shell, _shell_seeds),
    "spirv": Target(_spirv, _spirv_seeds),
    "told": Target(_told, _told_seeds),
}
