"""Random numbers through the importer: their distribution, and that each seed has its own."""

import numpy as np
import pytest
from required import required

required("onnx")
from graph_kit import evaluate  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx_kit import make  # noqa: E402

from vkconv.core import UnsupportedError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind  # noqa: E402

SIZE = 20_000


def run(nodes, inputs=None, constants=None, outputs=("y",), opset=22):
    inputs = inputs or {}
    model = make(
        nodes,
        inputs={name: list(array.shape) for name, array in inputs.items()},
        constants=constants,
        outputs=outputs,
        opset=opset,
    )
    graph = load_onnx_proto(model)
    return evaluate(bind(graph, OPS, {name: array.shape for name, array in inputs.items()}), inputs)


def drawn(op, **attributes):
    return run([helper.make_node(op, [], ["y"], shape=[4, SIZE // 4], **attributes)])[0]


def correlation(a, b):
    return abs(np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1])


def test_uniform_numbers_fill_their_range_evenly():
    y = drawn("RandomUniform", seed=3.0, low=-2.0, high=6.0)
    assert y.shape == (4, SIZE // 4) and y.min() >= -2 and y.max() < 6
    counted = np.histogram(y, bins=50, range=(-2, 6))[0]
    # Chi squared of 49 degrees of freedom: 1 in 10,000 lies above 94.
    assert ((counted - SIZE / 50) ** 2 / (SIZE / 50)).sum() < 94
    flat = y.reshape(-1)
    for lag in (1, 2, 64, 5000):
        assert correlation(flat[lag:], flat[:-lag]) < 4 / np.sqrt(SIZE)


def test_normal_numbers_have_their_moments():
    y = (drawn("RandomNormal", seed=7.0, mean=3.0, scale=2.0) - 3) / 2
    error = 4 / np.sqrt(SIZE)
    assert abs(y.mean()) < error and abs(y.var() - 1) < error * np.sqrt(2)
    assert abs((y**3).mean()) < error * np.sqrt(15) and abs((y**4).mean() - 3) < error * np.sqrt(96)


@pytest.mark.parametrize("seeds", [(1.0, 2.0), (1.0, 1.0 + 2**-23), (0.0, -0.0)])
def test_seeds_have_numbers_of_their_own(seeds):
    one, other = (drawn("RandomUniform", seed=seed) for seed in seeds)
    np.testing.assert_array_equal(one, drawn("RandomUniform", seed=seeds[0]))
    assert correlation(one, other) < 4 / np.sqrt(SIZE)
    assert np.intersect1d(one[0, :50], other).size < 3


def test_nodes_without_a_seed_differ():
    nodes = [helper.make_node("RandomNormalLike", ["x"], [name], name=name) for name in "yz"]
    y, z = run(nodes, {"x": np.zeros((5, 999), np.float32)}, outputs=("y", "z"))
    assert y.shape == z.shape == (5, 999) and correlation(y, z) < 4 / np.sqrt(y.size)


def test_bernoulli_draws_each_chance():
    p = np.repeat(np.array([0, 0.25, 0.5, 1], np.float32)[:, None], SIZE // 4, 1)
    (y,) = run([helper.make_node("Bernoulli", ["x"], ["y"], dtype=TensorProto.BOOL, seed=1.0)], {"x": p})
    np.testing.assert_allclose(y.mean(1), p[:, 0], atol=4 * 0.5 / np.sqrt(SIZE / 4))
    assert not y[0].any() and y[3].all()


def test_multinomial_draws_each_class_as_often_as_its_chance():
    chances = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-30]], np.float32)
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=SIZE // 4, seed=5.0)
    (y,) = run([node], {"x": np.log(chances)})
    assert y.dtype == np.int32
    found = np.stack([(y == c).mean(1) for c in range(3)], 1)
    np.testing.assert_allclose(found, chances, atol=4 * 0.5 / np.sqrt(SIZE / 4))


def test_dropout_in_training_drops_its_share_and_scales_the_rest():
    x = np.random.default_rng(0).uniform(1, 2, (7, 999)).astype(np.float32)
    node = helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"], seed=4)
    constants = {"ratio": np.array(0.25, np.float32), "training": np.array(True)}
    y, mask = run([node], {"x": x}, constants, outputs=("y", "mask"))
    assert abs(mask.mean() - 0.75) < 4 * 0.5 / np.sqrt(x.size)
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-6)


def test_integers_are_not_drawn():
    with pytest.raises(UnsupportedError, match="it makes i32; random numbers are floats"):
        drawn("RandomUniform", dtype=TensorProto.INT32)
