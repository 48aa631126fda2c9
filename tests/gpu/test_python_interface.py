"""The Python interface behind the commands: sessions that are called, checks and benchmarks as values, refusals."""

import pydoc

import numpy as np
import pytest
from graph_kit import make_graph
from required import required

import vkconv
from vkconv import functional as F  # noqa: N812
from vkconv.bench import BenchOptions
from vkconv.core import DeviceError, InputError, UsageError, VkconvError
from vkconv.plan.planner import Options

pytestmark = pytest.mark.gpu

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 3
LISTS = ("suites", "routes", "sweep", "local")
QUICK = BenchOptions(min_time_s=0.001, runs=3, warmup=0)


def two():
    return make_graph({"a": ("n", 3), "b": ("n", 3)}, [("add", "a b", "s"), ("relu", "s", "y")], "y")


class Lent:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_import_gives_the_parts():
    assert vkconv.functional is F
    assert {"bench", "check", "functional", "testing"} <= {*dir(vkconv)}
    with pytest.raises(AttributeError, match=r"'vkconv\.bench' has no attribute 'nothing'"):
        _ = vkconv.bench.nothing
    with pytest.raises(AttributeError, match=r"'vkconv\.check' has no attribute 'nothing'"):
        _ = vkconv.check.nothing


def test_a_session_is_called_by_places_and_names():
    with vkconv.load(two(), dims={"n": 2}) as session:
        assert np.array_equal(session(X, X), np.maximum(2 * X, 0))
        assert np.array_equal(session(X, b=X), session(a=X, b=X))
        assert repr(session).startswith("<Session ") and "a: [n, 3]:f32" in repr(session)
        with pytest.raises(UsageError, match="takes 2 inputs"):
            session(X, X, X)
        with pytest.raises(UsageError, match="'a' is there twice"):
            session(X, a=X)
    assert "closed" in repr(session)


def test_named_dimensions_bind_a_model():
    with vkconv.load(two(), dims={"n": 5}) as session:
        assert session.plan.nodes[0].call.outputs["y"].shape == (5, 3)
    with pytest.raises(InputError, match=r"no input has a dimension 'm'.*open dimensions are n"):
        vkconv.load(two(), dims={"m": 5})
    with pytest.raises(InputError, match=r"its shape says n = 4, and the dimension given is 5"):
        vkconv.load(two(), dims={"n": 5}, shapes={"a": (4, 3)})


def test_a_session_checks_itself():
    graph = two()
    with vkconv.load(graph) as session:
        found = session.check({"a": X, "b": X}, repeat=2)
    assert found.ok and not found.problems and found.repeated.runs == 2
    assert "right, alone and in the run" in repr(found) and "<table>" in found._repr_html_()
    data = found.data()
    assert (
        data["schema"] == "vkconv.check/1" and data["vkconv"] == vkconv.__version__ and data["date"].endswith("+00:00")
    )


def test_a_session_whose_graph_is_gone_says_so():
    session = vkconv.load(make_graph({"a": (2, 3)}, [("relu", "a", "y")], "y"))
    with pytest.raises(UsageError, match="has dropped its graph"):
        session.check({"a": X})


def test_a_call_is_checked_and_swept(tmp_path):
    found = vkconv.check.run("softmax:x=3x70", sweep=["route"], seed=3)
    assert found.ok and len(found.swept) > 2 and [name for name, _ in found.tables] == ["Nodes", "Sweep"]
    for suffix in (".json", ".html", ".xml", ".csv", ".md"):
        found.save(tmp_path / f"found{suffix}")
        assert (tmp_path / f"found{suffix}").stat().st_size > 100
    x = np.zeros((3, 70), np.float32)
    assert vkconv.check.run("softmax:x=3x70", {"x": x}).ok


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_call_is_swept_in_the_type_that_it_runs_in(dtype):
    options = Options(dtype=dtype)
    found = vkconv.check.run("matmul:a=3x5,b=5x2", options=options, sweep=["route"])
    assert found.ok and len(found.model.nodes) > 1 and len(found.swept) > 2
    assert {text for text, _ in found.swept} == {f"matmul:a=3x5,b=5x2,dtype={dtype}"}
    with pytest.raises(UsageError, match="has no parameter 'lokal'"):
        vkconv.check.run("matmul:a=3x5,b=5x2", options=options, sweep=["lokal"])


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        ("softmax:x=3x70", {"repeat": 1}, "repeat is 1"),
        ("softmax:x=3x70", {"sweep": "route"}, r"sweep is 'route'; it is a list, such as \['route', 'local'\]"),
        *(("softmax:x=3x70", {"sweep": sweep}, "sweep is .*; it is a list") for sweep in (5, [1], np.zeros(2))),
        *(("softmax:x=3x70", {"seed": seed}, "seed is .*; it is a whole number") for seed in (-1, "a", np.ones(2))),
        *(("softmax:x=3x70", {name: 5}, f"{name} is 5; it is") for name in ("options", "limits", "shapes", "dims")),
        ("softmax:x=3x70", {"options": {}}, "options is {}; it is a vkconv.Options"),
        ("softmax:x=3x70", {"inputs": X}, "inputs are a dict"),
        ("softmax:x=3x70", {"stop_at_first": "no"}, "stop_at_first is 'no'; it is True or False"),
        ("softmax:x=3x70", {"inputs": {"z": X}}, "has no input 'z'"),
        ("softmax:x=3x70", {"inputs": {"x": X}}, "the array has shape 2x3"),
        ("softmax:x=2x3", {"inputs": {"x": X.astype(np.float64)}}, "convert it"),
        ("sofmax:x=2x3", {}, "did you mean 'softmax'"),
        ("softmax:x=2x3", {"options": Options(io_dtype="f16")}, "io_dtype is for models"),
        ("reshape:x=2x3,shape=3x2", {}, "nothing runs"),
    ],
)
@pytest.mark.share(1)
def test_what_cannot_be_checked_is_refused(target, settings, said):
    with pytest.raises(VkconvError, match=said):
        vkconv.check.run(target, **settings)


