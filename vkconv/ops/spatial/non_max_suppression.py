"""non_max_suppression: of boxes that overlap those with the best scores, and how many they are."""

import math

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, GraphError
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import (
    F64,
    Arrays,
    Attr,
    Attrs,
    Op,
    Operand,
    Outputs,
    Resolved,
    Specs,
    defaults,
    first,
    local_sizes,
    over_workgroups,
)
from vkconv.ops.core.requirements import INT32, elements_in, loop_iterations, operands_in
from vkconv.ops.kernels.strided import dispatch_each
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.route import Legal, Params, Route

SELECT = Shader(shaders.spatial.NMS_SELECT, DType.F32, (("REDUCTION_TREE", ""),))
COLLECT = Shader(shaders.spatial.NMS_COLLECT, DType.I32)


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    boxes, scores = (shapes.float_operand(specs, name, "non_max_suppression") for name in ("boxes", "scores"))
    shapes.one_float_dtype("non_max_suppression", boxes, scores)
    fits = len(boxes.dims) == len(scores.dims) == 3 and boxes.dims[2] == 4
    if not fits or boxes.dims[:2] != (scores.dims[0], scores.dims[2]):
        raise GraphError(
            f"non_max_suppression: boxes are {boxes} and scores {scores}; they are images x boxes x 4 and images x "
            "classes x boxes"
        )
    iou = attrs["iou_threshold"]
    if not (isinstance(iou, float) and 0 <= iou <= 1):
        raise GraphError(f"non_max_suppression: iou_threshold is {iou}; it is a share of two boxes, from 0 to 1")
    images, classes, n = scores.dims
    most = min(max(0, shapes.ints(attrs["max_boxes"])[0]), n)
    rows = images * classes * most
    canonical: Attrs = {**attrs, "max_boxes": most}
    return canonical, (TensorSpec((rows, 3), DType.I64), TensorSpec((1,), DType.I64))


def _lines(call: Call) -> tuple[int, int, int]:
    """Classes of all images, boxes of each, and the most that are taken of them."""
    images, classes, n = call.shape("scores")
    return images * classes, n, call["max_boxes"]


def _turn(call: Call, local: int) -> int:
    """Loop iterations of an invocation for each box that is taken."""
    return _lines(call)[1] // local + 3 + local.bit_length()


