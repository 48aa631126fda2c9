"""Attention on a device: masks with infinities, rows that see nothing, and a graph that is fused."""

import numpy as np
import pytest
from graph_kit import evaluate, make_graph

from vkconv import functional
from vkconv.core import GraphError
from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.planner import Options
from vkconv.session import Session

pytestmark = pytest.mark.gpu
ROUTES = ("flash_lanes", "flash", "unfused")
RNG = np.random.default_rng(7)


def normals(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def by_definition(q, k, v, mask):
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
    return np.where(np.isneginf(scores).all(-1, keepdims=True), 0, weights) @ v


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("keys", [5, 67, 131])
def test_a_row_that_sees_nothing_is_0_and_others_are_not_touched(route, keys, device):
    q, k, v = normals(2, 3, 35, 20), normals(2, 3, keys, 20), normals(2, 3, keys, 9)
    mask = np.where(RNG.random((35, keys)) < 0.5, -np.inf, 0).astype(np.float32)
    mask[[0, 17, 34]] = -np.inf
    mask[5, :-1] = -np.inf  # nothing but the last key, which lies in the last tile
    mask[5, -1] = 0
    mask[6, 1:] = -np.inf  # nothing but the first
    mask[6, 0] = -1e30
    y = functional.attention(q, k, v, mask, route=route, device=device)
    want = by_definition(q, k, v, mask)
    np.testing.assert_allclose(y, want, rtol=0, atol=2e-5)
    assert not y[:, :, [0, 17, 34]].any() and np.isfinite(y).all()
    np.testing.assert_allclose(y[0, 0, 5], v[0, 0, -1], rtol=1e-6)
    np.testing.assert_allclose(y[0, 0, 6], v[0, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("route", ROUTES)
def test_an_infinite_score_makes_its_row_nan_alone(route, device):
    q, k, v = normals(1, 1, 9, 8), normals(1, 1, 70, 8), normals(1, 1, 70, 8)
    mask = np.zeros((9, 70), np.float32)
    mask[3, 2], mask[4, 69], mask[7, 40] = np.inf, np.nan, np.inf
    y = functional.attention(q, k, v, mask, route=route, device=device)
    assert np.isnan(y).all(-1).nonzero()[2].tolist() == [3, 4, 7]
    assert np.isfinite(np.delete(y, [3, 4, 7], 2)).all()


@pytest.mark.parametrize("route", ROUTES)
def test_scores_that_rise_from_tile_to_tile_lose_nothing(route, device):
    """Every tile has a larger score than all before it; the first keys of the last row outweigh nothing."""
    keys = 150
    q, k = np.ones((1, 1, 7, 4), np.float32), np.arange(keys, dtype=np.float32)[None, None, :, None] * 2 + np.zeros(4)
    v = normals(1, 1, keys, 130)
    y = functional.attention(q, k.astype(np.float32), v, scale=1.0, route=route, device=device)
    np.testing.assert_allclose(y, np.broadcast_to(v[:, :, -1:] * 1.0, y.shape), rtol=0, atol=4e-3)
    falling = functional.attention(q, k[:, :, ::-1].astype(np.float32), v, scale=1.0, route=route, device=device)
    np.testing.assert_allclose(falling, np.broadcast_to(v[:, :, :1] * 1.0, y.shape), rtol=0, atol=4e-3)


@pytest.mark.parametrize("route", ROUTES)
def test_a_causal_query_sees_no_later_key(route, device):
    q, k, v = normals(1, 4, 40, 16), normals(1, 2, 40, 16), normals(1, 2, 40, 16)
    y = functional.attention(q, k, v, causal=True, route=route, device=device)
    k[:, :, 20:], v[:, :, 20:] = -k[:, :, 20:], 1e6
    other = functional.attention(q, k, v, causal=True, route=route, device=device)
    np.testing.assert_array_equal(y[:, :, :20], other[:, :, :20])
    assert (np.abs(y[:, :, 20:] - other[:, :, 20:]).max(-1) > 1).all()


@pytest.mark.parametrize("dtype", [None, "f16"])
def test_a_graph_is_fused_and_gives_what_its_parts_do(dtype, device):
    """Swin's shifted windows: a bias of heads, and a mask of windows, which two reshapes set apart."""
    constants = {"bias": normals(1, 2, 9, 9), "shift": normals(1, 3, 1, 9, 9), "scale": np.array(0.5, np.float32)}
    nodes = [
        ("mul", "q scale", "qs"),
        ("transpose", "k", "kt", {"perm": (0, 1, 3, 2)}),
        ("matmul", "qs kt", "s"),
        ("add", "s bias", "b"),
        ("reshape", "b", "w", {"shape": (2, 3, 2, 9, 9)}),
        ("add", "w shift", "wm"),
        ("reshape", "wm", "m", {"shape": (-1, 2, 9, 9)}),
        ("softmax", "m", "p", {"axis": -1}),
        ("matmul", "p v", "y"),
    ]
    graph = make_graph(dict.fromkeys("qkv", (6, 2, 9, 4)), nodes, "y", constants)
    inputs = {name: normals(6, 2, 9, 4) for name in "qkv"}
    (want,) = evaluate(bind(graph, OPS), inputs)
    options = Options(routes={"node:matmul_y": "flash"}, dtype=dtype)
    with Session(graph, device, options=options, poison=True) as session:
        first, again = (session.run(inputs)["y"] for _ in range(2))
        assert [n.call.op for n in session.plan.nodes if n.call.op != "cast"] == ["attention"]
    assert first.tobytes() == again.tobytes()
    np.testing.assert_allclose(first, want, rtol=0, atol=1e-5 if dtype is None else 1e-2)


def test_what_does_not_go_together_is_refused():
    q = normals(2, 4, 5, 8)
    for k, v, mask, said in (
        (normals(2, 3, 7, 8), normals(2, 3, 7, 8), None, "4 heads of q, 3 of k and 3 of v"),
        (normals(2, 4, 7, 9), normals(2, 4, 7, 8), None, r"queries have 8 elements, and rows of k \(2x4x7x9\) differ"),
        (normals(2, 4, 7, 8), normals(2, 4, 6, 8), None, r"k has 7 keys, and v \(2x4x6x8\) 6 values"),
        (normals(3, 4, 7, 8), normals(3, 4, 7, 8), None, "other first dimensions"),
        (normals(2, 4, 0, 8), normals(2, 4, 0, 8), None, "leave no keys to attend to"),
        (normals(4, 7, 8), normals(2, 4, 7, 8), None, "of rank 4, with heads, or 3, without"),
        (normals(2, 4, 7, 8), normals(2, 4, 7, 8), normals(7, 5), "the mask is 7x5, and the scores are 2x4x5x7"),
    ):
        with pytest.raises(GraphError, match=said):
            functional.attention(q, k, v, mask)
    with pytest.raises(GraphError, match="scale is inf"):
        functional.attention(q, q, q, scale=np.inf)
