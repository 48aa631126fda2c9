"""Arrays that stay on the device: in and out of runs, views, the host's look at them, and when their memory goes."""

import copy
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from session_kit import assert_right, conv_graph, normals

import vkconv
from vkconv import Graph, Node, Options, Session, TensorSpec
from vkconv.backend import read_back as read_back_module
from vkconv.backend.arrays import DeviceArray
from vkconv.backend.runtime import LiveDevice, open_device
from vkconv.core import DType, InputError, UsageError

pytestmark = pytest.mark.gpu

X = normals(1, 3, 9, 11)


@pytest.fixture(params=[None, True], ids=["one memory", "staging"])
def net(request, device):
    with Session(conv_graph(), device, options=Options(staging=request.param), poison=True) as session:
        yield session


def test_what_goes_in_comes_out(device):
    for dtype in ("f4", "f2", "i8", "?"):
        x = np.arange(21).reshape(3, 7).astype(dtype)[:, ::-1]
        there = vkconv.array(x, device)
        assert (there.shape, there.dtype, there.nbytes, len(there), there.ndim) == (x.shape, x.dtype, x.nbytes, 3, 2)
        np.testing.assert_array_equal(there.numpy(), x)
        np.testing.assert_array_equal(np.asarray(there, np.float64), x)
    assert vkconv.array(np.float32(3), device).numpy() == 3
    assert vkconv.array(np.zeros((0, 4), "f4"), device).numpy().shape == (0, 4)
    for none in (np.zeros(2, complex), [0.5], "text"):
        with pytest.raises(InputError, match=r"array: numpy dtype .* is not one vkconv has"):
            vkconv.array(none, device)


def test_a_run_takes_and_gives_them(net, device):
    x = vkconv.array(X, device)
    want = net.run({"x": X})
    for _ in range(3):
        got = net.run({"x": x}, out="device")
        assert all(isinstance(array, DeviceArray) for array in got.values())
        assert_right({name: array.numpy() for name, array in got.items()}, X)
        assert all(got[name].numpy().tobytes() == want[name].tobytes() for name in want)
        assert all(net.run({"x": x})[name].tobytes() == want[name].tobytes() for name in want)
    np.testing.assert_array_equal(x.numpy(), X)


def test_results_stay_as_they_are_whatever_runs_later(net, device):
    """Ports are used again once nobody holds arrays in them: those that are held must not be."""
    inputs = [normals(1, 3, 9, 11, seed=seed) for seed in range(6)]
    held = [net.run({"x": vkconv.array(x, device)}, out="device") for x in inputs]
    looked = [held[i].pop("h").numpy() for i in range(6)]  # the host's view alone must keep the memory
    for x, outputs, h in zip(inputs, held, looked, strict=True):
        assert_right({"y": outputs["y"].numpy(), "h": h}, x)
    del held, outputs
    for x in inputs:
        assert_right(net.run({"x": x}), x)
    for x, h in zip(inputs, looked, strict=True):
        assert_right({"h": h, "y": h.mean((2, 3))}, x)


def test_ports_and_commands_are_used_again(device):
    x = vkconv.array(X, device)
    with vkconv.load(conv_graph(), device) as session:
        (executable,) = session._executables.values()
        session.run({"x": x}, out="device")
        (ports,) = executable._pool._free
        commands = list(ports._recordings.values())
        for _ in range(5):
            outputs = session.run({"x": x}, out="device")
            del outputs
        assert executable._pool._free == [ports] and list(ports._recordings.values()) == commands


def test_from_one_session_into_the_next(device):
    relu = Graph({"h": TensorSpec((1, 5, 9, 11))}, ("z",), (Node("r", "relu", ("h",), ("z",)),))
    with vkconv.load(conv_graph(), device) as first, vkconv.load(relu, device) as second:
        for seed in range(12):  # more than the commands that are kept
            x = normals(1, 3, 9, 11, seed=seed)
            h = first.run({"x": x}, out="device")["h"]
            z = second.run({"h": h}, out="device")["z"]
            np.testing.assert_array_equal(z.numpy(), np.maximum(h.numpy(), 0))


