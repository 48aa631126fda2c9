"""Casts that the host makes while it copies: f32 to 16 bits on the way in, and 16 bits to f32 on the way out."""

import numpy as np
import pytest

import vkconv
from vkconv import Options, Session
from vkconv.backend.runtime import open_device
from vkconv.core import DType
from vkconv.graph.ir import Graph, Node, TensorSpec

pytestmark = pytest.mark.gpu


def halves(n, *, casts=1):
    """y = x + x in 16 bits; with two casts of x, or with another reader of it, the host must leave x as it is."""
    return Graph(
        {"x": TensorSpec((n,), DType.F32)},
        ("y", "z")[:casts],
        (Node("first", "add", ("x", "x"), ("y",)), Node("second", "abs", ("x",), ("z",)))[:casts],
        {},
        "halves",
    )


# Every exponent, what rounds to even, to the next exponent and to infinity, subnormals, both zeros, NaN.
EDGES = np.concatenate(
    [
        np.array([0, 1, 2**-24, 2**-25, 3 * 2**-25, 65504, 65519.99, 65520, 2049, 2051, np.inf, np.nan], np.float32),
        np.array([1, 2, 0x00800000, 0x33000001, 0x38FFF000, 0x7F7FFFFF, 0x7F800001, 0x3F808000], np.uint32).view("f4"),
        (np.arange(1 << 12, dtype=np.uint32) * 0x7FFFF).view(np.float32),
    ]
)
EDGES = np.concatenate([EDGES, -EDGES])


ALL_HALVES = np.arange(1 << 16, dtype=np.uint16)


def bits_of(array):
    return np.where(np.isnan(array), np.float32(np.nan), np.asarray(array)).view(np.uint32)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("n", [1, 7, 8191, 1000003])
def test_the_host_narrows_as_the_cast_of_kernels_does(small_chunks, dtype, n):
    x = np.resize(EDGES, n)
    with (
        Session(halves(n), options=Options(staging=True, dtype=dtype)) as cast,
        Session(halves(n), options=Options(staging="streamed", dtype=dtype), poison=True) as narrowed,
    ):
        assert (len(cast.plan.narrowed), len(narrowed.plan.narrowed)) == (0, 1)
        assert narrowed.plan.memory.upload_bytes < 1.1 * cast.plan.memory.upload_bytes + 8  # twice, of half as many
        want = bits_of(cast.run({"x": x})["y"])
        for given in (x, np.repeat(x, 2)[::2], x[::-1].copy()[::-1], x.astype(">f4")):
            assert (bits_of(narrowed.run({"x": given})["y"]) == want).all()
        _, timing = narrowed.measure({"x": x})
        assert len(timing.commands) == len(timing.stamps_us) - 1
        # An array of the device is cast there, in other commands, and the host's come again.
        there = vkconv.array(x)
        for given in (there, x, there):
            assert (bits_of(narrowed.run({"x": given})["y"]) == want).all()
        assert (bits_of(narrowed.submit({"x": x}).result()["y"]) == want).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_is_cast_for_steps_of_nothing_stays_whole(dtype):
    """As detectors have it, in which no region lies on one of the maps."""
    inputs = {"x": TensorSpec((1, 2, 4, 4)), "rois": TensorSpec(("n", 4)), "batch": TensorSpec(("n",), DType.I64)}
    node = Node("align", "roi_align", ("x", "rois", "batch"), ("y",), {"cells": (2, 2), "samples": 1})
    with Session(
        Graph(inputs, ("y",), (node,), {}, "regions"), options=Options(staging="streamed", dtype=dtype)
    ) as session:
        for n in (0, 3, 0):
            rois = np.tile(np.array([0, 0, 4, 4], np.float32), (n, 1))
            y = session.run({"x": np.ones((1, 2, 4, 4), np.float32), "rois": rois, "batch": np.zeros(n, np.int64)})["y"]
            assert y.shape == (n, 2, 2, 2) and (y == 1).all()
            assert ("x" in session.plan.narrowed) == (n > 0)