def _together(call: Call, device: Device, local: int) -> int:
    """How many boxes of a line a launch takes: all, or as many as the driver's loops allow."""
    most = _lines(call)[2]
    allowed = device.max_loop_iterations
    return max(1, most if allowed is None else min(most, allowed // _turn(call, local) - 1))


def _select(call: Call, device: Device, local: int) -> list[Dispatch]:
    lines, n, most = _lines(call)
    limit, together = call["score_threshold"], _together(call, device, local)
    # No score is above infinity or NaN, which shaders are not given.
    taken = 0 if math.isnan(limit) or limit == math.inf else most
    push = {
        "lines": lines,
        "classes": call.shape("scores")[1],
        "n": n,
        "most": most,
        "iou_threshold": call["iou_threshold"],
        "score_threshold": limit if math.isfinite(limit) else 0.0,
    }
    return [
        Dispatch(
            SELECT,
            {name: name for name in ("boxes", "scores", "keys", "found")},
            *over_workgroups(lines, local, device),
            {**push, "begin": begin, "end": min(begin + together, taken)},
            {"CENTERS": call["centers"], "LIMITED": limit != -math.inf},
            8 * local,
            (min(together, most) + 1) * _turn(call, local),
        )
        for begin in range(0, most, together)
    ]


def _program(call: Call, device: Device, params: Params) -> Program:
    lines, n, most = _lines(call)
    push = {"lines": lines, "classes": call.shape("scores")[1], "most": most}
    collect = dispatch_each(COLLECT, max(1, lines * most), device, params, push, loop_iterations=lines)
    scratch = {"found": 4 * max(1, lines * (1 + most))}
    if lines * most == 0:  # nothing to take, but to count
        return Program((collect,), scratch=scratch)
    scratch["keys"] = 4 * lines * n
    return Program((*_select(call, device, params["local"]), collect), scratch=scratch)


_LOCAL = Policy("spatial.suppression", tuple[int, ...])


def _params(call: Call, device: Device) -> Legal:
    """The default of the policy, unless a smaller one takes several launches."""
    legal = local_sizes(device, *_LOCAL.of(device))
    least = min(legal, key=lambda local: -(-_lines(call)[2] // _together(call, device, local)))
    return {"local": first(least, legal)}


def _iterations(call: Call, device: Device) -> int:
    local = defaults(_params(call, device))["local"]
    return max([_lines(call)[0], *(step.loop_iterations for step in _select(call, device, local))])


def _corners(boxes: F64, centers: bool) -> F64:
    if centers:
        return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)
    return np.concatenate([np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], -1)


def _overlaps(box: F64, others: F64) -> F64:
    """Intersection over union, 0 where there is no intersection."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    meet = np.where((sides > 0).all(1), np.prod(sides, 1), 0.0)
    areas = [np.prod(corners[..., 2:] - corners[..., :2], -1) for corners in (box, others)]
    union = areas[0] + areas[1] - meet
    return np.asarray(np.divide(meet, union, out=np.zeros_like(meet), where=meet > 0), np.float64)


def _reference(call: Call, arrays: Arrays) -> Outputs:
    boxes, scores = shapes.given(arrays, "boxes"), shapes.given(arrays, "scores")
    limit = call["score_threshold"]
    found = []
    for image, own in enumerate(_corners(np.asarray(boxes, np.float64), call["centers"])):
        for label, line in enumerate(np.asarray(scores[image], np.float64)):
            left = ~np.isnan(line) & ((line > np.float32(limit)) | (limit == -math.inf))
            for _ in range(call["max_boxes"]):
                if not left.any():
                    break
                best = int(np.argmax(left & (line == line[left].max())))
                found.append((image, label, best))
                left &= ~(_overlaps(own[best], own) > np.float32(call["iou_threshold"]))
                left[best] = False
    y = np.full(call.shape("y"), -1, np.int64)
    y[: len(found)] = np.array(found, np.int64).reshape(-1, 3)
    return [y, np.array([len(found)], np.int64)]


NON_MAX_SUPPRESSION = Op(
    "non_max_suppression",
    (
        Operand("boxes"),
        Operand("scores"),
        Operand("max_boxes", host=True, optional=True),
        Operand("iou_threshold", host=True, optional=True),
        Operand("score_threshold", host=True, optional=True),
    ),
    _resolve,
    _reference,
    outputs=("y", "count"),
    counts=True,
    attrs=(
        Attr("max_boxes", "most", int, 0),
        Attr("iou_threshold", "iou", float, 0.0),
        Attr("score_threshold", "score", float, -math.inf),
        Attr("centers", "centers", bool, False),
    ),
    routes=(
        Route(
            "greedy",
            _program,
            (SELECT, COLLECT),
            "a workgroup for each class of an image takes one box after the other; no sorting, and scores are read "
            "once for each box that is taken; several launches where the driver ends loops",
            must=(
                operands_in("boxes", DType.F32),
                elements_in(DType.F32, DType.I64),
                INT32,
                loop_iterations(_iterations),
            ),
            params=_params,
        ),
    ),
    cases=(
        "non_max_suppression:boxes=1x13x4,scores=1x1x13,most=13,iou=0.1",
        "non_max_suppression:boxes=2x67x4,scores=2x3x67,most=5,iou=0.2,score=0.1",
        "non_max_suppression:boxes=1x131x4,scores=1x2x131,most=1000,iou=0.3,centers=1",
        "non_max_suppression:boxes=1x1x4,scores=1x1x1,most=1,score=100",
        "non_max_suppression:boxes=2x5x4,scores=2x3x5",
        "non_max_suppression:boxes=1x1511x4,scores=1x2x1511,most=1511,iou=0.9",
    ),
    doc="For each class of each image, up to max_boxes times, the box with the best score of those left, the first of "
    "equal ones; it takes the boxes with it that share more of their union with it than iou_threshold. Boxes are two "
    "opposite corners, or with centers a center and the lengths of the sides. Scores that are NaN, or not above "
    "score_threshold, do not count. y has rows of image, class and box, by image and class, count of them, then -1. "
    "ONNX NonMaxSuppression.",
)