def test_a_benchmark_is_a_value(tmp_path):
    seen = []
    result = vkconv.bench.run("relu:x=3x5", routes=["all"], options=QUICK, seen=seen.append)
    assert result.rows == seen and result.rows[0].ok and result.header.versions["vkconv"] == vkconv.__version__
    assert "elementwise" in str(result) and "<table>" in result._repr_html_() and "0 wrong" in repr(result)
    result.save(tmp_path / "a.json")
    again = vkconv.bench.read_result(tmp_path / "a.json")
    assert vkconv.bench.compare_results(result, again).pairs[0].ratio == 1
    model = vkconv.bench.run(two(), dims={"n": 4}, options=QUICK)
    assert [row.op for row in model.rows] and all(row.ok for row in model.rows)
    for wrong in ({"routes": "all"}, {"dtype": "f33"}, {"options": 3}):
        with pytest.raises(UsageError):
            vkconv.bench.run("relu:x=3x5", **wrong)


def test_results_become_data_frames():
    required("pandas")
    frame = vkconv.bench.run("relu:x=3x5", options=QUICK).to_pandas()
    assert frame.loc[0, "op"] == "relu" and frame.loc[0, "us_median"] > 0
    assert list(vkconv.check.run("relu:x=3x5").to_pandas()["alone"]) == ["ok"]
    with vkconv.load(two(), dims={"n": 2}) as session:
        assert len(session.explain().to_pandas()) == len(session.plan.nodes)


def test_what_speaks_dlpack_alone_is_an_array():
    w = np.ones((1, 1, 1, 1), np.float32)
    x = X.reshape(1, 1, 2, 3)
    assert np.array_equal(F.conv2d(Lent(x), w), x)
    assert vkconv.array(Lent(x)).shape == x.shape


@pytest.mark.parametrize("given", [object(), {"x": 1}, lambda: 1])
def test_what_is_no_array_is_refused(given):
    with pytest.raises(InputError, match="conv2d: x is not an array"):
        F.conv2d(given, np.ones((1, 1, 1, 1), np.float32))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shapes", 5), ("shapes", {"a": 5, "b": 5}), ("dims", 5), ("dims", {"n": "a"}), ("dims", {"n": -1})),
        *(("routes", 5), ("params", 5), ("options", 5), ("max_plans", "a"), ("in_flight", 0), ("limits", 5)),
        *((name, np.zeros(2)) for name in ("shapes", "dims", "bounds", "caches", "f64_as_f32", "dtype", "io_dtype")),
        *((name, np.zeros(2)) for name in ("routes", "params", "options", "limits", "fallback", "device")),
        *(("shapes", ()), ("dims", []), ("options", {}), ("caches", "no"), ("f64_as_f32", "no"), ("device", True)),
        *(("memory_bytes", "a"), ("dtype", 5), ("io_dtype", 5), ("shape", {}), ("fallback", "torch"), ("device", 2.5)),
    ],
)
@pytest.mark.share(1)
def test_a_wrong_setting_is_a_vkconv_error(name, value):
    with pytest.raises(VkconvError) as caught:
        vkconv.load(two(), **{"dims": {"n": 2}, name: value})
    known = {"dims": "dim", "shapes": "shape", "io_dtype": "inputs and outputs"}.get(name, name.split("_")[-1])
    assert known in str(caught.value) and not isinstance(caught.value, DeviceError)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("routes", None, "routes is None; it is a dict by names of ops or nodes"),
        ("routes", {1: "direct"}, "routes has the key 1; keys are names"),
        ("params", [], r"params is \[\]; it is a dict"),
        ("dtypes", {None: "f16"}, "dtypes has the key None"),
        ("dtypes", {"conv2d": None}, "dtype conv2d is None; leave 'conv2d' out, or name one of f32, f16, bf16"),
        ("measured", "measured.json", "measured is 'measured.json'; it is a dict by calls"),
        ("memory_bytes", "1G", "memory_bytes is '1G'; it is a number of bytes, or None"),
        ("memory_bytes", 0, "memory_bytes is 0; it is a number of bytes, at least 1, or None"),
        ("half_sums", [], r"half_sums is \[\]; it is True or False"),
        ("skip_passes", None, "skip_passes is None; it is a list of names of passes"),
        ("skip_passes", [1, "fold"], "skip_passes has 1; it is a list of names of passes"),
        ("staging", np.zeros(2), r"staging is array\(.*; it is True, False"),
        ("dtype", np.zeros(2), "dtype .* for the graph: floats are one of"),
        ("io_dtype", np.zeros(2), "dtype .* for inputs and outputs: floats are one of"),
        ("dtypes", {"add": np.zeros(2)}, "dtype .* for add: floats are one of"),
        ("routes", {"add": np.zeros(2)}, "route add=array.*; it is the name of a route"),
        ("params", {"add": {"local": np.zeros(2)}}, r"param add=local:array.*; it is an integer or a name"),
        ("params", {"add": {"local": 64.0}}, r"param add=local:64\.0; it is an integer or a name"),
        ("pieces", np.ones(2), r"pieces is array"),
    ],
)
@pytest.mark.share(1)
def test_a_wrong_option_is_refused_by_its_name(name, value, said):
    with pytest.raises(UsageError, match=said):
        vkconv.load(two(), dims={"n": 2}, options=vkconv.Options(**{name: value})).close()


