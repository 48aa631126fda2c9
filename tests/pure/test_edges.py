"""Numbers at the edges that would give silent wrong results: refused, with the number in the text."""

import pytest

from vkconv.core import GraphError
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
        ("resize:x=1x1x3x3,scales=1e300x1,axes=2x3", "resize: axis 2 .* is inf long"),
        ("softmax:x=2x3,axis=9223372036854775808", "more than 64 bits"),
        ("constant_of_shape:shape=0x4611686018427387904x4", "would make .* which cannot be"),
    ],
)
def test_a_number_at_the_edge_is_refused(text, says):
    with pytest.raises(GraphError, match=says):
        parse_call(text, OPS)
