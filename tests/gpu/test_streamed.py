"""Inputs and outputs that move chunk by chunk, where there is a queue for copies by that, and copies by threads."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from session_kit import conv_graph, expected, normals, slow_graph

import vkconv
from vkconv import Options, Session
from vkconv.backend.runtime import open_device
from vkconv.core import DeviceError, DType
from vkconv.graph.ir import Graph, Node, TensorSpec

pytestmark = pytest.mark.gpu
STREAMED = Options(staging="streamed")
SIZES = (1, 3, 255, 256, 65537, 131071, 1000003)


def doubling(n):
    """y = x + x + b, so that the result shows which x and which b a run saw."""
    specs = {"x": TensorSpec((n,), DType.F32), "b": TensorSpec((n,), DType.F32)}
    nodes = (Node("first", "add", ("x", "x"), ("t",)), Node("second", "add", ("t", "b"), ("y",)))
    return Graph(specs, ("y",), nodes, {}, "doubling")


def given(n, seed):
    return {"x": np.arange(n, dtype=np.float32) % 8191 + seed, "b": np.full(n, 3 * seed, np.float32)}


def assert_doubled(outputs, inputs):
    assert (np.asarray(outputs["y"]) == 2 * inputs["x"] + inputs["b"]).all()


@pytest.mark.parametrize("n", SIZES)
def test_chunks_come_in_before_the_kernels(small_chunks, n):
    with Session(doubling(n), options=STREAMED, poison=True) as session:
        assert session.plan.transfers.streamed
        for seed in range(3):
            assert_doubled(session.run(given(n, seed)), given(n, seed))
        order = {name: array[::-1] for name, array in given(n, 5).items()}  # not in a row: numpy writes staging
        assert_doubled(session.run(order), order)
        swapped = {name: array.astype(">f4") for name, array in given(n, 6).items()}
        assert_doubled(session.run(swapped), given(n, 6))


def test_helpers_that_look_while_the_last_bytes_come_copy_them(monkeypatch):
    """A helper that looked between what came last and the end of all waiting left its piece out: on an H100 in one of
    some runs."""
    live, n = open_device(), 96 * 32768 + 5
    many = type(live.copying)(threads=16, bytes_per_thread=1024, chunk_bytes=1 << 20)
    monkeypatch.setattr(live, "copying", many)
    inputs = given(n, 3)
    with Session(doubling(n), options=STREAMED) as session:
        for _ in range(60):
            assert_doubled(session.run(inputs), inputs)


def test_sessions_that_end_right_after_a_run_leave_the_driver_its_semaphores(small_chunks):
    """One in a thousand crashed lavapipe while each destroyed the semaphore that its run had waited for."""
    for seed in range(100):
        with Session(doubling(4097), options=STREAMED, poison=True) as session:
            assert_doubled(session.run(given(4097, seed)), given(4097, seed))


def test_many_runs_in_flight_from_several_threads(small_chunks):
    n, failed = 30011, []
    with Session(doubling(n), options=STREAMED, poison=True, in_flight=8) as session:

        def submits(first):
            try:
                seeds = range(first, first + 20)
                for seed, future in [(seed, session.submit(given(n, seed))) for seed in seeds]:
                    assert_doubled(future.result(), given(n, seed))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=submits, args=(100 * i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


def test_arrays_on_the_device_take_the_place_of_streamed_ports(small_chunks):
    n = 5003
    with Session(doubling(n), options=STREAMED) as session:
        x = vkconv.array(given(n, 2)["x"])
        for seed in range(3):  # one is there, the other is streamed
            inputs = {**given(n, seed), "x": x}
            assert_doubled(session.run(inputs), {**inputs, "x": x.numpy()})
        there = session.run(given(n, 4), out="device")
        assert_doubled(there, given(n, 4))
        outputs, timing = session.measure(given(n, 7))
        assert_doubled(outputs, given(n, 7))
        assert timing.gpu_total_us > 0


def test_nothing_is_allocated_for_a_run(small_chunks):
    live = open_device()
    with Session(doubling(65537), options=STREAMED) as session:
        session.run(given(65537, 0))
        made = []
        buffer, live_handle = live.handle.buffer, live.handle

        class Counting:
            def __getattr__(self, name):
                return getattr(live_handle, name)

            def buffer(self, *args):
                made.append(args)
                return buffer(*args)

        live.handle = Counting()
        try:
            for seed in range(4):
                assert_doubled(session.run(given(65537, seed)), given(65537, seed))
        finally:
            live.handle = live_handle
        assert not made


def test_an_upload_is_let_go_in_flight(small_chunks):
    """Its destructor waits for the copies: validation would report memory that is freed under them."""
    live = open_device()
    for _ in range(10):
        staging, target = live.handle.buffer(1 << 20, "upload"), live.handle.buffer(1 << 20, "streamed")
        upload = live.handle.upload(staging, target, 1 << 20, 4096)
        upload.write(np.arange(1 << 18, dtype=np.float32), 2)
        upload.write(None)
        del staging, target, upload
    gc.collect()


def test_what_does_not_fit_is_refused():
    live = open_device()
    staging, target = live.handle.buffer(64, "upload"), live.handle.buffer(64, "streamed")
    upload = live.handle.upload(staging, target, 64, 256)
    with pytest.raises(ValueError, match="has 60 bytes, 64 are wanted"):
        upload.write(np.zeros(15, np.float32))
    with pytest.raises(ValueError, match="has 60 bytes, 64 are wanted"):
        upload.write(np.zeros(30, np.float32)[::2])
    with pytest.raises(ValueError, match="do not lie in a row"):
        live.handle.buffer(64, "download").read(np.zeros(32, np.float32)[::2])
    with pytest.raises(ValueError, match="128 bytes, the source has 64 and the target 64"):
        live.handle.upload(staging, target, 128, 256)
    with pytest.raises(RuntimeError, match="not 'streamed'"):
        live.handle.upload(staging, live.handle.buffer(64, "device"), 64, 256)
    with pytest.raises(RuntimeError, match="no staging"):
        live.handle.upload(target, target, 64, 256)
    with pytest.raises(ValueError, match="68 bytes are over the buffer's 64"):
        staging.write(np.zeros(17, np.float32))
    with pytest.raises(ValueError, match="68 bytes are over the buffer's 64"):
        staging.read(np.zeros(17, np.float32))
    with pytest.raises(RuntimeError, match="not visible to the host"):
        target.write(np.zeros(1, np.float32))


def test_outputs_come_back_chunk_by_chunk(small_chunks, device):
    """Also one that is another in another shape, a part of a larger value, and an input, which the run copies."""
    n = 65536
    specs = {"x": TensorSpec((n,), DType.F32)}
    nodes = (
        Node("r", "relu", ("x",), ("a",)),
        Node("v", "reshape", ("a",), ("b",), {"shape": (256, 256)}),
        Node("s", "slice", ("a",), ("c",), {"starts": (64,), "ends": (4099,), "axes": (0,)}),
        Node("h", "neg", ("a",), ("d",)),
    )
    graph = Graph(specs, ("a", "b", "c", "d", "x"), nodes, {}, "net")
    with Session(graph, device, options=STREAMED, poison=True, in_flight=4) as session:
        assert session.plan.transfers.streamed_outputs
        (executable,) = session._executables.values()
        assert len(executable._ports.downloads) == 2  # a and d
        futures = [(seed, session.submit({"x": normals(n, seed=seed)})) for seed in range(12)]
        for seed, made in [*((seed, future.result(60)) for seed, future in futures), (50, None), (51, None)]:
            x = normals(n, seed=seed)
            found, a = made or session.run({"x": x}), np.maximum(x, 0)
            want = {"a": a, "b": a.reshape(256, 256), "c": a[64:4099], "d": -a, "x": x}
            assert all((found[name] == array).all() for name, array in want.items())
        there = session.run({"x": x}, out="device")
        assert (there["d"].numpy() == -a).all() and (there["b"].numpy() == a.reshape(256, 256)).all()


@pytest.mark.alone
def test_outputs_behind_a_run_that_timed_out_are_not_taken_for_those_of_the_next(small_chunks, device):
    graph, x = slow_graph(0.5)
    with vkconv.load(graph, device, options=STREAMED) as session:
        session.run(x)
        for seed in range(3):
            with pytest.raises(DeviceError):
                session.run({"v0": np.full_like(x["v0"], seed)}, timeout_s=0.01)
            (found,) = session.run(x).values()
            assert (found == x["v0"]).all()


def test_a_download_is_for_what_was_submitted_and_fits(device):
    handle = open_device(device).handle
    source, staging = handle.buffer(1024, "streamed"), handle.buffer(1024, "download")
    download = handle.download(source, staging, 1000, 256)
    with pytest.raises(RuntimeError, match="nothing was submitted before it"):
        download.read(np.zeros(250, np.float32))
    recording = handle.recording()
    recording.fill(source, 0, 1024, 0x01020304)
    recording.end(then=[download])
    for _ in range(3):
        recording.run()
        out = np.zeros(1000, np.uint8)
        download.read(out, 3)
        assert (out.view(np.uint32) == 0x01020304).all()
    with pytest.raises(ValueError, match="has 996 bytes, 1000 are wanted"):
        download.read(np.zeros(249, np.float32))
    with pytest.raises(RuntimeError, match="not 'streamed'"):
        handle.download(staging, staging, 4, 256)
    with pytest.raises(RuntimeError, match="no staging for downloads"):
        handle.download(source, source, 4, 256)
    recording.submit()  # let go with what the device works on
    del recording, download, source, staging
    gc.collect()
    handle.wait_idle()


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("nbytes", [1, 63, 65536, 65537, 131072, 131073, 1000003])
def test_threads_copy_every_byte_once(threads, nbytes):
    handle = open_device().handle
    rng = np.random.default_rng(nbytes)
    for kind in ("upload", "download", "input"):
        buffer = handle.buffer(nbytes + 1, kind)
        view = np.frombuffer(buffer.view, np.uint8)
        view[-1] = 99
        data = rng.integers(0, 256, nbytes + 5, dtype=np.uint8)[5:]  # begins at an odd place
        buffer.write(data, threads)
        assert (view[:-1] == data).all() and view[-1] == 99
        back = np.zeros(nbytes + 9, np.uint8)[3:-6]
        buffer.read(back, threads)
        assert (back == data).all()


def strided(rng, dtype, size):
    """Arrays whose elements do not lie in a row: reversed, with steps, transposed, repeated, parts of rows."""
    n = max(1, size // 7)

    def filled(*shape):
        return rng.integers(0, 256, (*shape[:-1], shape[-1] * np.dtype(dtype).itemsize), np.uint8).view(dtype)

    yield filled(size)[::-1]
    yield filled(2 * size)[1::2]
    yield filled(n, 7).T
    yield np.broadcast_to(filled(7), (n, 7))
    yield np.broadcast_to(filled(n)[:, None], (n, 7))
    yield filled(n, 31)[:, 5:12]
    yield filled(3, n, 5).transpose(2, 0, 1)[::-1]
    yield filled(2, 3, n)[:, 1:, ::-1]
    yield filled(2, 1, 4, n).transpose(3, 1, 0, 2)[:, :, :, ::2]
    yield filled(n, 1)[:, :, None].T


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize("size", [7, 40961, 262147])
def test_threads_gather_elements_whatever_their_strides(dtype, size):
    handle = open_device().handle
    for data in strided(np.random.default_rng(size), dtype, size):
        for kind, threads in (("upload", 3), ("input", 1)):
            buffer = handle.buffer(data.nbytes + 1, kind)
            view = np.frombuffer(buffer.view, np.uint8)
            view[-1] = 99
            buffer.write(data, threads)
            assert view[:-1].tobytes() == data.tobytes() and view[-1] == 99


@pytest.mark.parametrize("narrowed", [DType.F16, DType.BF16])
def test_gathered_elements_are_narrowed_too(narrowed):
    handle = open_device().handle
    rng = np.random.default_rng(1)
    for size in (7, 40961, 262147):
        for bits in strided(rng, np.uint8, size):
            data = np.lib.stride_tricks.as_strided(
                rng.standard_normal(4 * bits.size + 64).astype(np.float32)[32:], bits.shape, [4] * bits.ndim
            )
            for given in (data, data.T, data[..., ::-1]):
                buffer = handle.buffer(2 * given.size, "upload")
                buffer.write(given, 3, str(narrowed))
                assert np.frombuffer(buffer.view, np.uint8).tobytes() == given.astype(narrowed.numpy).tobytes()


def test_halves_are_cast_on_the_device():
    """The caller's f32 is what goes up; numpy converts nothing."""
    x = normals(1, 3, 9, 11)
    with Session(conv_graph(), options=Options(staging="streamed", dtype="f16")) as session:
        assert session.inputs["x"].dtype is DType.F32
        assert next(node.call.op for node in session.plan.nodes) == "cast"
        for name, found in session.run({"x": x}).items():
            want = expected(x)[name]
            assert np.abs(found - want).max() < 1e-2 * np.abs(want).max()


FORKED = """
import os, sys
import numpy as np
from vkconv.backend import _bridge
device = _bridge.Device(0)
buffer = device.buffer(1 << 22, "upload")
data = np.arange(1 << 20, dtype=np.uint32)
buffer.write(data, 4)
child = os.fork()
if child == 0:  # its helpers are not there: it copies by its own
    buffer.write(data[::-1].copy(), 4)
    os._exit(0 if (np.frombuffer(buffer.view, np.uint32)[0] == (1 << 20) - 1) else 3)
assert os.waitpid(child, 0)[1] == 0
buffer.write(data, 4)
print("done", flush=True)
"""


def test_copies_survive_a_fork_and_the_end_of_the_process():
    made = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, env=os.environ)
    assert (made.returncode, made.stdout) == (0, "done\n"), made.stderr
