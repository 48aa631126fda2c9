"""Models whose floats are stored in 16 bits, on the device: each node right, and the nodes found that need f32."""

import json

import numpy as np
import pytest
from graph_kit import make_graph

from vkconv import loading, session
from vkconv.check.model import check_model
from vkconv.check.types import nodes_for_f32
from vkconv.cli import main
from vkconv.core import DType, InputError
from vkconv.graph.vkc import save_vkc
from vkconv.plan import bound
from vkconv.plan.planner import Options

pytestmark = [pytest.mark.gpu, pytest.mark.drivers]
RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 13, 11)).astype(np.float32)


def weights(*shape):
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


CONSTANTS = {"w": weights(7, 3, 3, 3), "b": weights(7, 1)[:, 0], "v": weights(7, 7, 1, 1), "m": weights(5, 7)}
CONSTANTS |= {"large": np.full((1,), 1e7, np.float32)}
STEPS = [
    ("conv2d", "x w b", "c", {"padding": (1, 1, 1, 1), "act": "relu"}),
    ("conv2d", "c v", "d"),
    ("add", "c d", "e"),
    ("pool2d", "e", "p", {"kind": "max", "kernel": (2, 2), "stride": (2, 2)}),
    ("reduce", "p", "r", {"op": "mean", "axes": (2, 3), "keepdims": False}),
    ("matmul", "r m", "f", {"trans_b": True}),
    ("softmax", "f", "y", {"axis": 1}),
]


def model(*more):
    return make_graph({"x": X.shape}, [*STEPS, *more], "y g z" if more else "y", CONSTANTS)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize("passes", [True, False])
def test_every_node_is_right_and_the_whole_is_near(dtype, passes, device):
    options = Options(dtype=dtype, passes=passes)
    found = check_model(model(), {"x": X}, device=device, options=options)
    assert found.problem == "" and {node.call.half for node in found.nodes} == {dtype}
    outputs = []
    for chosen in (options, Options()):
        with session.Session(model(), device, options=chosen, poison=True) as running:
            outputs.append(running.run({"x": X})["y"])
            assert running.run({"x": X})["y"].tobytes() == outputs[-1].tobytes()
    half, wide = outputs
    assert half.dtype == wide.dtype == np.float32
    assert np.abs(half - wide).max() <= 8 * 2.0**-dtype.mantissa_bits * np.abs(wide).max()


def test_a_filled_value_that_alone_would_be_a_constant_is_right_in_the_model(monkeypatch, device):
    """In f32 too large for one that the host makes, in f16 not."""
    monkeypatch.setattr(bound, "FOLD_LIMIT_BYTES", 3 << 20)
    steps = [("constant_of_shape", "s", "t", {"value": 0.02}), ("add", "x t", "y")]
    shape = (1200, 1000)
    graph = make_graph({"x": shape}, steps, "y", {"s": np.array(shape, np.int64)})
    x = RNG.standard_normal(shape).astype(np.float32)
    found = check_model(graph, {"x": x}, device=device, options=Options(dtype=DType.F16))
    assert found.problem == "" and "constant_of_shape" in {node.call.op for node in found.nodes}


def test_nodes_that_f16_does_not_suffice_for_are_found(device):
    """A product with 1e7 is beyond f16, and its logarithm would be that of infinity."""
    graph = model(("mul", "y large", "g"), ("log", "g", "z"))
    kept, count = nodes_for_f32(graph, {"x": X}, device=device)
    assert 0 < len(kept) < count and set(kept.values()) == {DType.F32}
    with session.Session(graph, device, options=Options(dtype=DType.F16, dtypes=kept)) as running:
        z = running.run({"x": X})["z"]
    with session.Session(graph, device) as running:
        wanted = running.run({"x": X})["z"]
    assert np.isfinite(z).all() and np.abs(z - wanted).max() <= 1e-2 * np.abs(wanted).max()
    with session.Session(graph, device, options=Options(dtype=DType.F16)) as running:
        assert not np.isfinite(running.run({"x": X})["z"]).all()


def test_the_command_finds_them_and_says_what_to_give(tmp_path, capsys, device):
    path = tmp_path / "m.vkc"
    save_vkc(model(("mul", "y large", "g"), ("log", "g", "z")), path)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--dtype", "auto", "--device", device, "--json"])
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    assert told["dtype"] == "f16" and told["dtypes"] and all(row["inf"] == 0 for row in told["outputs"])


@pytest.mark.parametrize(("dtype", "io_dtype"), [("f16", "f16"), (None, "bf16"), ("f16", "f32"), ("bf16", "f16")])
def test_inputs_and_outputs_in_a_type_of_their_own(dtype, io_dtype, device):
    io = DType(io_dtype).numpy
    x = X.astype(io)
    found = check_model(model(), {"x": x}, device=device, options=Options(dtype=dtype, io_dtype=io_dtype))
    assert found.problem == ""
    with loading.load(model(), device, dtype=dtype, io_dtype=io_dtype) as running:
        assert str(running.inputs["x"]) == f"2x3x13x11:{io_dtype}"
        casts = [node.call.op for node in running.plan.nodes].count("cast")
        y = running.run({"x": x})["y"]
        with pytest.raises(InputError, match=f"input 'x' of 'g' is {io_dtype}, the array is float64"):
            running.run({"x": x.astype(np.float64)})
    assert y.dtype == io and casts == (0 if dtype == io_dtype else 2)
    with loading.load(model(), device) as running:
        wanted = running.run({"x": X})["y"]
    bits = min(DType(word).mantissa_bits for word in (dtype or "f32", io_dtype))
    assert np.abs(y.astype(np.float32) - wanted).max() <= 8 * 2.0**-bits * np.abs(wanted).max()


def test_the_commands_take_and_give_them(tmp_path, capsys, device):
    path, y = tmp_path / "m.vkc", tmp_path / "y.npy"
    save_vkc(model(), path)
    for command in (
        ["run", str(path), "--runs", "1", "-o", str(y)],
        ["check", str(path)],
        ["explain", str(path)],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--dtype", "f16", "--io-dtype", "f16", "--device", device, "--json"])
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        assert '"cast"' not in told.out
    assert np.load(y).dtype == np.float16
    with pytest.raises(SystemExit):
        main(["check", "exp:x=2x3", "--io-dtype", "f16", "--device", device])
    assert "--io-dtype is for models" in capsys.readouterr().err