def test_constants_and_inputs_that_come_out(device):
    nodes = (Node("r", "relu", ("w",), ("k",)), Node("f", "flatten", ("x",), ("y",)))
    graph = Graph({"x": TensorSpec((2, 3))}, ("k", "y", "x"), nodes, {"w": normals(3)})
    x = normals(2, 3)
    with vkconv.load(graph, device) as session:
        outputs = session.run({"x": vkconv.array(x, device)}, out="device")
        np.testing.assert_array_equal(outputs["k"].numpy(), np.maximum(normals(3), 0))
        np.testing.assert_array_equal(outputs["y"].numpy(), x.reshape(2, 3))
        np.testing.assert_array_equal(outputs["x"].numpy(), x)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_views_are_slices_that_lie_in_a_row(device, dtype):
    x = np.arange(2 * 3 * 5).reshape(2, 3, 5).astype(dtype)
    there = vkconv.array(x, device)
    for index in (
        0,
        -1,
        slice(1, 2),
        (1, slice(0, 2)),
        (0, 2, slice(1, 4)),
        (1, 1, 1),
        ...,
        (slice(None), ...),
        slice(2, 2),
    ):
        view = there[index]
        assert view.storage is there.storage
        np.testing.assert_array_equal(view.numpy(), x[index])
    for index in ((slice(None), 0), slice(None, None, -1), (..., 2), [0, 1], None, np.array([0]), True):
        with pytest.raises(InputError, match=r"index its \.numpy\(\)"):
            there[index]
    with pytest.raises(IndexError):
        there[2]


def test_iteration_is_over_the_first_dimension(device):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    rows = list(vkconv.array(x, device))
    assert all(isinstance(row, DeviceArray) for row in rows)
    np.testing.assert_array_equal([row.numpy() for row in rows], x)
    assert not list(vkconv.array(x[:0], device)) and 4 in vkconv.array(x[1], device)
    with pytest.raises(TypeError, match="rank 0 cannot be iterated over"):
        list(vkconv.array(np.float32(3), device))


def test_views_go_into_runs_also_where_no_binding_may_begin(device):
    rows = np.arange(40, dtype=np.float16)
    graph = Graph({"x": TensorSpec((3,), DType.F16)}, ("y",), (Node("n", "neg", ("x",), ("y",)),))
    there = vkconv.array(rows, device)
    with vkconv.load(graph, device) as session:
        for start in range(20):
            got = session.run({"x": there[start : start + 3]}, out="device")["y"]
            np.testing.assert_array_equal(got.numpy(), -rows[start : start + 3])


def test_the_host_looks_at_the_memory_itself(device):
    if not vkconv.array(X, device).storage.is_read_fast:
        pytest.skip("host and device share no memory that the host reads fast")
    there = vkconv.array(X, device)
    assert np.shares_memory(there.numpy(), np.asarray(there)) and not there.numpy().flags.writeable
    assert there.__dlpack_device__() == (1, 0)
    given = np.from_dlpack(there)
    assert np.shares_memory(given, there.numpy())
    del there
    np.testing.assert_array_equal(given, X)


def test_memory_that_the_host_does_not_see_is_copied(device):
    with Session(conv_graph(), device, options=Options(staging=True)) as session:
        y = session.run({"x": X}, out="device")["y"]
        assert y.storage.buffer.kind == "device" and not y.numpy().flags.writeable
        assert not np.shares_memory(y.numpy(), y.numpy())
        with pytest.raises(InputError, match=r"\.numpy\(\) makes a copy"):
            np.from_dlpack(y)
        with pytest.raises(ValueError, match="copy=False"):
            y.__array__(copy=False)


