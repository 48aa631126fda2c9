"""Attention of exported language models on the device, against ONNX Runtime: one node, and decoders token by token."""

import gqa_kit
import numpy as np
import onnxruntime
import pytest
from gqa_kit import PAST, WORDS, apart, decoder, inputs_of, one_node, ran

import vkconv
from vkconv.core import InputError, LimitError
from vkconv.graph.onnx import load_onnx_proto

pytestmark = pytest.mark.gpu

TURNED = {"do_rotary": 1}
CASES = {
    "prompt of 32": ({"rows": 9, "past": 0, **TURNED}, [9]),
    "token of 64, one head of keys": ({"size": 64, "kv_heads": 1, **TURNED}, [8]),
    "rows of 80, interleaved": (
        {"size": 80, "heads": 3, "kv_heads": 3, "rows": 3, "rotary_interleaved": 1, **TURNED},
        [10],
    ),
    "a part turned, window": ({"turned": 16, "rows": 5, "local_window_size": 4, **TURNED}, [12]),
    "packed, cap and sink": ({"packed": True, "rows": 3, "softcap": 2.0, "more": {"sink": [4]}, **TURNED}, [10]),
    "pasts of 7 and 4": ({"batch": 2, **TURNED}, [8, 5]),
    "all rows from the start, 8 and 5": ({"batch": 2, "room": 19, **TURNED}, [8, 5]),
    "f16": ({"dtype": np.float16, "rows": 3, **TURNED}, [10]),
    "f16, token of 64": ({"dtype": np.float16, "size": 64, "kv_heads": 1, **TURNED}, [8]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_is_what_onnx_runtime_makes_of_it(case):
    """In f32 sums in another order, in f16 a rounding of scores, weights and results each."""
    options, lengths = CASES[case]
    dtype = options.get("dtype", np.float32)
    model, shapes = one_node(**options)
    inputs = inputs_of(shapes, lengths, dtype)
    with vkconv.load(model) as session:
        found = session.run({name: inputs[name] for name in session.inputs})
    wanted = ran(model, inputs)
    rows = shapes["query"][1]
    assert apart([found[o.name] for o in model.graph.output], wanted, lengths, rows) <= (
        2e-6 if dtype == np.float32 else 4e-3
    )


class Reference:
    """A decoder in ONNX Runtime, its caches given back to it by the host."""

    def __init__(self, model, batch):
        self.names = [output.name for output in model.graph.output]
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.past = gqa_kit.empty(model, batch)

    def run(self, inputs):
        found = dict(zip(self.names, self.session.run(None, {**inputs, **self.past}), strict=True))
        self.past = {name: found[name.replace("past_key_values", "present")] for name in self.past}
        return found


def feeds(ids, lengths, most):
    """The inputs of a run behind which image i has ``lengths[i]`` rows."""
    return {"input_ids": ids, "attention_mask": (np.arange(most) < np.asarray(lengths)[:, None]).astype(np.int64)}


def close(found, wanted, tolerance):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted.astype(np.float64)).max())


DECODERS = {
    "words of four bits": {},
    "a batch of one": {"batch": 1},
    "plain products, one head of keys": {"nbits": False, "kv_heads": 1},
    "a head of keys for each": {"kv_heads": 4, "nbits": False},
    "f16": {"dtype": np.float16, "nbits": False},
}


@pytest.mark.parametrize("name", DECODERS)
def test_every_token_behind_bounded_caches_is_that_of_onnx_runtime(name):
    """In f16 both round each value to 2**-11 of itself, and some ten such roundings follow each other in a layer."""
    model = decoder(**DECODERS[name])
    reference, rng = Reference(model, 1), np.random.default_rng(6)
    tolerance = 20 * 2.0**-11 if DECODERS[name].get("dtype") else 1e-5
    with vkconv.load(model.SerializeToString(), bounds={PAST: 13}) as session:
        for count in (4, 1, 1, 1, 2, 1, 1, 1, 1):  # a prompt, tokens, two at once: to the last row
            total = session.length + count
            inputs = feeds(rng.integers(0, WORDS, (1, count)), [total], total)
            wanted = reference.run(inputs)
            close(session.run(inputs)["logits"], wanted["logits"], tolerance)
            for output, array in session.rows().items():
                close(array, wanted[output], tolerance)
        assert session.length == 13 and session.is_full
        with pytest.raises(LimitError, match="13 rows of the caches are taken and the run brings 1, 14 in all"):
            session.run(feeds(np.zeros((1, 1), np.int64), [14], 14))
        said = str(session.explain())
    assert "4 caches stay on the device, updated in place: 1 row a run, 13 at most" in said
    assert "attn_1/attention" in said and "GroupQuery" not in said


