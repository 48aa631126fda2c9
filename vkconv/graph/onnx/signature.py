"""Nodes held against ONNX's own schemas, so that rules can rely on operands and required attributes."""

import onnx
import onnx.defs

from vkconv.core import ModelError
from vkconv.graph.onnx.proto import RefusedError

# An op that ONNX revised between its model's opset and this one is refused, and so is one that it revised after the
# newest: the rules hold for everything from the one to the other.
OLDEST_OPSET = 6
NEWEST_OPSET = 28


def check_signature(node: onnx.NodeProto, opset: int, what: str) -> None:
    """Raises RefusedError for an op or attribute that the opset lacks, ModelError for a node that is none of ONNX's."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        raise RefusedError(f"opset {opset} has no such op; export the model again") from None
    if opset < OLDEST_OPSET and schema.since_version < onnx.defs.get_schema(node.op_type, OLDEST_OPSET).since_version:
        raise RefusedError(
            f"version {opset} is too old, the oldest is {OLDEST_OPSET}; convert with onnx.version_converter"
        )
    if schema.since_version > NEWEST_OPSET:
        raise RefusedError(
            f"its definition changed in opset {schema.since_version}; export with {NEWEST_OPSET} or older"
        )
    for kind, count, low, high in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not low <= count <= high:
            raise ModelError(f"{what} has {count} {kind}; ONNX opset {opset} wants {low} to {high}")
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional  # of Loop the first two are, and count all the same
    needed = [name for name, formal in zip(node.input, schema.inputs, strict=False) if formal.option != optional]
    if any(not name for name in (*needed[: schema.min_input], *node.output[: schema.min_output])):
        raise ModelError(f"{what} leaves a required input or output empty")
    given = {a.name for a in node.attribute}
    foreign = sorted(given - set(schema.attributes))
    if foreign:
        raise RefusedError(f"attribute {', '.join(map(repr, foreign))} is not one of ONNX opset {opset}")
    missing = [name for name, attr in schema.attributes.items() if attr.required and name not in given]
    if missing:
        raise ModelError(f"{what} lacks the attribute {', '.join(missing)}")