def test_memory_goes_with_the_last_array(device):
    there = vkconv.array(X, device)
    with vkconv.load(conv_graph(), device) as session:
        session.run({"x": there})
        (executable,) = session._executables.values()
        storage, view = weakref.ref(there.storage), there[0]
        del there
        assert storage() is not None
        del view
        assert storage() is None
        assert len(executable._ports._recordings) == 1  # those of the port alone


GROWTH = """
import gc, re, sys, numpy as np, vkconv
from vkconv import Graph, Node, TensorSpec
device, x = sys.argv[1], np.ones((1, 64, 64, 64), np.float32)  # 1 MiB

def rss_kib():
    gc.collect()
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])

graph = Graph({"x": TensorSpec(x.shape)}, ("y",), (Node("n", "relu", ("x",), ("y",)),))
with vkconv.load(graph, device) as session:
    for i in range(50):
        session.run({"x": vkconv.array(x, device)}, out="device")
        session.submit({"x": vkconv.array(x, device)}, out="device").result()
        if i == 9:
            before = rss_kib()
print(rss_kib() - before)
"""


@pytest.mark.alone
def test_arrays_leave_no_memory_behind(device):
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, device], check=True, capture_output=True, text=True, timeout=120
    )
    assert int(done.stdout.split()[-1]) < 8 << 10, "of 80 MiB that went through, in KiB"


def test_arrays_outlive_the_session(device):
    session = vkconv.load(conv_graph(), device)
    outputs = session.run({"x": X}, out="device")
    session.close()
    assert_right({name: array.numpy() for name, array in outputs.items()}, X)


def test_what_does_not_fit_is_refused(net, device):
    with pytest.raises(InputError, match=r"shape 1x3x9x12, but the model takes 1x3x9x11"):
        net.run({"x": vkconv.array(normals(1, 3, 9, 12), device)})
    with pytest.raises(InputError, match="is f32, the array is float16"):
        net.run({"x": vkconv.array(X.astype(np.float16), device)})
    with pytest.raises(UsageError, match="out is 'gpu'; it is 'host'"):
        net.run({"x": X}, out="gpu")
    index = 0
    other = vkconv.array(X, device)
    other.storage.live = LiveDevice(index, open_device(device).device)  # the same device, opened again
    with pytest.raises(InputError, match=r"input 'x' of 'net' is on .*; move it with vkconv.array"):
        net.run({"x": other})
    assert_right(net.run({"x": X}), X)


def test_copies_truth_and_comparisons_are_as_numpy_has_them_or_errors(device):
    x = np.arange(6, dtype=np.float32)
    there = vkconv.array(x, device)
    shared = there.storage.is_read_fast
    with pytest.raises(ValueError, match="float64 is a copy" if shared else "copy"):
        there.__array__(np.float64, copy=False)
    if shared:
        assert np.shares_memory(there.__array__(np.float32, copy=False), there.numpy())
    assert not np.shares_memory(there.__array__(copy=True), there.numpy())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda a: copy.deepcopy({"a": [a]})):
        with pytest.raises(UsageError, match=r"cannot be copied or pickled; take \.numpy\(\)"):
            copied(there)
    other = vkconv.array(x[::-1], device)
    same, three = x == x[::-1], x == 3
    for left, right, want in (
        *((there, other, same), (there, x[::-1], same), (x, other, same)),
        *((there, 3, three), (3, there, three), (there, None, np.zeros(6, bool))),
    ):
        np.testing.assert_array_equal(left == right, want)
        np.testing.assert_array_equal(left != right, ~want)
    with pytest.raises(InputError, match="6 elements, and no one truth"):
        bool(there)
    assert there[1:2] and not there[0] and bool(vkconv.array(True, device))
    assert {there: 1}[there] == 1 and hash(there) != hash(vkconv.array(x, device))


