"""Inputs that kernels read in the pages of the caller's own array: where these begin, who keeps them, and when."""

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
from session_kit import assert_right, conv_graph, normals, slow_graph

import vkconv
from vkconv import Options, Session
from vkconv.backend import _bridge
from vkconv.backend.runtime import open_device
from vkconv.core import DeviceError, DType
from vkconv.graph.ir import Graph, Node, TensorSpec

pytestmark = pytest.mark.gpu
IMPORTED = Options(staging="imported")
PAGE = 4096


@pytest.fixture(autouse=True)
def importing(device):
    """These are about devices that can."""
    if not open_device(device).device.has("VK_EXT_external_memory_host"):
        pytest.skip("the device has no VK_EXT_external_memory_host")


def doubling(n, dtype=DType.F32):
    specs = {"x": TensorSpec((n,), dtype), "b": TensorSpec((n,), dtype)}
    nodes = (Node("first", "add", ("x", "x"), ("t",)), Node("second", "add", ("t", "b"), ("y",)))
    return Graph(specs, ("y",), nodes, {}, "doubling")


def at(offset, count, dtype=np.float32):
    """An array that begins so many bytes behind a page, and what lies before and after it."""
    nbytes = count * np.dtype(dtype).itemsize
    around = np.full(nbytes + 3 * PAGE, 0xA5, np.uint8)
    begin = -around.ctypes.data % PAGE + offset
    part = around[begin : begin + nbytes].view(dtype)
    assert part.ctypes.data % PAGE == offset
    return part, around


def imported(session, inputs):
    """The inputs that a run imports."""
    (executable,) = session._executables.values()
    bound = executable._ports.bind(inputs, imports=True)
    return {name for name in inputs if f"input:{name}" in bound}


@pytest.mark.parametrize("n", [1, 3, 4, 1021, 1024, 1025, 65537])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_arrays_are_read_where_they_lie_whatever_they_begin_at(device, n, dtype):
    alignment = max(4, open_device(device).device.limit("minStorageBufferOffsetAlignment"))
    with Session(doubling(n, dtype), device, options=IMPORTED, poison=True) as session:
        for offset in (0, dtype.nbytes, alignment, 3 * alignment, PAGE - alignment, PAGE - dtype.nbytes):
            x, around = at(offset, n, dtype.numpy)
            x[:] = np.arange(n) % 61
            before = around.tobytes()
            given = {"x": x, "b": np.full(n, 3, dtype.numpy)}
            assert ("x" in imported(session, given)) == (offset % alignment == 0)
            assert (session.run(given)["y"] == 2 * (np.arange(n) % 61) + 3).all()
            assert around.tobytes() == before
            assert (np.asarray(session.run(given, out="device")["y"]) == 2 * (np.arange(n) % 61) + 3).all()


def test_a_run_sees_what_the_array_holds_then_and_one_array_may_be_two_inputs(device):
    x = np.zeros(5000, np.float32)
    with Session(doubling(5000), device, options=IMPORTED, poison=True) as session:
        for i in range(20):
            x[:] = i
            assert imported(session, {"x": x, "b": x}) == {"x", "b"}
            assert (session.run({"x": x, "b": x})["y"] == 3 * i).all()


def test_what_does_not_lie_as_kernels_read_it_is_copied(device):
    x, b = np.arange(5000, dtype=np.float32), np.ones(5000, np.float32)
    with Session(doubling(5000), device, options=IMPORTED, poison=True) as session:
        for given in (x[::-1], np.repeat(x, 2)[::2], x.astype(">f4")):
            assert imported(session, {"x": given, "b": b}) == {"b"}
            assert (session.run({"x": given, "b": b})["y"] == 2 * given + 1).all()


def test_memory_that_must_not_be_written(device, tmp_path):
    x = np.arange(5000, dtype=np.float32)
    x.tofile(tmp_path / "x")
    x.flags.writeable = False
    file = np.memmap(tmp_path / "x", np.float32, "r")
    with Session(doubling(5000), device, options=IMPORTED, poison=True) as session:
        for given in (x, file, np.frombuffer(x.tobytes(), np.float32)):
            assert (session.run({"x": given, "b": x})["y"] == 3 * x).all()


