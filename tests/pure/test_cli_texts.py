"""Texts of the command line that become inputs, outputs, shapes and routes."""

from pathlib import Path

import numpy as np
import pytest

from vkconv.cli.inputs import InputText, make_inputs, parse_input
from vkconv.cli.options import parse_routes, parse_shapes
from vkconv.cli.outputs import output_table, parse_outputs
from vkconv.cli.run import stage_table
from vkconv.core import DType, InputError, UsageError
from vkconv.graph import TensorSpec


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("x=zeros", "x", InputText(fill="zeros")),
        ("x=randn:7", "x", InputText(seed=7)),
        ("x=1x3x8x9", "x", InputText(shape=(1, 3, 8, 9))),
        ("x=1x3:ones", "x", InputText(shape=(1, 3), fill="ones")),
        ("x=1x3:randn:7", "x", InputText(shape=(1, 3), seed=7)),
        ("x=scalar:randn", "x", InputText(shape=())),
        ("x=@a=b.npy", "x", InputText(path=Path("a=b.npy"))),
        ("@a.npy", "", InputText(path=Path("a.npy"))),
        ("2x3", "", InputText(shape=(2, 3))),
    ],
)
def test_input_texts(text, name, expected):
    assert parse_input(text) == (name, expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=zeroes", "did you mean 'zeros'"),
        ("x=", "no fill"),
        ("x=1x3x", "shape"),
        ("x=-1x3", "no fill and no shape"),
        ("x=zeros:7", "does not read as"),
        ("x=1x3:2x3", "does not read as"),
        ("x=randn:-1", "seed '-1'"),
        ("x=randn:1:2", "does not read as"),
    ],
)
def test_input_texts_that_make_no_sense(text, said):
    with pytest.raises(UsageError, match=said):
        parse_input(text)


def test_random_inputs_are_numpys_by_seed():
    spec = {"x": TensorSpec((2, 3)), "y": TensorSpec((2, 3))}
    arrays, again = make_inputs(spec, ["y=randn:7"])
    assert again == {"x": "2x3:randn:0", "y": "2x3:randn:7"}
    for name, seed in (("x", 0), ("y", 7)):
        expected = np.random.default_rng(seed).standard_normal((2, 3), np.float32)
        assert arrays[name].dtype == np.float32 and (arrays[name] == expected).all()
    unseeded, again = make_inputs(spec, None)
    assert again["y"] == "2x3:randn:1" and (unseeded["x"] != unseeded["y"]).any()


@pytest.mark.parametrize("dtype", [DType.I64, DType.U8, DType.BOOL, DType.F16])
def test_inputs_have_the_models_dtype(dtype):
    arrays, _ = make_inputs({"x": TensorSpec((64,), dtype)}, None)
    assert arrays["x"].dtype == dtype.numpy
    assert len(np.unique(arrays["x"])) > 1
    ones, _ = make_inputs({"x": TensorSpec((3,), dtype)}, ["ones"])
    assert ones["x"].tolist() == [1, 1, 1]


def test_bf16_inputs_are_rounded():
    (random,) = make_inputs({"x": TensorSpec((1000,), DType.BF16)}, None)[0].values()
    exact = np.random.default_rng(0).standard_normal(1000, np.float32)
    assert random.dtype == DType.BF16.numpy
    assert (np.abs(random.astype(np.float32) - exact) <= 2.0**-8 * np.abs(exact)).all()
    assert make_inputs({"x": TensorSpec((1,), DType.BF16)}, ["ones"])[0]["x"].tolist() == [1.0]


def test_inputs_from_files(tmp_path):
    saved = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", saved)
    arrays, again = make_inputs({"x": TensorSpec(("n", 4))}, [f"x=@{tmp_path / 'x.npy'}"])
    assert (arrays["x"] == saved).all() and again["x"] == f"@{tmp_path / 'x.npy'}"
    np.save(tmp_path / "b.npy", saved.astype(DType.BF16.numpy))
    arrays, _ = make_inputs({"x": TensorSpec((3, 4), DType.BF16)}, [f"@{tmp_path / 'b.npy'}"])
    assert arrays["x"].dtype == DType.BF16.numpy and (arrays["x"] == saved).all()
    np.savez(tmp_path / "many.npz", a=saved)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])
    (tmp_path / "empty.npy").touch()
    for file in ("none.npy", "many.npz", "cut.npy", "empty.npy", "."):
        with pytest.raises(InputError, match="input 'x'"):
            make_inputs({"x": TensorSpec((3, 4))}, [f"x=@{tmp_path / file}"])