def test_images_with_prompts_of_other_lengths_share_bounded_caches():
    """A prompt of five and one of three: rows behind the end of the shorter are written over by its tokens."""
    model = decoder(nbits=False)
    reference, rng = Reference(model, 2), np.random.default_rng(7)
    with vkconv.load(model.SerializeToString(), bounds={PAST: 9}) as session:
        for step in range(5):
            lengths = [5 + step, 3 + step]
            inputs = feeds(rng.integers(0, WORDS, (2, 1 if step else 5)), lengths, 5 + step)
            wanted, found = reference.run(inputs), session.run(inputs)["logits"]
            rows = [1, 1] if step else lengths
            for image, count in enumerate(rows):
                close(found[image, :count], wanted["logits"][image, :count], 1e-5)
            for output, array in session.rows().items():
                for image, length in enumerate(lengths):
                    close(array[image, :, :length], wanted[output][image, :, :length], 1e-5)


def test_what_is_taken_back_leaves_no_trace():
    model, rng = decoder(nbits=False, layers=1), np.random.default_rng(8)
    words = rng.integers(0, WORDS, (1, 6))

    def tokens(session, first):
        return [session.run(feeds(words[:, i : i + 1], [i + 1], i + 1))["logits"] for i in range(first, 6)]

    with vkconv.load(model.SerializeToString(), bounds={PAST: 8}) as session:
        clean = tokens(session, 0)
        session.rewind(2)
        for found, wanted in zip(tokens(session, 2), clean[2:], strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("attrs", [{"softcap": 2.0}, {"smooth_softmax": 1}, {"local_window_size": 3}], ids=str)
def test_caps_sinks_and_windows_are_right_behind_bounded_caches(attrs):
    """Token by token, each length against ONNX Runtime; behind the end of the caches nothing is summed."""
    dims = {"past_key": [1, 2, "past", 32], "present_key": [1, 2, "total", 32]}
    dims |= {"past_value": dims["past_key"], "present_value": dims["present_key"]}
    model, shapes = one_node(past=0, names=dims, **TURNED, **attrs)
    pasts = {name: np.zeros((1, 2, 0, 32), np.float32) for name in ("past_key", "past_value")}
    with vkconv.load(model, bounds={"past": 6}) as session:
        for length in range(1, 7):
            inputs = inputs_of(shapes, [length], seed=length) | pasts
            wanted = dict(zip(("y", "present_key", "present_value"), ran(model, inputs), strict=True))
            close(session.run({name: inputs[name] for name in session.inputs})["y"], wanted["y"], 2e-6)
            pasts = {"past_key": wanted["present_key"], "past_value": wanted["present_value"]}
        close(session.rows()["present_key"], wanted["present_key"], 2e-6)


def test_caches_with_all_their_rows_are_updated_in_place():
    """Where the model declares a cache that is as long behind the node as before it."""
    model, shapes = one_node(room=6, past=0, **TURNED)
    pasts = {name: np.zeros((1, 2, 6, 32), np.float32) for name in ("past_key", "past_value")}
    with vkconv.load(model, caches=True) as session:
        for length in range(1, 7):
            inputs = inputs_of(shapes, [length], seed=length) | pasts
            y, key, value = ran(model, inputs)
            close(session.run({name: inputs[name] for name in session.inputs})["y"], y, 2e-6)
            pasts = {"past_key": key, "past_value": value}
        close(session.rows()["present_key"], key, 2e-6)


def test_wrong_inputs_are_named():
    model, shapes = one_node()
    with vkconv.load(model) as session:
        inputs = {name: x for name, x in inputs_of(shapes, [8]).items() if name in session.inputs}
        with pytest.raises(InputError, match=r"'past_key'.*1x2x6x32"):
            session.run({**inputs, "past_key": np.zeros((1, 2, 6, 32), np.float32)})
        with pytest.raises(InputError, match="'seqlens_k'"):
            session.run({**inputs, "seqlens_k": np.array([7.0], np.float32)})
    assert [node.op for node in load_onnx_proto(model).nodes].count("attention") == 1