def test_a_session_takes_limits_as_load_does():
    with vkconv.Session(two(), dims={"n": 2}, limits="mali-g57") as session:
        assert session.plan.device.name.startswith("Mali-G57 on ")
    with pytest.raises(UsageError, match="no device 'mali-g5'"):
        vkconv.Session(two(), dims={"n": 2}, limits="mali-g5")


def test_what_a_session_says_of_itself_is_read_only():
    with vkconv.load(two(), dims={"n": 2}) as session:
        for said in (session.inputs, session.metadata):
            with pytest.raises(TypeError, match="does not support item"):
                said["a"] = None
        assert list(session.inputs) == ["a", "b"] and session(X, X).shape == (2, 3)


class Broken:
    """An object whose own conversion to an array fails."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        *((KeyError("lost"), InputError), (LookupError(), InputError), (ValueError("odd"), InputError)),
        *((DeviceError("gone"), DeviceError), (MemoryError(), MemoryError), (KeyboardInterrupt(), KeyboardInterrupt)),
    ],
)
@pytest.mark.share(1)
def test_an_error_of_an_operands_own_conversion_names_the_operand(error, raised):
    with pytest.raises(raised) as caught:
        F.relu(Broken(error))
    if raised is InputError:
        assert caught.value.__cause__ is error and "relu: x is not an array: " in str(caught.value)
        assert str(error) in str(caught.value) and not str(caught.value).endswith(": ")


def test_help_fits_a_screen():
    for name in F.__all__:
        text = pydoc.plain(pydoc.render_doc(getattr(F, name)))
        lines = sum(-(-max(len(line), 1) // 100) for line in text.splitlines())
        assert lines <= 40, name


@pytest.mark.parametrize("params", [{"conv2d": 3}, [1]])
def test_parameters_of_bench_that_are_no_dicts_are_refused(params):
    with pytest.raises(VkconvError, match=r"params is .* it is a dict of dicts"):
        vkconv.bench.run("conv2d:x=1x8x5x7,w=16x8x3x3", params=params)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("suites", "routes", "sweep", "local")
            for value in (5, "all", np.zeros(2), [None])
        ),
        *((name, np.zeros(2)) for name in ("params", "dtype", "shapes", "dims", "options", "policy", "device")),
        *(("shapes", 5), ("dims", 5), ("options", {}), ("options", 5), ("dtype", 5), ("policy", 5), ("seen", 5)),
    ],
)
@pytest.mark.share(1)
def test_a_wrong_setting_of_bench_is_refused(name, value):
    with pytest.raises(UsageError, match=rf"{name} (is )?\S+.*(; |none)" if name != "policy" else "no policy"):
        vkconv.bench.run("softmax:x=3x70", **{"options": QUICK, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("min_time_s", "cooldown_s") for value in ("1", -1, float("nan"), float("inf"))),
        *((name, value) for name in ("runs", "warmup", "seed") for value in ("1", -1, 1.5, np.ones(2))),
        *(("runs", 0), ("runs", None), ("runs", True)),
    ],
)
@pytest.mark.share(1)
def test_a_wrong_option_of_bench_is_refused(name, value):
    with pytest.raises(UsageError, match=f"{name} is .*; it is a "):
        BenchOptions(**{name: value})


def test_bench_times_a_route_with_parameters_of_ones_own():
    (row,) = vkconv.bench.run(
        "conv2d:x=1x8x5x7,w=16x8x3x3", routes=["direct"], params={"conv2d:direct": {"local": 32}}
    ).rows
    assert (row.check, row.route, dict(row.given)) == ("ok", "direct", {"local": 32})
