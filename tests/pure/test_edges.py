"""Numbers at the edges that would give silent wrong results: refused, with the number in the text."""

import numpy as np
import pytest

from vkconv.core import GraphError, InputError, did_you_mean, given_array
from vkconv.functional import conv2d
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

INF_SUMS = "conv2d_backward_weight:x=2x3x5x5,dy=2x4x5x5,w_shape=4x3x1x1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("clip:x=3,a=nan,b=1", "clip with the parameters nan, 1.0: one of them is no number"),
        ("clip:x=3,a=0,b=nan", "no number"),
        ("conv2d:x=1x1x3x3,w=1x1x1x1,act=clip,act_a=nan,act_b=1", "no number"),
        ("matmul:a=2x3,b=3x2,act=clip,act_a=0,act_b=nan", "no number"),
        (f"{INF_SUMS},scale=inf", "scale is inf and beta"),
        (f"{INF_SUMS},scale=nan", "scale is nan"),
        ("non_max_suppression:boxes=1x3x4,scores=1x1x3,most=3,iou=-0.1", "iou_threshold is -0.1; it is .* 0 to 1"),
        ("non_max_suppression:boxes=1x3x4,scores=1x1x3,most=3,iou=nan", "iou_threshold is nan"),
        ("resize:x=1x1x3x3,scales=1e300x1,axes=2x3", "resize: axis 2 .* is inf long"),
        ("softmax:x=2x3,axis=9223372036854775808", "more than 64 bits"),
        ("constant_of_shape:shape=0x4611686018427387904x4", "would make .* which cannot be"),
    ],
)
def test_a_number_at_the_edge_is_refused(text, says):
    with pytest.raises(GraphError, match=says):
        parse_call(text, OPS)


def test_elements_that_are_masked_are_not_computed_with():
    hidden = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[False, True], [False, False]])
    with pytest.raises(InputError, match=r"^x has 1 masked elements, of 4; give them values with \.filled\(VALUE\)$"):
        given_array(hidden, "x")
    with pytest.raises(InputError, match=r"it is dtype object; convert it with .astype\('float32'\)"):
        given_array(np.array([1, None]), "x")
    assert given_array(np.ma.masked_array([1.0, 2.0]), "x").tolist() == [1.0, 2.0]  # none of it is
    with pytest.raises(InputError, match="conv2d: w has 9 masked elements, of 9"):
        conv2d(np.zeros((1, 1, 4, 4), np.float32), np.ma.masked_all((1, 1, 3, 3), np.float32))


@pytest.mark.parametrize("name", [1, None, (), b"x"])
def test_a_name_that_is_no_text_is_like_none(name):
    assert did_you_mean(name, ["x"]) == ""


# What people write, and what vkconv has that they mean: "" where it has nothing like it.
MEANT = [
    # slips of the hand
    ("driect", ["direct", "direct_tile", "winograd"], "direct"),
    ("Conv2D", ["conv2d", "conv_reduce"], "conv2d"),
    ("convolution2d", ["conv2d", "col2im", "conv_transpose2d"], "conv2d"),
    ("fuse_chian", ["fuse_chain", "fuse_reduce"], "fuse_chain"),
    ("maxPushConstantSize", ["maxPushConstantsSize", "maxImageDimension1D"], "maxPushConstantsSize"),
    ("Relux", ["Relu", "Elu", "Selu"], "Relu"),
    ("f33", ["f32", "f16", "i32"], "f32"),
    ("mali-g716", ["mali-g715", "adreno-740"], "mali-g715"),
    # a part of the name, or more than it
    ("conv", ["conv2d", "gather"], "conv2d"),
    ("past_sequence", ["batch", "past_sequence_length"], "past_sequence_length"),
    ("tile", ["direct_tile", "winograd"], "direct_tile"),
    ("forward", ["fwd", "bwd", "wgrad"], "fwd"),
    # other things, of which some letters are the same
    ("Attention", ["Flatten", "Transpose", "ConvTranspose", "Expand"], ""),
    ("RotaryEmbedding", ["RoiAlign", "RandomUniform", "ReverseSequence"], ""),
    ("GroupQueryAttention", ["GroupNormalization", "QuantizeLinear"], ""),
    ("NonMaxSuppression", ["LogSoftmax", "MeanVarianceNormalization"], ""),
    ("Swish", ["Sinh", "Softsign"], ""),
    ("lstm", ["less", "log", "sum"], ""),
    ("image", ["input", "message"], ""),
    ("cuda", ["auto", "cpu"], ""),
    ("batch", ["bench", "patch_size"], ""),
    ("sequence", ["softmax", "squeeze"], ""),
    ("seed", ["sides", "scale"], ""),
    ("nvidia", ["mali-g57", "adreno-740", "lavapipe"], ""),
    ("timeout", ["params", "dims", "options"], ""),
    ("strides", ["sizes", "axes"], ""),
    ("q", ["k", "v", "x"], ""),
    ("logits", ["loss", "lengths"], ""),
]


@pytest.mark.parametrize(("word", "known", "meant"), MEANT, ids=[word for word, _, _ in MEANT])
def test_a_hint_is_for_a_word_that_is_like_the_one_given(word, known, meant):
    assert did_you_mean(word, known) == (f" (did you mean {meant!r}?)" if meant else "")


def test_no_word_of_onnx_is_taken_for_an_op_that_does_something_else():
    """Operators of ONNX, and of ONNX Runtime, that are no kin of an op of vkconv: none is taken for one."""
    others = ["Attention", "RotaryEmbedding", "FlexAttention", "SequenceEmpty", "StringNormalizer", "TfIdfVectorizer"]
    others += ["LabelEncoder", "SVMRegressor", "ImageDecoder", "BiasGelu", "GroupQueryAttention", "QMoE"]
    hints = {word: did_you_mean(word, [name for name in OPS if name != "attention"]) for word in others}
    assert {word: hint for word, hint in hints.items() if hint} == {}
