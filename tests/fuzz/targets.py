"""What takes bytes from outside, each as a function of bytes: it returns, or raises VkconvError, soon.

`TARGETS` has them by name with whole files to begin damage from; tests/fuzz/regressions/NAME holds what once broke one.
"""

import copy
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
from answers import ANSWERS
from graph_kit import f32, i64, make_graph
from target import FOLDER, Target, file_of, refusable

from vkconv.bench.compare import compare, comparison_table
from vkconv.bench.files import read_result, write_result
from vkconv.bench.rows import Floors, Header, Result, Row
from vkconv.bench.suites import CSV_COLUMNS, read_suite
from vkconv.cli.bench import parse_dtype, parse_local
from vkconv.cli.conform import parse_storages
from vkconv.cli.inputs import make_inputs
from vkconv.cli.options import (
    parse_bounds,
    parse_bytes,
    parse_dtypes,
    parse_floats,
    parse_io_dtype,
    parse_params,
    parse_passes,
    parse_routes,
    parse_shapes,
)
from vkconv.cli.outputs import parse_outputs
from vkconv.core import DType
from vkconv.device import load_device
from vkconv.device.emulate import differences, emulated
from vkconv.graph import Graph, TensorSpec, load_model
from vkconv.graph.vkc import METADATA_KEY, load_vkc, save_vkc
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.phone.build import abi_of
from vkconv.phone.transport import transports
from vkconv.plan.measured import Measured, MeasuredCall, MeasuredTable, read_table, write_table
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import forcing, graph_of_shapes
from vkconv.route import Candidate
from vkconv.workers import parse_url

REGRESSIONS = Path(__file__).parent / "regressions"


def without_processes() -> None:
    """Leave ONNX's own C++ code out, which runs in a process of its own (0.3 s each): nothing is known of types."""
    from vkconv.graph.onnx import proto

    proto.run_apart = lambda task, model: model


def _plan(graph: Graph) -> None:
    """The graph planned, with every open dimension 2."""
    shapes = {name: tuple(d if isinstance(d, int) else 2 for d in spec.shape) for name, spec in graph.inputs.items()}
    plan(graph, load_device("lavapipe"), shapes=shapes)


# ---- .vkc


def network() -> Graph:
    """A graph of many kinds of node, attribute and host operand."""
    nodes = [
        ("conv2d", "x w b", "c", {"padding": (1, 1, 1, 1), "stride": (2, 2)}),
        ("clip", "c", "k", {"a": 0.0, "b": 6.0}),
        ("pool2d", "k", "p", {"kind": "max", "kernel": (2, 2), "ceil_mode": True}),
        ("pad", "p pads", "q", {"value": 1.5}),
        ("resize", "q", "r", {"mode": "linear", "scales": (1.0, 1.0, 2.0, 1.5)}),
        ("split", "r", "s0 s1", {"axis": 1, "num_outputs": 2}),
        ("concat", "s1 s0", "t", {"axis": -3}),
        ("slice", "t starts ends", "u"),
        ("constant_of_shape", "one", "v", {"value": 2.0, "dtype": "f32"}),
        ("mul", "u v", "m"),
        ("reshape", "m shape", "o"),
        ("transpose", "o", "h", {"perm": (1, 0)}),
        ("layer_norm", "h ln", "l", {"eps": 1e-5}),
        ("softmax", "l", "y", {"axis": -1}),
        ("reduce", "l", "z", {"op": "mean", "axes": (0,)}),
    ]
    constants = {
        **{"w": f32(4, 3, 3, 3), "b": f32(4), "ln": f32(2)},
        **{"pads": i64(0, 0, 1, 0, 0, 0, 0, 1), "starts": i64(0, 0), "ends": i64(2, 4)},
        **{"one": i64(1), "shape": i64(2, -1)},
    }
    return make_graph({"x": ("n", 3, 8, 8)}, nodes, "y z", constants)


def _vkc_seeds() -> list[bytes]:
    small = make_graph({"x": (2,)}, [("add", "x w", "y")], "y", {"w": f32(2)})
    made = []
    for graph in (small, network()):
        save_vkc(graph, FOLDER / "seed.vkc")
        made.append((FOLDER / "seed.vkc").read_bytes())
    return made


def _vkc(data: bytes) -> None:
    _plan(load_vkc(file_of("a.vkc", data)))


@cache
def _network_file() -> tuple[dict[str, object], bytes]:
    data = _vkc_seeds()[1]
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:begin]), data[begin:]


