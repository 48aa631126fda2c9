"""Decoders whose caches stay on the device, token by token against ONNX Runtime."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
from cli_kit import vkconv as vkconv_command
from required import required

required("onnx", "onnxruntime")
import decoder_kit  # noqa: E402
import onnxruntime  # noqa: E402
from decoder_kit import PAST, WORDS, decoder, empty, feeds  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import vkconv  # noqa: E402
from vkconv.cached import CachedSession  # noqa: E402
from vkconv.core import InputError, LimitError, UnsupportedError, UsageError  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.plan import fixing  # noqa: E402
from vkconv.settings import Settings  # noqa: E402

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(11)


class Reference:
    """A decoder in ONNX Runtime, its caches given back to it by the host."""

    def __init__(self, model):
        self.model = model
        self.names = [output.name for output in model.graph.output]
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.past = empty(model)

    def run(self, inputs):
        found = dict(zip(self.names, self.session.run(None, {**inputs, **self.past}), strict=True))
        self.past = {name: found[name.replace("past_key_values", "present")] for name in self.past}
        return found


def close(got, want):
    """Within what sums in another order come to, of the largest. In f16 both round each value to 2**-11 of itself, and
    eight roundings follow each other in a decoder of two layers."""
    wide = np.abs(want.astype(np.float64))
    most = wide.max() * (3e-6 if want.dtype == np.float32 else 4e-3)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=most)


VARIANTS = {
    "rotary": {},
    "f16": {"dtype": np.float16},
    "positions_given": {"positions": "input", "masked": False},
    "learned_two_batches": {"positions": "learned", "batch": 2},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_token_is_that_of_onnx_runtime(name):
    model = decoder(**VARIANTS[name])
    reference, batch = Reference(model), VARIANTS[name].get("batch", 1)
    with CachedSession(load_onnx_proto(model), "auto", Settings(bounds={PAST: 11}), poison=True) as session:
        memory = None
        for count in (3, 1, 1, 1, 2, 1, 1, 1):  # a prompt, tokens, two at once: to the last row
            inputs = feeds(model, RNG.integers(0, WORDS, (batch, count)), session.length)
            want = reference.run(inputs)
            close(session.run(inputs)["logits"], want["logits"])
            for output, array in session.rows().items():
                close(array, want[output])
            now = {name: (cache.storage.serial, cache.shape) for name, cache in session._caches.items()}
            assert now == (memory or now)
            memory = now
        assert session.length == 11
        assert len(session._executables) == 3  # one for each number of rows
        with pytest.raises(
            LimitError, match=r"11 rows of the caches are taken and the run brings 1, 12 in all, .* is 11;"
        ):
            session.run(feeds(model, np.zeros((batch, 1), np.int64), 11))


@pytest.mark.parametrize("name", VARIANTS)
def test_caches_grow_as_they_fill_up(name):
    """From two rows on, with what they hold, to a bound that is no power of two; taken back they stay as large."""
    model = decoder(**VARIANTS[name])
    reference, batch = Reference(model), VARIANTS[name].get("batch", 1)
    with CachedSession(load_onnx_proto(model), "auto", Settings(bounds={PAST: 11}), poison=True) as session:
        session._first_rows = 2
        held = []
        for count in (1, 1, 1, 2, 1, 3, 1, 1):
            inputs = feeds(model, RNG.integers(0, WORDS, (batch, count)), session.length)
            want = reference.run(inputs)
            close(session.run(inputs)["logits"], want["logits"])
            for output, array in session.rows().items():
                close(array, want[output])
            held += {cache.shape[2] for cache in session._caches.values()}
        assert held == [2, 2, 4, 8, 8, 11, 11, 11]
        assert session.is_full
        with pytest.raises(LimitError, match=r"11 rows of the caches are taken .* and the bound is 11;"):
            session.run(feeds(model, np.zeros((batch, 1), np.int64), 11))
        session.rewind(1)
        session.run(feeds(model, np.ones((batch, 1), np.int64), 1))
        assert {cache.shape[2] for cache in session._caches.values()} == {11}
        pasts = {array.replace("present", "past_key_values"): rows for array, rows in session.rows().items()}
        session.rewind()
        session.restore(pasts)
        assert session.length == 2 and {cache.shape[2] for cache in session._caches.values()} == {2}
        session.run(feeds(model, np.ones((batch, 1), np.int64), 2))
        assert {cache.shape[2] for cache in session._caches.values()} == {4}
        for output, array in session.rows().items():
            np.testing.assert_array_equal(array[:, :, :2], pasts[output.replace("present", "past_key_values")])


def test_what_a_failed_run_left_does_not_grow_with_the_caches():
    """Rows behind those that are meant are put away where the caches move."""
    model = decoder(layers=1)
    reference = Reference(model)
    with CachedSession(load_onnx_proto(model), "auto", Settings(bounds={PAST: 9}), poison=True) as session:
        session._first_rows = 4
        ids = RNG.integers(0, WORDS, (1, 5))
        for i in range(3):
            session.run(feeds(model, ids[:, i : i + 1], i))
        session.rewind(1)
        session.run(feeds(model, ids[:, 1:], 1))
        want = reference.run(feeds(model, ids, 0))
        for output, array in session.rows().items():
            close(array, want[output])


@pytest.fixture(scope="module")
def one_layer():
    return decoder(layers=1)


@pytest.fixture
def session(one_layer):
    with vkconv.load(one_layer.SerializeToString(), bounds={PAST: 8}) as opened:
        yield opened


def run_words(session, model, *words):
    return [session.run(feeds(model, np.array([[word]]), session.length))["logits"] for word in words]


def test_nothing_leaks_from_rows_that_were_taken_back(one_layer):
    """A word whose embedding is NaN, and one of infinities, poison their rows of the caches."""
    model = type(one_layer)()
    model.CopyFrom(one_layer)
    (embedding,) = (t for t in model.graph.initializer if list(t.dims) == [WORDS, decoder_kit.WIDTH])
    words = numpy_helper.to_array(embedding).copy()
    words[30], words[29] = np.nan, np.inf
    embedding.CopyFrom(numpy_helper.from_array(words, embedding.name))
    with vkconv.load(model.SerializeToString(), bounds={PAST: 8}) as session:
        clean = run_words(session, model, 1, 2, 3, 4)
        session.rewind(1)
        run_words(session, model, 30, 29, 30)
        assert np.isnan(session.rows()["present.0.key"]).any()
        session.rewind(1)
        assert session.length == 1
        for got, want in zip(run_words(session, model, 2, 3, 4), clean[1:], strict=True):
            np.testing.assert_array_equal(got, want)
        session.rewind()
        for got, want in zip(run_words(session, model, 1, 2, 3, 4), clean, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_profiled_run_leaves_the_length_as_it_was(session, one_layer):
    run_words(session, one_layer, 5, 6)
    inputs = feeds(one_layer, np.array([[7]]), 2)
    profile = session.profile(inputs, runs=3)
    outputs, timing = session.measure(inputs)
    assert session.length == 2 and timing.call_us > 0 and profile.nodes.rows
    np.testing.assert_array_equal(session.run(inputs)["logits"], outputs["logits"])
    said = session.explain().title
    assert "2 caches stay on the device, updated in place: 1 row a run, 8 at most, one plan for all lengths" in said
    assert [row["rows"] for row in session.caches_table().rows] == [3, 3]


def test_caches_come_from_the_host_and_go_there(session, one_layer):
    (first, second) = run_words(session, one_layer, 5, 6)
    kept = {name.replace("present", "past_key_values"): array for name, array in session.rows().items()}
    session.rewind()
    session.restore({name: array[:, :, :1] for name, array in kept.items()})
    (again,) = run_words(session, one_layer, 6)
    np.testing.assert_array_equal(again, second)
    with pytest.raises(InputError, match=r"has the caches past_key_values.0.key, .*, and was given none"):
        session.restore({})
    with pytest.raises(InputError, match=r"caches of 9 rows; all have as many rows, and 8 at most"):
        session.restore({name: np.zeros((1, 2, 9, 6), np.float32) for name in kept})
    for given in (None, [1]):
        with pytest.raises(InputError, match=rf"and was given a {type(given).__name__} for a dict"):
            session.restore(given)
    many_heads, hidden = np.zeros((1, 3, 1, 6), np.float32), np.ma.masked_all((1, 2, 1, 6), np.float32)
    for wrong, said in ((many_heads, "given as 1x3x1x6"), ([[1], [2, 3]], "is not an array"), (hidden, "12 masked")):
        with pytest.raises(InputError, match=rf"cache 'past_key_values\.0\.key' .*{said}"):
            session.restore(dict.fromkeys(kept, wrong))
    assert session.length == 2  # as before
    session.restore({name: array[:, :, :1].astype(array.dtype.newbyteorder()) for name, array in kept.items()})
    (again,) = run_words(session, one_layer, 6)
    np.testing.assert_array_equal(again, second)
    with pytest.raises(UsageError, match=r"there are 2 rows, which cannot be rewound to 3"):
        session.rewind(3)
    assert not np.array_equal(first, second)


def test_what_does_not_fit_the_caches_is_refused(session, one_layer):
    run_words(session, one_layer, 5, 6)
    with pytest.raises(
        InputError, match=r"'attention_mask' .* has shape 1x1; it grows with the caches, which have 2 rows"
    ):
        session.run(feeds(one_layer, np.array([[7]]), 0))
    with pytest.raises(InputError, match=r"has no input 'past_key_values.0.key'"):
        session.run({**feeds(one_layer, np.array([[7]]), 2), **empty(one_layer)})
    there = session.run(feeds(one_layer, np.array([[7]]), 2), out="device")["logits"]
    session.rewind(2)
    (here,) = run_words(session, one_layer, 7)
    np.testing.assert_array_equal(there.numpy(), here)


def test_submitted_runs_follow_each_other(session, one_layer):
    words = (5, 6, 7, 8)
    wanted = run_words(session, one_layer, *words)
    session.rewind()
    given = [feeds(one_layer, np.array([[word]]), i) for i, word in enumerate(words)]
    futures = [session.submit(inputs, out="device" if i == 2 else "host") for i, inputs in enumerate(given)]
    for inputs in given:
        inputs["input_ids"][:] = 0  # what was submitted is what was there then
    for future, want in zip(futures, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(future.result()["logits"]), want)
    assert session.length == 4
    with pytest.raises(InputError, match=r"it grows with the caches, which have 4 rows"):
        session.submit(given[2]).result()
    with pytest.raises(InputError, match=r"has no input 'word'"):
        session.submit({**given[0], "word": np.zeros(1)})
    session.rewind()

    async def awaited():
        return await asyncio.gather(*(session.arun(feeds(one_layer, np.array([[w]]), i)) for i, w in enumerate(words)))

    for outputs, want in zip(asyncio.run(awaited()), wanted, strict=True):
        np.testing.assert_array_equal(outputs["logits"], want)
    session.rewind()
    futures = []
    for i, word in enumerate(words):
        futures.append(session.submit(feeds(one_layer, np.array([[word]]), i)))
        assert sum(not future.done() for future in futures) <= 3
    session.close()
    for future, want in zip(futures, wanted, strict=True):
        np.testing.assert_array_equal(future.result(0)["logits"], want)
    with pytest.raises(UsageError, match="closed"):
        session.submit(given[0])


def test_plans_that_go_take_what_they_were_made_of_with_them(one_layer):
    with vkconv.load(one_layer.SerializeToString(), bounds={PAST: 9}, max_plans=2) as session:
        for count in (1, 2, 3):
            session.run(feeds(one_layer, np.ones((1, count), np.int64), session.length))
            assert session._grown.keys() == session._executables.keys()
        assert len(session._grown) == 2
        again = session.run(feeds(one_layer, np.ones((1, 1), np.int64), 6))["logits"]
        reference = Reference(one_layer)
        want = reference.run(feeds(one_layer, np.ones((1, 7), np.int64), 0))["logits"]
        close(again, want[:, 6:])


def test_prompts_push_behind_the_first_ones_and_tokens_never(one_layer, monkeypatch):
    monkeypatch.setattr(fixing, "FIXED_PUSH", SimpleNamespace(of=lambda _: True))
    monkeypatch.setattr(vkconv.session, "FIXED_PLANS", SimpleNamespace(of=lambda _: 0))
    with vkconv.load(one_layer.SerializeToString(), bounds={PAST: 8}) as session:
        found = []
        for count in (2, 1):
            session.rewind(0)
            session.run(feeds(one_layer, np.ones((1, count), np.int64), session.length))
            found.append(fixing.fixed_launches(session.plan) > 0)
    assert found == [False, True]


@pytest.mark.parametrize("io_dtype", [None, "f16"])
def test_caches_have_the_types_that_come_and_go(one_layer, io_dtype):
    reference, expected = Reference(one_layer), np.float16 if io_dtype else np.float32
    with vkconv.load(one_layer.SerializeToString(), bounds={PAST: 4}, dtype="f16", io_dtype=io_dtype) as session:
        for word in (3, 5, 7, 9):
            inputs = feeds(one_layer, np.array([[word]]), session.length)
            want = reference.run(inputs)
            assert session.run(inputs)["logits"].dtype == expected
            for output, array in session.rows().items():
                assert array.dtype == expected
                close(array, want[output].astype(np.float16))


def test_rows_that_a_tensor_scatter_replaces_are_written_in_place():
    info = helper.make_tensor_value_info
    floats = TensorProto.FLOAT
    nodes = [
        helper.make_node("TensorScatter", ["cache", "rows", "at"], ["next"], "write", axis=1, mode="circular"),
        helper.make_node("ReduceSum", ["next", "axes"], ["sum"], "sum", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "ring",
        [info("cache", floats, [2, 5, 3]), info("rows", floats, [2, "n", 3]), info("at", TensorProto.INT64, [2])],
        [info("sum", floats, [2, 3]), info("next", floats, [2, 5, 3])],
        [numpy_helper.from_array(np.array([1]), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    held = np.zeros((2, 5, 3), np.float32)
    with vkconv.load(model, caches=True) as session:
        assert list(session.inputs) == ["rows", "at"] and session.outputs == ("sum",)
        for first in range(7):
            rows, at = RNG.standard_normal((2, 2, 3)).astype(np.float32), np.array([first % 5, (first + 3) % 5])
            for batch in range(2):
                held[batch, (at[batch] + np.arange(2)) % 5] = rows[batch]
            close(session.run({"rows": rows, "at": at})["sum"], held.sum(axis=1))
            np.testing.assert_array_equal(session.rows()["next"], held)
        (write,) = (node for node in session.plan.nodes if node.name == "write")
        assert write.dispatches == 1  # no copy
        assert len(session._executables) == 1
    with pytest.raises(UnsupportedError, match=r"has no cache, an input that a TensorScatter writes rows of"):
        vkconv.load(decoder(layers=1), caches=True)


def test_the_command_line_runs_token_after_token(one_layer, tmp_path):
    path = tmp_path / "decoder.onnx"
    path.write_bytes(one_layer.SerializeToString())
    ask = ("run", path, "--bound", f"{PAST}=5", "--dim", "sequence_length=1", "-i", "attention_mask=ones")
    code, out, err = vkconv_command(*ask, "--runs", "6", "--warmup", "0", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["bounds"] == {PAST: 5} and len(data["steady_us"]) == 6
    assert 0 < data["host_median_us"] < data["steady_median_us"]
    assert data["length"] == 2 and [row["rows"] for row in data["caches"]] == [2, 2]  # five, then from none on
    code, out, err = vkconv_command(*ask, "--io-dtype", "f16", "--dtype", "f16", "--runs", "1")
    assert code == 0 and "of that the host" in out, err
    code, out, err = vkconv_command(*ask, "--runs", "1", "-o", f"logits={path / 'y.npy'}")
    assert code == 2 and "cannot write" in err and "of that the host" in out