def test_values_of_a_run_on_arrays_can_be_read(device):
    there = vkconv.array(X, device)
    with vkconv.load(conv_graph(), device, options=Options(share_memory=False, passes=False)) as session:
        outputs = session.run({"x": there}, out="device")
        np.testing.assert_array_equal(session.value("x"), X)
        np.testing.assert_array_equal(session.value("h"), outputs["h"].numpy())
        del there
        with pytest.raises(vkconv.VkconvError, match="is gone; keep it, or run again"):
            session.value("x")


def test_profiles_take_arrays(net, device):
    outputs, timing = net.measure({"x": vkconv.array(X, device)})
    assert_right(outputs, X)
    assert timing.gpu_total_us >= 0 and timing.write_us >= 0


def test_indices_on_the_device_are_checked(device):
    graph = Graph(
        {"x": TensorSpec((5, 2)), "i": TensorSpec((3,), DType.I32)},
        ("y",),
        (Node("g", "gather", ("x", "i"), ("y",), {"axis": 0}),),
    )
    with vkconv.load(graph, device) as session:
        x = vkconv.array(normals(5, 2), device)
        session.run({"x": x, "i": vkconv.array(np.int32([0, 4, -1]), device)})
        with pytest.raises(InputError, match="'i'"):
            session.run({"x": x, "i": vkconv.array(np.int32([0, 5, 1]), device)})


# ---- memory that the host does not see


def staged_there(device, n, seed=0):
    """An array in memory of the device alone, and what it holds."""
    graph = Graph({"x": TensorSpec((n,))}, ("y",), (Node("n", "neg", ("x",), ("y",)),), {}, "net")
    x = normals(n, seed=seed)
    with Session(graph, device, options=Options(staging=True)) as session:
        array = session.run({"x": x}, out="device")["y"]
    assert not array.storage.is_read_fast
    return array, -x


def test_reading_back_goes_part_by_part(device, monkeypatch):
    monkeypatch.setattr(read_back_module, "PART_BYTES", 4096)
    monkeypatch.setattr(read_back_module, "MOST_RECORDINGS", 3)
    for n in (1, 1023, 1024, 1025, 5000, 40001):
        array, want = staged_there(device, n)
        for _ in range(2):
            np.testing.assert_array_equal(array.numpy(), want)
        np.testing.assert_array_equal(array[n // 3 :].numpy(), want[n // 3 :])


def test_reading_back_allocates_nothing_the_second_time(device, monkeypatch):
    array, want = staged_there(device, 300_000)
    array.numpy()
    live, made = open_device(device), []

    class Counting:
        def __init__(self, handle):
            self.handle = handle

        def __getattr__(self, name):
            made.append(name)
            return getattr(self.handle, name)

    monkeypatch.setattr(live, "handle", Counting(live.handle))
    for _ in range(3):
        np.testing.assert_array_equal(array.numpy(), want)
    assert not made


def test_what_is_read_back_keeps_no_memory_of_arrays_that_are_gone(device):
    array, _ = staged_there(device, 5000)
    array.numpy()
    way, serial = read_back_module.read_back(open_device(device)), array.storage.serial
    assert any(key[0] == serial for key in way._recordings)
    del array
    assert not any(key[0] == serial for key in way._recordings)


def test_threads_read_back_in_turns(device):
    arrays = [staged_there(device, 1000 + 4000 * i, seed=i) for i in range(6)]
    failed = []

    def work(array, want):
        try:
            for _ in range(20):
                np.testing.assert_array_equal(array.numpy(), want)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_reading_back_goes_on_after_an_error(device, monkeypatch):
    array, want = staged_there(device, 5000)
    way = read_back_module.read_back(open_device(device))
    with monkeypatch.context() as patch:
        patch.setattr(way, "_staging", [None, None])  # as if the device had no memory for it
        patch.setattr(open_device(device).handle.__class__, "buffer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            array[7:].numpy()
    np.testing.assert_array_equal(array.numpy(), want)