def _graph(data: bytes) -> None:
    """Damage of the graph alone: the file around it is whole."""
    header, tensors = _network_file()
    header = copy.copy(header) | {"__metadata__": {METADATA_KEY: data.decode("utf-8", "replace")}}
    text = json.dumps(header).encode()
    _vkc(struct.pack("<Q", len(text)) + text + tensors)


def _graph_seeds() -> list[bytes]:
    header, _ = _network_file()
    return [header["__metadata__"][METADATA_KEY].encode()]  # type: ignore[index]


# ---- ONNX


def _onnx(data: bytes) -> None:
    from vkconv.graph.onnx import load_onnx

    _plan(load_onnx(file_of("a.onnx", data)))


def _onnx_seeds() -> list[bytes]:
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c", "lo", "hi"], ["k"]),
        helper.make_node("MaxPool", ["k"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["p"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["p", "shape"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    more = [
        helper.make_node("Slice", ["x", "a", "b", "axes", "steps"], ["s"]),
        helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("ReduceMean", ["t"], ["m"], axes=[1, 2], keepdims=0),
        helper.make_node("Gemm", ["m", "g"], ["q"], transB=1, alpha=0.5),
        helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        helper.make_node("Add", ["q", "one"], ["y"]),
    ]
    scalars = {"lo": np.float32(0), "hi": np.float32(6)}
    constants = {"w": f32(2, 3, 3, 3), **{k: np.array(v) for k, v in scalars.items()}, "zero": i64(0), "rest": i64(-1)}
    sliced = {"a": i64(0, 1), "b": i64(8, 7), "axes": i64(2, 3), "steps": i64(1, 2), "g": f32(5, 3)}

    def model(nodes: list[object], constants: Mapping[str, object]) -> bytes:
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString())

    (FOLDER / "weights.bin").write_bytes(bytes(64))
    external = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(f32(4), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
    )
    tensor = external.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": "8", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    return [model(nodes, constants), model(more, sliced), bytes(external.SerializeToString())]


# ---- TensorFlow Lite


def _tflite(data: bytes) -> None:
    _plan(load_model(file_of("a.tflite", data)))


def _tflite_seeds() -> list[bytes]:
    from tflite_kit import T, const, make

    conv = ("Conv2DOptions", {"Padding": 0, "StrideH": 2, "StrideW": 1, "FusedActivationFunction": 1})
    shape, half = (1, 4, 6, 6), (1, 2, 6, 6)
    tensors = {"x": T(shape, signature=(-1, *shape[1:])), "w": const(f32(6, 3, 3, 6)), "b": const(f32(6))}
    tensors |= {"c": T(half), "s": const(f32(1, 1, 6)), "p": T(half), "cat": T((1, 2, 6, 12)), "y": T((1, 12))}
    tensors["axes"] = const(np.array([1, 2], np.int32))
    ops = [
        ("CONV_2D", "x w b", "c", *conv),
        ("PRELU", "c s", "p"),
        ("CONCATENATION", "c p", "cat", "ConcatenationOptions", {"Axis": 3}),
        ("MEAN", "cat axes", "y", "ReducerOptions", {}),
    ]
    one = {"scale": 0.1, "zero": 3}
    many = {"scale": np.arange(1, 7, dtype=np.float32), "zero": 0}
    quantized = {
        "x": T(shape, "i8", **one),
        "w": const(np.ones((6, 3, 3, 6), np.int8), **many),
        "c": T(half, "i8", **one),
    }
    quantized |= {"b": const(np.ones(6, np.int32), **many), "n": const(np.array([1, -1], np.int32))}
    quantized["y"] = T((1, 72), "i8", **one)
    bytes_ops = [("CONV_2D", "x w b", "c", *conv), ("RESHAPE", "c n", "y")]
    return [make(tensors, ops, "x", "y p"), make(quantized, bytes_ops, "x", "y")]


# ---- ExecuTorch


def _pte(data: bytes) -> None:
    _plan(load_model(file_of("a.pte", data)))


def _pte_seeds() -> list[bytes]:
    """Kernels, views and a move around two delegates; their blobs within the program or in segments."""
    from pte_kit import T, Text, const, program, vulkan

    y, whole = (1, 4, 3, 3), {"i": T((1, 4), "i32", staging="i64"), "j": T((1, 4), "i32", staging="i64")}
    inner = {"x": T((1, 3, 6, 6)), "w": const(f32(4, 3, 3, 3), named="key"), "p": T((4, 3, 3, 3)), "c": T(y)}
    calls = [
        ("et_vk.prepack.default", ["w"], "p"),
        ("et_vk.conv_with_clamp.default", ["x", "p", None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1, 0.0, 6.0], "c"),
        ("aten.view_copy.default", ["c", (1, 36)], "n"),
    ]
    blobs = [
        vulkan(inner | {"n": T((1, 36))}, calls, "x", "n"),
        vulkan(whole, [("aten.add.Tensor", ["i", "i", 2], "j")], "i", "j"),
    ]
    tensors = {"x": T((1, 3, 6, 6), memory=(1, 0)), "n": T((1, 36), memory=(1, 432)), "v": T(y, memory=(1, 432))}
    tensors |= {"k": T(y, data=f32(*y), order=(0, 2, 3, 1)), "a": T((1, 2, 3, 3)), "b": T((1, 2, 3, 3))}
    tensors |= dict.fromkeys("scg", T(y)) | dict.fromkeys("ijm", T((1, 4), "i64"))
    steps = [
        (0, "x n"),
        ("aten::mul.out", ["v", "k"], "s"),
        ("aten::split_with_sizes_copy.out", ["s", (2, 2), 1], "a b"),
        ("aten::cat.out", [["b", "a"], 1], "c"),
        ("aten::gelu.out", ["c", Text("tanh")], "g"),
        (1, "i j"),
        ("move", "j", "m"),
    ]
    return [program(tensors, steps, "x i", "g m", blobs, inline=inline) for inline in (True, False)]


# ---- JSON files: devices, measured tables, results


def _device(data: bytes) -> None:
    """Everything that asks a device: as it is, or in the limits of another, or that one in its own."""
    device, real = load_device(file_of("device.json", data)), load_device("lavapipe")
    device.describe()
    differences(device, real)
    every = (device, emulated(device, real), emulated(real, device))
    facts = every[zlib.crc32(data) % len(every)]  # planning takes a hundred times as long as reading
    if zlib.crc32(data) % 2:
        plan(network(), facts, shapes={"x": (1, 3, 8, 8)})
    else:
        plan(_products(), facts, Options(dtype=DType.F16), {})


@cache
def _products() -> Graph:
    """What matrix units take."""
    nodes = [
        ("conv2d", "x w", "c", {"padding": (1, 1, 1, 1)}),
        ("reduce", "c", "z", {"op": "sum", "axes": (1,)}),
        ("reshape", "c shape", "f"),
        ("matmul", "f v", "y"),
    ]
    constants = {"w": f32(32, 16, 3, 3), "v": f32(196, 64), "shape": i64(32, 196)}
    return make_graph({"x": (1, 16, 14, 14)}, nodes, "y z", constants)


def _device_seeds() -> list[bytes]:
    kept = ("properties", "features", "extensions", "memory", "cooperativeMatrices", "target")
    seeds = []
    for name in ("lavapipe", "h200"):
        facts = load_device(name).facts
        seeds.append(json.dumps({"schema": "vkconv.device/1"} | {key: facts[key] for key in kept}).encode())
    return seeds


def _measured(data: bytes) -> None:
    known = Measured(read_table(file_of("measured.json", data)))
    for call, candidates in known.items():
        _call(call.encode())
        assert len(candidates) <= len(known.table.rows[call].candidates)


def _measured_seeds() -> list[bytes]:
    row = MeasuredCall("2026-01-02T03:04:05Z", (Candidate("direct", {"local": 64}, 12.5, 0.5),))
    table = MeasuredTable(
        device_key="k",
        device="d",
        driver="v",
        vkconv="0",
        date="2026-01-02T03:04:05Z",
        rows={"relu:x=4,dtype=f32": row},
    )
    write_table(table, FOLDER / "seed.json")
    return [(FOLDER / "seed.json").read_bytes()]


def _result(data: bytes) -> None:
    result = read_result(file_of("result.json", data))
    write_result(result, [FOLDER / f"copy{suffix}" for suffix in (".json", ".csv", ".md", ".html")])
    comparison_table(compare(result, result))


def _result_seeds() -> list[bytes]:
    header = Header(
        device="d",
        device_key="k",
        driver="v",
        vulkan="1.3.1",
        versions={"vkconv": "0"},
        date="2026-01-02T03:04:05+00:00",
        calls="suite",
        options={"min_time_s": 0.2, "warmup": None},
        forced={"*": "all"},
        quirks=[],
        floors=Floors(copy_gbps=100.0, fma_gflops=1000.0),
    )
    row = Row(call="relu:x=4,dtype=f32", op="relu", route="walk", us_median=2.5, runs=10, submissions=2, max_abs=0.0)
    write_result(Result(header=header, rows=[row, row]), [FOLDER / "seed-result.json"])
    return [(FOLDER / "seed-result.json").read_bytes()]


# ---- texts: suites, calls, options, arrays


def _call(data: bytes) -> None:
    """A call string, planned as a graph of one node."""
    call = parse_call(data.decode("utf-8", "replace"), OPS)
    assert parse_call(format_call(call, OPS), OPS) == call
    plan(graph_of_shapes(call), load_device("lavapipe"), forcing(None))


def _call_seeds() -> list[bytes]:
    return [case.encode() for op in OPS.values() for case in op.cases]


def _suite(data: bytes) -> None:
    read_suite(str(file_of("suite.txt", data)))


def _suite_seeds() -> list[bytes]:
    line = b"3x conv -n 2 -c 3 -H 8 -W 8 -k 4 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1 -g 1 -F 1\n"
    return [b"# a comment\nconv2d:x=1x3x8x8,w=4x3x3x3,p=1\n" + line, b"softmax:x=3x5\nno_such_op:x=3\n"]


def _table(data: bytes) -> None:
    read_suite(str(file_of("table.csv", data)))


def _table_seeds() -> list[bytes]:
    row = "2,3,8,8,4,3,3,1,1,1,1,1,1,1,1,1,8,8"
    return [f"{','.join(CSV_COLUMNS)}\n{row}\n{row}\n".encode()]


def _options(data: bytes) -> bool:
    text = data.decode("utf-8", "replace").replace("\0", "")
    attempts: list[Callable[[], object]] = []
    for parse in (parse_routes, parse_params, parse_shapes, parse_bounds, parse_dtypes, parse_floats, parse_passes):
        attempts.append(partial(parse, [text]))
    if text.startswith("ssh"):  # others ask adb
        attempts.append(partial(transports, [text], []))
    for parse_one in (parse_io_dtype, parse_dtype, parse_local, parse_storages, parse_url, abi_of):
        attempts.append(partial(parse_one, text))
    attempts.append(lambda: parse_bytes(text, "--memory"))
    attempts.append(lambda: parse_outputs([text], ["y"]))
    # Arrays of more than this a user may well ask for.
    if not any(len(word) > 3 for word in text.replace("=", "x").replace(":", "x").split("x") if word.isdecimal()):
        specs = {"x": TensorSpec((2, 3)), "i": TensorSpec((2,), DType.I64)}
        attempts.append(lambda: make_inputs(specs, [text]))
    taken = [refusable(attempt) for attempt in attempts]
    return any(taken)


def _options_seeds() -> list[bytes]:
    return [
        b"conv2d=direct,matmul=tiled",
        b"conv2d=local:64,columns:4",
        b"x=2x3",
        b"x=2x3:randn:7",
        b"x=@a.npy",
        b"i=2:ones",
        b"f16,softmax=f32,node:a=bf16",
        b"fuse_chain,fold_pad",
        b"1.5GiB",
        b"ssh://pi@board:22",
        b"arm64-v8a",
    ]


def _array(data: bytes) -> None:
    make_inputs({"x": TensorSpec((2, 3))}, [f"x=@{file_of('a.npy', data)}"])


def _array_seeds() -> list[bytes]:
    np.save(FOLDER / "seed.npy", np.ones((2, 3), np.float32))
    return [(FOLDER / "seed.npy").read_bytes()]


TARGETS: Mapping[str, Target] = {
    "array": Target(_array, _array_seeds),
    "call": Target(_call, _call_seeds),
    "device": Target(_device, _device_seeds),
    "graph": Target(_graph, _graph_seeds),
    "measured": Target(_measured, _measured_seeds),
    "onnx": Target(_onnx, _onnx_seeds),
    "options": Target(_options, _options_seeds),
    "pte": Target(_pte, _pte_seeds),
    "result": Target(_result, _result_seeds),
    "suite": Target(_suite, _suite_seeds),
    "table": Target(_table, _table_seeds),
    "tflite": Target(_tflite, _tflite_seeds),
    "vkc": Target(_vkc, _vkc_seeds),
    **ANSWERS,
}
