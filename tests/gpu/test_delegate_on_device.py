"""Delegation on a device: regions on Vulkan and on ONNX Runtime together give what ONNX Runtime gives for the whole."""

import contextlib
import copy
import io
import json

import numpy as np
import pytest
from required import required

required("onnx", "onnxruntime")
import delegated_models as models  # noqa: E402

from vkconv.backend.runtime import select_device  # noqa: E402
from vkconv.cli import main  # noqa: E402
from vkconv.core import InputError, UsageError  # noqa: E402
from vkconv.delegate import DelegatedSession, partition  # noqa: E402
from vkconv.graph import Graph, Node, TensorSpec  # noqa: E402
from vkconv.loading import load  # noqa: E402

pytestmark = pytest.mark.gpu
MODELS = {
    "a determinant": (models.conv_det_conv, (1, 3, 5, 5)),
    "a subgraph": (models.with_subgraph, (3, 3)),
    "a long sum": (models.long_sum_inside, (1, 66000)),
    "nothing refused": (models.all_taken, (2, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_regions_together_give_what_onnxruntime_gives(name, device):
    import onnxruntime

    make, shape = MODELS[name]
    model = make()
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = reference.run(None, {"x": x})
    parts = partition(model, select_device(device)[1])
    with DelegatedSession(parts, device, fallback="onnxruntime") as session:
        got = session.run({"x": x})
        again = session.run({"x": x})
        assert list(got) == [output.name for output in model.graph.output]
        for value, want in zip(got.values(), wanted, strict=True):
            np.testing.assert_allclose(value, want, rtol=0, atol=2e-3 * max(1.0, np.abs(want).max()))
        assert all(again[k].tobytes() == got[k].tobytes() for k in got)
        assert len(session.times_us) == len(parts.regions)
        assert str(session.table()).count("FALLBACK: onnxruntime") == sum(not r.taken for r in parts.regions)
        with pytest.raises(InputError, match="takes the inputs x, and was given none"):
            session.run({})


def test_a_session_refuses_what_others_refuse(device):
    graph = Graph({"x": TensorSpec((2, 3))}, ("y",), (Node("r", "relu", ("x",), ("y",)),), name="net")
    session, x = load(graph, device, fallback="onnxruntime"), np.ones((2, 3), np.float32)
    for given in ([x], None, "x"):
        with pytest.raises(InputError, match=f"'net' takes the inputs x, and was given a {type(given).__name__} for a"):
            session.run(given)
    with pytest.raises(UsageError, match="'net' cannot be copied or pickled"):
        copy.copy(session)
    assert session.run({"x": x})["y"].all()
    for _ in range(2):
        session.close()
    with pytest.raises(UsageError, match="session 'net' is closed; load the model again"):
        session.run({"x": x})


def test_the_command_says_what_ran_where(device, tmp_path):
    import onnx

    onnx.save(models.conv_det_conv(), tmp_path / "m.onnx")
    command = ("run", tmp_path / "m.onnx", "--device", device, "--runs", 2)
    code, out, _ = vkconv(*command, "--fallback", "onnxruntime", "-o", f"z={tmp_path / 'z.npy'}")
    assert code == 0 and "takes 5 of 6 nodes" in out and "FALLBACK: onnxruntime on the host" in out
    assert "Det: vkconv has no such op" in out and np.load(tmp_path / "z.npy").shape == (1, 4, 5, 5)
    data = json.loads(vkconv(*command, "--fallback", "onnxruntime", "--json")[1])
    assert [region["on"] for region in data["regions"]] == ["vkconv", "onnxruntime", "vkconv"]
    assert data["regions"][1]["refused"] == [{"node": "n1", "op": "Det", "reason": "vkconv has no such op"}]
    code, out, err = vkconv(*command, "--fallback", "onnxruntime", "-o", f"z={tmp_path / 'm.onnx' / 'z.npy'}")
    assert code == 2 and "cannot write" in err and "ms in all" in out
    code, _, err = vkconv(*command)
    assert code == 2 and "Det" in err
    code, _, err = vkconv(*command, "--fallback", "onnxruntime", "--profile", "--route", "conv2d=direct")
    assert code == 2 and "--profile, --route cannot follow" in err
    code, _, err = vkconv(*command, "--fallback", "numpy")
    assert code == 2 and "vkconv knows onnxruntime" in err


def vkconv(*argv):
    """Exit code, stdout and stderr of a command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as done:
        main([str(arg) for arg in argv])
    return done.value.code or 0, out.getvalue(), err.getvalue()
