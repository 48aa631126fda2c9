"""Launches whose pipelines have what they would push as constants of their own (`vkconv.fixed`)."""

import dataclasses
from collections.abc import Collection

from vkconv.plan.commands import Barrier, Command, Launch
from vkconv.plan.model import Plan
from vkconv.policy import Policy

FIXED_PUSH = Policy("pipelines.fixed_push", bool)
# For how many sets of shapes of a session plans have them, where no option says whether they do.
FIXED_PLANS = Policy("pipelines.fixed_plans", int)
# Kernels that push where others have them.
PUSHING = Policy("pipelines.pushing", tuple[str, ...])


def with_fixed_push(plan: Plan, wanted: bool | None) -> Plan:
    """The plan where no launch of a run pushes anything: where that is ``wanted``, or with None where the device's
    policy has it, but for the kernels that another policy has push. Tiles of `kernels.pushing_tiles` push in any case.
    What loads weights runs once, which pays for no pipeline of its own."""
    taken = FIXED_PUSH.of(plan.device) if wanted is None else wanted
    if not taken:
        return plan
    pushing = PUSHING.of(plan.device) if wanted is None else ()
    return dataclasses.replace(plan, run=tuple(_fixed(command, pushing) for command in plan.run))


def _fixed(command: Command | Barrier, pushing: Collection[str]) -> Command | Barrier:
    if not isinstance(command, Launch) or command.pushes or not command.push:
        return command
    if command.shader.stem in pushing:
        return dataclasses.replace(command, pushes=True)
    return dataclasses.replace(command, push=b"", fixed=command.push_words)


def fixed_launches(plan: Plan) -> int:
    """How many launches of a run are so."""
    return sum(isinstance(command, Launch) and command.fixed is not None for command in plan.run)


def fixed_str(plan: Plan) -> str:
    """The same in words, with those that push by policy; empty where neither policy nor options have any."""
    launches = [command for command in plan.run if isinstance(command, Launch)]
    fixed, pushing = fixed_launches(plan), sum(launch.pushes for launch in launches)
    if any(launch.push and not launch.pushes for launch in launches):  # all do
        pushing = 0
    if not launches or not (fixed or FIXED_PUSH.of(plan.device)):
        return ""
    by_policy = f", {pushing} pushing by policy" if pushing else ""
    return f"{fixed} of {len(launches)} launches with push constants as constants of their pipelines{by_policy}"
