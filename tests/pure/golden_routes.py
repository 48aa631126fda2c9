"""Which route each shipped device takes for a list of calls, as text files that tests hold the rules to.

After a rule was changed on purpose: ``python tests/pure/golden_routes.py`` writes them anew; read the difference.
"""

from pathlib import Path

from vkconv.bench.suites import SUITES
from vkconv.core import LimitError, RouteError
from vkconv.device import load_device, shipped_devices
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import graph_of_shapes

FOLDER = Path(__file__).parent / "golden"

# The suite as it is written, one call on each line.
CALLS = tuple(line for line in (SUITES / "golden.txt").read_text().splitlines() if line and not line.startswith("#"))


def taken(text, device):
    """The route of a call on a device with its parameters, or the error that planning it ends in."""
    try:
        node = plan(graph_of_shapes(parse_call(text, OPS)), device, Options(passes=False)).plan.nodes[0]
    except (LimitError, RouteError) as error:
        return f"{type(error).__name__}: {error}"
    return str(node.choice)


def golden(name):
    """The text of a device's file."""
    device = load_device(name)
    return "".join(f"{text}\n    {taken(text, device)}\n" for text in CALLS)


def main():
    for name in shipped_devices():
        (FOLDER / f"{name}.txt").write_text(golden(name))


if __name__ == "__main__":
    main()
