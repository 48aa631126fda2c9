"""A profile as node data for Model Explorer, which paints the nodes of a graph by it.

The form is that of its node_data_builder (google-ai-edge/model-explorer): graph id to ``results`` (node id to
``value``) and ``thresholds`` (upper bound ``value``, ``bgColor``), applied in order. ONNX adapters take the graph's
and the nodes' names as ids, and so does this; a node that a pass has merged into another has no time of its own and
no entry.
"""

from typing import Any

from vkconv.plan.profile import Profile, command_parts

# The largest share of all nodes' time that still has a colour, from pale to red.
_COLOURS = ((0.005, "#f1f3f4"), (0.02, "#fde9c9"), (0.05, "#fbc88f"), (0.1, "#f59a64"), (1.0, "#e3604a"))


def node_data(profile: Profile) -> dict[str, Any]:
    """Microseconds of GPU time of every node, in the run that the profile shows, and colours by share of their sum."""
    parts = command_parts(profile.plan, profile.timing)
    results = {part.name: part.us for part in parts if part.op != "copy"}
    total_us = sum(results.values())
    return {
        profile.plan.graph: {
            "name": f"GPU time [us] on {profile.plan.device.name}",
            "results": {node: {"value": us} for node, us in results.items()},
            "thresholds": [{"value": share * total_us, "bgColor": colour} for share, colour in _COLOURS],
        }
    }