def test_what_else_reads_an_input_keeps_it_whole():
    options = Options(staging="streamed", dtypes={"add": DType.F16})
    with Session(halves(99, casts=2), options=options) as session:
        assert not session.plan.narrowed
        x = np.linspace(-2, 2, 99, dtype=np.float32)
        assert (session.run({"x": x})["z"] == np.abs(x)).all()


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize("each", [7, 32])
def test_the_tail_of_an_array_is_narrowed_as_vectors_of_it_are(dtype, each):
    """Fewer elements than a vector go one by one, by other code."""
    buffer = open_device().handle.buffer(2 * each, "upload")
    for start in range(0, EDGES.size, each):
        few = np.ascontiguousarray(EDGES[start : start + each])
        buffer.write(few, 1, str(dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            want = few.astype(dtype.numpy)
        found = np.frombuffer(buffer.view, dtype.numpy)[: few.size].copy()
        assert (np.isnan(found) == np.isnan(want)).all()
        assert (found.view(np.uint16) == want.view(np.uint16))[~np.isnan(want)].all()


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize("each", [7, 32, 1 << 16])
def test_every_half_is_widened_to_what_it_is(dtype, each):
    buffer = open_device().handle.buffer(2 * each, "download")
    for start in range(0, ALL_HALVES.size, each):
        few = ALL_HALVES[start : start + each]
        np.frombuffer(buffer.view, np.uint16)[: few.size] = few
        found = np.full(few.size, 7, np.float32)
        buffer.read(found, 1, str(dtype))
        want = few.view(dtype.numpy).astype(np.float32)
        assert (bits_of(found) == bits_of(want)).all()


@pytest.mark.parametrize("out", [np.zeros(4, np.float64), np.zeros(8, np.int32), np.zeros((4, 4), np.float32)[:, ::2]])
def test_what_is_no_row_of_f32_is_not_widened(out):
    buffer = open_device().handle.buffer(16, "download")
    with pytest.raises(ValueError, match=r"only floats of 32 bits|do not lie in a row"):
        buffer.read(out, 1, "f16")
    with pytest.raises(ValueError, match="not 'f64'"):
        buffer.read(np.zeros(8, np.float32), 1, "f64")
    with pytest.raises(ValueError, match="18 bytes are over the buffer's 16"):
        buffer.read(np.zeros(9, np.float32), 1, "f16")


def two_ways(n):
    """Of x: a value that only goes out, one that is read as well, and one that is a part of another."""
    nodes = (
        Node("first", "add", ("x", "x"), ("y",)),
        Node("second", "abs", ("x",), ("z",)),
        Node("third", "neg", ("z",), ("u",)),
        Node("fourth", "concat", ("z", "u"), ("v",), {"axis": 0}),
    )
    return Graph({"x": TensorSpec((n,), DType.F32)}, ("y", "z", "u", "v"), nodes, {}, "two_ways")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("n", [1, 7, 4096, 8191, 1000003])
def test_the_host_widens_as_the_cast_of_kernels_does(small_chunks, dtype, n):
    x = np.resize(EDGES, n)
    with (
        Session(two_ways(n), options=Options(staging=True, dtype=dtype)) as cast,
        Session(two_ways(n), options=Options(staging="streamed", dtype=dtype), poison=True) as widened,
    ):
        assert (len(cast.plan.widened), len(widened.plan.widened)) == (0, 4)
        assert widened.plan.memory.download_bytes < 1.1 * cast.plan.memory.download_bytes + 64  # twice, of half as many
        want = {name: bits_of(found) for name, found in cast.run({"x": x}).items()}

        def assert_wanted(outputs):
            assert outputs.keys() == want.keys()
            for name, found in outputs.items():
                assert (bits_of(np.asarray(found)) == want[name]).all(), name

        for given in (x, vkconv.array(x), x):
            assert_wanted(widened.run({"x": given}))
            # An array of the device has 32 bits, in other commands.
            assert_wanted(widened.run({"x": given}, out="device"))
            assert_wanted(widened.submit({"x": given}).result(60))
            assert_wanted(widened.submit({"x": given}, out="device").result(60))
        _, timing = widened.measure({"x": x})
        assert len(timing.commands) == len(timing.stamps_us) - 1


def test_outputs_that_something_reads_or_that_nothing_makes_are_not_widened():
    nodes = (
        Node("first", "cast", ("h",), ("y",), {"to": "f32"}),
        Node("second", "abs", ("h",), ("g",)),
        Node("third", "cast", ("g",), ("z",), {"to": "f32"}),
        Node("fourth", "neg", ("z",), ("u",)),
    )
    graph = Graph({"h": TensorSpec((5,), DType.F16)}, ("y", "z", "u"), nodes, {}, "given")
    with Session(graph, options=Options(staging="streamed"), poison=True) as session:
        assert not session.plan.widened
        h = np.array([1, -2, 3, -4, 0.5], np.float16)
        found = session.run({"h": h})
        assert (found["y"] == h).all() and (found["z"] == abs(h)).all() and (found["u"] == -abs(h)).all()