def test_an_input_that_a_node_writes_over_is_left_as_it_is(device):
    specs = {"x": TensorSpec((2, 64, 8)), "u": TensorSpec((2, 3, 8)), "at": TensorSpec((2,), DType.I64)}
    node = Node("put", "tensor_scatter", ("x", "u", "at"), ("t",), {"axis": 1, "in_place": True})
    graph = Graph(specs, ("y",), (node, Node("r", "neg", ("t",), ("y",))), {}, "put")
    x, u = normals(2, 64, 8), normals(2, 3, 8, seed=1)
    before, want = x.copy(), x.copy()
    want[0, 5:8], want[1, 9:12] = u[0], u[1]
    with Session(graph, device, options=IMPORTED, poison=True) as session:
        for _ in range(2):
            y = session.run({"x": x, "u": u, "at": np.array([5, 9])})["y"]
            np.testing.assert_array_equal(y, -want)
            np.testing.assert_array_equal(x, before)


def test_an_array_is_let_go_when_its_run_has_ended(device):
    with Session(doubling(5000), device, options=IMPORTED) as session:
        (executable,) = session._executables.values()
        session.run({"x": np.zeros(5000, np.float32), "b": np.zeros(5000, np.float32)})
        kept = len(executable._ports._recordings)
        for i in range(50):
            x = np.full(5000, i, np.float32)
            gone = weakref.ref(x)
            assert (session.run({"x": x, "b": x})["y"] == 3 * i).all()
            del x
            assert gone() is None and len(executable._ports._recordings) == kept


def test_an_array_stays_while_a_run_that_timed_out_reads_it(device):
    graph, x = slow_graph(0.5)
    with vkconv.load(graph, device, options=IMPORTED) as session:
        want = session.run(x)
        given = {"v0": x["v0"].copy()}
        held = weakref.ref(given["v0"])
        with pytest.raises(DeviceError):
            session.run(given, timeout_s=0.01)
        del given
        gc.collect()
        assert held() is not None
        for name, array in session.run(x).items():  # it waits for the other one
            np.testing.assert_array_equal(array, want[name])
        assert held() is None


def test_an_array_stays_where_the_session_closes_before_its_run_has_ended(device):
    graph, x = slow_graph(0.5)
    given = {"v0": x["v0"].copy()}
    held = weakref.ref(given["v0"])
    with vkconv.load(graph, device, options=IMPORTED) as session:
        with pytest.raises(DeviceError):
            session.run(given, timeout_s=0.01)
        del given
    del session
    gc.collect()
    assert held() is not None
    handle = open_device(device).handle
    handle.wait_idle()
    assert handle.abandoned == 0
    gc.collect()
    assert held() is None


def test_submitted_runs_leave_the_array_to_the_caller(device):
    x = np.ones(5000, np.float32)
    with Session(doubling(5000), device, options=IMPORTED) as session:
        futures = []
        for i in range(20):
            x[:] = i
            futures.append(session.submit({"x": x, "b": x}))
        for i, future in enumerate(futures):
            assert (future.result(30)["y"] == 3 * i).all()


def test_threads_with_arrays_of_their_own(device):
    failed = []
    with Session(conv_graph(), device, options=IMPORTED, poison=True) as session:

        def work(first):
            try:
                for seed in range(first, first + 15):
                    x = normals(1, 3, 9, 11, seed=seed)
                    assert_right(session.run({"x": x}), x)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


def test_only_what_is_worth_it_is_imported(device):
    """By the policy: a large input of few launches; not a small one, and not where every value is to be looked at."""
    live = open_device(device)
    for n, options in itertools.product((1 << 12, 1 << 22), (Options(), Options(share_memory=False))):
        with Session(doubling(n), device, options=options) as session:
            when = session.plan.transfers.imported
            large = when is not None and 4 * n >= when.least_bytes(2)
            assert (when is not None) == (live.device.kind == "cpu" and options.share_memory)
            given = {"x": np.ones(n, np.float32), "b": np.ones(n, np.float32)}
            assert imported(session, given) == ({"x", "b"} if large else set())
            assert (session.run(given)["y"] == 3).all()
            outputs, timing = session.measure(given)
            assert (outputs["y"] == 3).all() and timing.gpu_total_us > 0


def test_the_bridge_says_what_it_cannot_import(device):
    handle = open_device(device).handle
    x = np.arange(5000, dtype=np.float32)[1:]
    buffer, first = handle.imported(x)
    assert (buffer.kind, first, buffer.nbytes) == ("imported", x.ctypes.data % PAGE, first + x.nbytes)
    with pytest.raises(RuntimeError, match="'imported' is not visible to the host"):
        buffer.write(x)
    with pytest.raises(ValueError, match="has no bytes"):
        handle.imported(x[:0])
    with pytest.raises(ValueError, match="do not lie in a row"):
        handle.imported(x[::2])
    without = _bridge.Device(open_device(device).index, disable=["VK_EXT_external_memory_host"])
    assert without.imported(x) is None
    without.close()
    held = weakref.ref(x)
    del x
    assert held() is not None
    del buffer
    assert held() is None