def test_inputs_that_do_not_fit_the_model():
    two = {"image": TensorSpec((1, 3, "h", "w")), "scale": TensorSpec((2,))}
    with pytest.raises(InputError, match=r"--input image=1x3x1x1"):
        make_inputs(two, None)
    with pytest.raises(UsageError, match="did you mean 'image'"):
        make_inputs(two, ["imagee=zeros"])
    with pytest.raises(UsageError, match="names no input"):
        make_inputs(two, ["zeros"])
    with pytest.raises(UsageError, match="twice"):
        make_inputs(two, ["scale=ones", "scale=zeros"])
    with pytest.raises(InputError, match="cannot make an array of shape 1x3x99999999x99999999"):
        make_inputs(two, ["image=1x3x99999999x99999999"])
    with pytest.raises(InputError, match=r"shape 1x3x4000x99999999: it takes .*\(4799999952000 bytes\) of host memory"):
        make_inputs(two, ["image=1x3x4000x99999999"])


def test_an_array_that_memory_has_no_room_to_convert_is_refused(monkeypatch):
    class Full(np.ndarray):
        def astype(self, *_, **__):
            raise MemoryError("no room")

    monkeypatch.setattr(np, "full", lambda shape, value, dtype: np.zeros(shape, dtype).view(Full))
    with pytest.raises(InputError, match="input 'x': cannot make an array of shape 2x3: no room"):
        make_inputs({"x": TensorSpec((2, 3))}, ["x=2x3:ones"])


def test_routes():
    assert parse_routes(None) == {}
    assert parse_routes(["conv2d=direct, add=broadcast", "node:a=b=c"]) == {
        "conv2d": "direct",
        "add": "broadcast",
        "node:a=b": "c",
    }
    assert parse_routes(["conv2d=direct", "conv2d=pointwise"]) == {"conv2d": "pointwise"}
    for text in ("conv2d", "=direct", "conv2d=", "a=b,"):
        with pytest.raises(UsageError, match="OP=ROUTE"):
            parse_routes([text])


def test_shapes():
    assert parse_shapes(["x=1x2", "y=scalar"]) == {"x": (1, 2), "y": ()}
    for texts in (["1x2"], ["x=1x2", "x=1x2"], ["x=a"], ["=1"]):
        with pytest.raises(UsageError):
            parse_shapes(texts)


def test_outputs():
    assert parse_outputs(["y=a.npy", "z=b=c.npy"], ["y", "z"]) == {Path("a.npy"): "y", Path("b=c.npy"): "z"}
    assert parse_outputs(["a.npy"], ["y"]) == {Path("a.npy"): "y"}
    for texts, said in (
        (["a.npy"], "y, z"),
        (["q=a.npy"], "no output 'q'"),
        (["y=a.png"], "no .npy file"),
        (["y=a.npy", "z=a.npy"], "twice"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_outputs(texts, ["y", "z"])


def test_output_rows_look_at_finite_elements_only():
    (row,) = output_table({"y": np.array([1, np.nan, 3, -np.inf, 5], np.float32)}).rows
    assert (row["min"], row["mean"], row["max"], row["nan"], row["inf"]) == (1, 3, 5, 1, 1)
    (row,) = output_table({"y": np.zeros((0, 3), np.float32)}).rows
    assert (row["shape"], row["min"], row["nan"]) == ("0x3", None, 0)


def test_stage_rows_are_in_milliseconds():
    rows = stage_table(1000, 2000, 3000, [5000, 4000, 9000]).rows
    assert [(r["stage"], r["time"]) for r in rows] == [("load", 1), ("compile", 2), ("first run", 3), ("steady", 5)]
    assert rows[-1]["what"] == "median of 3, 4 to 9"
