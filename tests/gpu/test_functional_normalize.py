"""Softmax and normalizations as functions: against the float64 reference, forced routes, and what is refused."""

import numpy as np
import pytest
from functional_kit import drawn, holds

from vkconv import functional
from vkconv.core import GraphError, InputError, RouteError, UsageError

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def released():
    """Sessions of a test close under its own validation report."""
    yield
    functional.clear_cache()


def test_softmax(device):
    (x,) = drawn((2, 5, 7))
    holds("softmax:x=2x5x7,axis=1", [x], functional.softmax(x, 1, device=device))
    y = functional.log_softmax(x, device=device)
    holds("softmax:x=2x5x7,log=1", [x], y)
    np.testing.assert_allclose(np.exp(y).sum(-1), 1, rtol=1e-6)
    for route in ("split_rows", "one_pass", "subgroup", "workgroup", "serial"):
        np.testing.assert_allclose(functional.softmax(x, route=route, device=device), np.exp(y), rtol=1e-5)


def test_norms_over_trailing_dimensions(device):
    x, scale, bias = drawn((3, 4, 5), (4, 5), (4, 5))
    text = "layer_norm:x=3x4x5,{}axis=1,eps=0.5"
    holds(text.format("scale=4x5,bias=4x5,"), (x, scale, bias), functional.layer_norm(x, scale, bias, axis=1, eps=0.5))
    holds(text.format("bias=4x5,"), (x, bias), functional.layer_norm(x, bias=bias, axis=-2, eps=0.5, device=device))
    holds("rms_norm:x=3x4x5,scale=4x5,axis=1", (x, scale), functional.rms_norm(x, scale, axis=1, device=device))


def test_norms_over_channels(device):
    x, scale, bias = drawn((2, 6, 5, 4), 6, 6)
    y = functional.instance_norm(x, scale, bias, device=device)
    holds("instance_norm:x=2x6x5x4,scale=6,bias=6", (x, scale, bias), y)
    y = functional.group_norm(x, 3, scale, bias, device=device)
    holds("group_norm:x=2x6x5x4,scale=6,bias=6,g=3", (x, scale, bias), y)
    y = functional.group_norm(x, 2, scale[:2], device=device)
    holds("group_norm:x=2x6x5x4,scale=2,g=2", (x, scale[:2]), y)


def test_batch_norm_gives_the_running_statistics_when_it_trains(device):
    x, scale, bias, mean, var = drawn((4, 3, 5), 3, 3, 3, 3)
    var = np.abs(var)
    inference = functional.batch_norm(x, mean, var, scale, bias, eps=0.5, device=device)
    text = "x=4x3x5,scale=3,bias=3,mean=3,var=3,eps=0.5"
    holds(f"batch_norm:{text}", (x, scale, bias, mean, var), inference)
    y, new_mean, new_var = functional.batch_norm(
        x, mean, var, scale, bias, training=True, momentum=0.75, eps=0.5, device=device
    )
    np.testing.assert_allclose(new_mean, 0.75 * mean + 0.25 * x.mean((0, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new_var, 0.75 * var + 0.25 * x.var((0, 2)), rtol=1e-5)
    again = functional.batch_norm(x, x.mean((0, 2)), x.var((0, 2)), scale, bias, eps=0.5, device=device)
    np.testing.assert_allclose(y, again, rtol=1e-4, atol=1e-5)
    plain = functional.batch_norm(x, mean, var, device=device)
    np.testing.assert_allclose(plain, (x - mean[:, None]) / np.sqrt(var + 1e-5)[:, None], rtol=1e-5, atol=1e-6)


def test_refusals(device):
    x, v = drawn((2, 4), 4)
    with pytest.raises(GraphError, match="axis 2 is outside"):
        functional.softmax(x, 2)
    with pytest.raises(GraphError, match="cast first"):
        functional.softmax(np.ones((2, 3), np.int32))
    with pytest.raises(UsageError, match=r"axis is 1\.5"):
        functional.log_softmax(x, 1.5)
    with pytest.raises(UsageError, match="eps is 'small'"):
        functional.layer_norm(x, eps="small")
    with pytest.raises(InputError, match=r"takes x \(N, C, ...\), not an array of shape \(4,\)"):
        functional.batch_norm(v, v, v)
    with pytest.raises(GraphError, match="do not divide into 3 groups"):
        functional.group_norm(x, 3)
    with pytest.raises(UsageError, match="no route 'one_pas'"):
        functional.rms_norm(x, route="one_pas", device=device)
    with pytest.raises(RouteError, match="a row that fits in the registers"):
        functional.softmax(np.zeros((1, 140000), np.float32), route="one_pass", device=device)
