"""What other systems take for a call, by the rules that they published: `vkconv.plan.planner.Options.policy`."""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.device import Device
from vkconv.route import Params


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """The routes that stand for another system's, the first that can take the call before the others, values of
    parameters that its rule gives, and why it takes that. ``lacks`` is what the device does not have for any of them.
    """

    routes: tuple[str, ...]
    why: str
    params: Params = dataclasses.field(default_factory=dict)
    lacks: str = ""


Rule = Callable[[Call, Device], Published | None]
"""None for a call that the system's rule says nothing of: vkconv's own rule takes it."""
Rules = Mapping[str, Rule]
