"""--dtype and --io-dtype: the types that floats are stored in, found where they are to be found, and told."""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vkconv.core import Array, DType
from vkconv.device import Device

if TYPE_CHECKING:
    from vkconv.graph import Graph
    from vkconv.plan.planner import Options


def found_types(
    graph: "Graph", inputs: Mapping[str, Array], device: str, options: "Options", limits: Device | None
) -> "Options":
    """The options with floats as f16, but for the nodes that f16 does not suffice for with these inputs."""
    from vkconv.check.types import nodes_for_f32

    kept, _ = nodes_for_f32(graph, inputs, device=device, options=options, limits=limits)
    return dataclasses.replace(options, dtype=DType.F16, dtypes=kept)


def types_lines(options: "Options") -> list[str]:
    """What floats are stored as, as words of --dtype, and come in and go out as, if that is not what the model says."""
    words = [str(options.dtype)] * bool(options.dtype) + [f"{key}={dtype}" for key, dtype in options.dtypes.items()]
    lines = [f"floats are stored by --dtype {shlex.quote(','.join(words))}"] if words else []
    return lines + [f"inputs and outputs that are floats are {options.io_dtype}"] * bool(options.io_dtype)
