"""Runs whose first launches work on the images that have come while the next ones are on their way."""

import gc
import threading

import msgspec
import numpy as np
import pytest
from session_kit import normals

import vkconv
from vkconv import Options, Session
from vkconv.backend.ports import Ports
from vkconv.backend.runtime import open_device
from vkconv.core import DType
from vkconv.graph.ir import Graph, Node, TensorSpec
from vkconv.plan import early

pytestmark = pytest.mark.gpu
W = {"w1": 0.2 * normals(16, 4, 3, 3, seed=1), "w2": 0.1 * normals(16, 16, 3, 3, seed=2)}
CUT = Options(staging="streamed", pieces=4)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Many chunks and threads, also of small arrays; and inputs that take so long to come that all is cut."""
    live = open_device()
    few = type(live.copying)(threads=4, bytes_per_thread=1024, chunk_bytes=4096)
    monkeypatch.setattr(live, "copying", few)
    row = type(early.EARLY.of(live.device))(4, 0, 1e-6, 0.5)
    monkeypatch.setattr(early.EARLY, "of", lambda device: row)


def net(images=8, side=16):
    """Two convolutions around a pooling and a residual, then a mean over the batch, which needs all of it."""
    nodes = (
        Node("stem", "conv2d", ("x", "w1"), ("a",), {"padding": (1,)}),
        Node("act", "relu", ("a",), ("r",)),
        Node("pool", "pool2d", ("r",), ("b",), {"kind": "max", "kernel": (2, 2), "stride": (2, 2)}),
        Node("conv", "conv2d", ("b", "w2"), ("c",), {"padding": (1,)}),
        Node("add", "add", ("b", "c"), ("d",)),
        Node("all", "reduce", ("d",), ("y",), {"op": "mean", "axes": (0,), "keepdims": False}),
    )
    return Graph({"x": TensorSpec((images, 4, side, side))}, ("y", "b", "d"), nodes, W, "net")


def with_another(images=8):
    """The same with a second input behind the pooling."""
    graph = net(images)
    inputs = {"z": TensorSpec((images, 16, 8, 8)), **graph.inputs}
    return graph.replace(
        inputs=inputs, nodes=(*graph.nodes, Node("end", "add", ("d", "z"), ("e",))), outputs=("y", "e")
    )


def x_of(seed, images=8, side=16):
    return {"x": normals(images, 4, side, side, seed=seed)}


def assert_close(found, want, relative=2e-5):
    for name, array in want.items():
        assert np.abs(np.asarray(found[name], np.float32) - array).max() <= relative * np.abs(array).max()


def whole(graph, inputs, **options):
    with Session(graph, options=Options(staging=True, pieces=1, **options)) as session:
        return session.run(inputs)


@pytest.mark.parametrize(
    ("images", "dtype", "parts", "count"),
    [
        (8, None, 1, 4),
        (6, None, 1, 3),
        (8, "f16", 1, 4),
        (12, "bf16", 1, 4),
        (7, None, 1, 0),
        (8, None, 2, 8),
        (24, "f16", 3, 12),
    ],
)
def test_pieces_give_what_the_whole_batch_does(images, dtype, parts, count, monkeypatch):
    policy = early.EARLY.of
    monkeypatch.setattr(early.EARLY, "of", lambda device: msgspec.structs.replace(policy(device), first_parts=parts))
    graph, relative = net(images), {None: 2e-5, "f16": 2e-3, "bf16": 2e-2}[dtype]
    options = Options(staging="streamed", pieces=4, dtype=dtype)
    with Session(graph, options=options, poison=True) as session:
        made = session.plan.early
        assert (made.pieces if made else 0) == count
        for seed in range(3):
            x = x_of(seed, images)
            found = session.run(x)
            assert_close(found, whole(graph, x, dtype=dtype), relative)
            again = session.run(x)
            assert all(found[name].tobytes() == again[name].tobytes() for name in found)
        backwards = {"x": x["x"][::-1, ::-1]}  # not in a row
        assert_close(session.run(backwards), whole(graph, backwards, dtype=dtype), relative)
        swapped = {"x": x["x"].astype(">f4")}  # numpy writes staging
        assert_close(session.run(swapped), found, relative)


@pytest.mark.parametrize("out", ["host", "device"])
def test_another_input_is_there_before_it_is_read(out):
    graph = with_another()
    with Session(graph, options=CUT, poison=True) as session:
        assert session.plan.early.x == "x"
        for seed in range(4):
            inputs = {**x_of(seed), "z": normals(8, 16, 8, 8, seed=seed + 50)}
            made = session.run(inputs, out=out) if out == "device" else session.run(inputs)
            assert_close({name: np.asarray(made[name]) for name in made}, whole(graph, inputs))


def test_arrays_on_the_device_are_not_awaited():
    graph, x = net(), x_of(3)
    want = whole(graph, x)
    with Session(graph, options=CUT, poison=True) as session:
        there = {"x": vkconv.array(x["x"])}
        for given in (there, x, there, x):
            assert_close(session.run(given), want)
            assert_close(session.submit(given).result(60), want)


def test_a_profile_says_what_the_device_waits():
    graph, x = net(), x_of(3)
    with Session(graph, options=CUT) as session:
        outputs, timing = session.measure(x)
        assert_close(outputs, whole(graph, x))
        profile = session.profile(x, runs=3)
        parts = [part.name for part in profile.parts]
        assert parts.count("await x") == 1 and parts.index("stem/0") < parts.index("await x") < parts.index("stem/1")
        assert abs(sum(part.us for part in profile.parts) - profile.timing.wall_us) < 0.1
        assert len(timing.commands) == len(timing.stamps_us) - 1
        assert "4 pieces of 'x'" in vkconv.plan.explain.explain_plan(session.plan).title


def test_runs_in_flight_from_several_threads_keep_to_their_own_images():
    graph, failed = net(), []
    wanted = {seed: whole(graph, x_of(seed)) for seed in range(4)}
    with Session(graph, options=CUT, poison=True, in_flight=8) as session:

        def submits(first):
            try:
                futures = [((first + i) % 4, session.submit(x_of((first + i) % 4))) for i in range(20)]
                for seed, future in futures:
                    assert_close(future.result(60), wanted[seed])
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=submits, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_close(session.run(x_of(2)), wanted[2])
    assert not failed


class Stopped(BaseException):
    """Such as Ctrl-C."""


def stop_after_writing(monkeypatch):
    write = Ports.write

    def stops(self, *args):
        write(self, *args)
        raise Stopped

    monkeypatch.setattr(Ports, "write", stops)


@pytest.mark.parametrize("way", ["run", "submit", "measure"])
def test_a_run_that_stops_between_its_parts_does_not_spoil_the_next(way, monkeypatch):
    graph, x = net(), x_of(5)
    want = whole(graph, x)
    with Session(graph, options=CUT, poison=True) as session:
        session.run(x_of(1))
        for _ in range(3):
            with monkeypatch.context() as patch:
                stop_after_writing(patch)
                with pytest.raises(Stopped):
                    getattr(session, way)(x_of(2))
            assert_close(session.run(x), want)
            assert_close(session.submit(x).result(60), want)


def test_a_session_ends_after_a_run_that_stopped_between_its_parts(monkeypatch):
    for way in ("run", "submit"):
        session = Session(net(side=64), options=CUT)
        with monkeypatch.context() as patch:
            stop_after_writing(patch)
            with pytest.raises(Stopped):
                getattr(session, way)(x_of(2, side=64))
        session.close()
        gc.collect()


def test_parts_of_a_recording_wait_for_their_bytes_alone():
    handle = open_device().handle
    staging, target = handle.buffer(4096, "upload"), handle.buffer(4096, "streamed")
    out = handle.buffer(4096, "download")
    upload = handle.upload(staging, target, 4096, 1024)
    recording = handle.recording(3)
    recording.timestamp()
    for begin in (0, 1024, 2048):
        if begin:
            recording.part(upload, begin)
            recording.timestamp()
        recording.copy(target, begin, out, begin, 1024 if begin < 2048 else 2048)
    recording.barrier(["transfer"], ["host"])
    recording.end([upload])
    assert not recording.started
    for seed in range(5):
        data = np.arange(1024, dtype=np.uint32) + seed
        upload.write(data, 1, "", recording)
        assert recording.started
        with pytest.raises(RuntimeError, match="its end was not: wait"):
            upload.write(data, 1, "", recording)
        recording.run()
        assert (np.frombuffer(out.view, np.uint32) == data).all() and recording.age_ns > 0
        times = recording.timestamps_ns()
        assert len(times) == 3 and times == sorted(times)
        recording.submit()  # parts that no upload submits
        assert recording.wait() and not recording.started
        upload.write(data, 1, "", recording)
        assert recording.wait()  # of the parts alone
        assert not recording.started
    upload.write(data, 1, "", recording)
    del recording, upload, staging, target  # with what the device may be at work on
    gc.collect()
    handle.wait_idle()


def test_parts_that_cannot_be_are_refused():
    handle = open_device().handle
    staging, target = handle.buffer(64, "upload"), handle.buffer(64, "streamed")
    upload, other = (handle.upload(staging, target, 64, 256) for _ in range(2))
    recording = handle.recording()
    for nbytes in (0, 65):
        with pytest.raises(ValueError, match=f"{nbytes} bytes, the upload has 64"):
            recording.part(upload, nbytes)
    recording.part(upload, 32)
    with pytest.raises(ValueError, match="more and more bytes of one upload"):
        recording.part(upload, 16)
    with pytest.raises(ValueError, match="more and more bytes of one upload"):
        recording.part(other, 48)
    recording.end([upload])
    with pytest.raises(RuntimeError, match="has ended"):
        recording.part(upload, 48)
    with pytest.raises(RuntimeError, match="not ended"):
        upload.write(np.zeros(16, np.float32), 1, "", handle.recording())


def test_weights_of_all_pieces_are_packed_once():
    with Session(net(), options=CUT) as cut, Session(net(), options=Options(staging="streamed", pieces=1)) as one:
        assert cut.plan.memory.weights_bytes == one.plan.memory.weights_bytes
        assert DType.F32 is cut.inputs["x"].dtype
