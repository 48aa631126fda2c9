"""The pipelines that calls come to: what a driver's compiler is given, from plans that need no Vulkan."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Iterator

from vkconv.call import Call
from vkconv.compiler import pipeline_spirv
from vkconv.core import VkconvError
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.plan.commands import Barrier, Command, Launch
from vkconv.plan.model import Plan
from vkconv.plan.planner import Options, plan
from vkconv.plan.single import forcing, graph_of_shapes
from vkconv.route import Params


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A compute pipeline: a shader with all that decides its code. ``bindings`` are so many storage buffers, or where
    there are textures among them the letters of `Interface.kinds`. ``subgroup_size`` 0 asks for none. ``fixed`` are
    words in place of the shader's push constants, None where they are pushed."""

    shader: Shader
    words: tuple[int, ...]
    bindings: int | str
    push_bytes: int
    subgroup_size: int = 0
    fixed: tuple[int, ...] | None = None

    @functools.cached_property
    def code(self) -> bytes:
        """Its SPIR-V. ShaderError where it cannot be had."""
        return _spirv(self.shader, self.fixed)

    @functools.cached_property
    def digest(self) -> str:
        """Hex identity: the same for pipelines that a compiler cannot tell apart."""
        rest = repr((self.words, self.bindings, self.push_bytes, self.subgroup_size))
        return hashlib.sha256(self.code + rest.encode()).hexdigest()

    @property
    def local(self) -> tuple[int, ...]:
        """Invocations of a workgroup in x, y and z."""
        return self.words[:3]


@functools.lru_cache(maxsize=1024)
def _spirv(shader: Shader, fixed: tuple[int, ...] | None) -> bytes:
    return pipeline_spirv(shader, fixed)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A call on a route (None: the one that the planner takes) with these parameters, which counts ``count`` times."""

    call: Call
    text: str
    count: int = 1
    route: str | None = None
    params: Params = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Step:
    """One launch of a call: when it runs (``load``: once, for the weights; ``run``: each time), and its pipeline."""

    phase: str
    pipeline: Pipeline


@dataclasses.dataclass(frozen=True)
class Made:
    """What a call comes to on a device: the route with its parameters, whether the planner would take just that, and
    the launches, each pipeline once; ``launches`` are those of each inference as they are. Where it cannot be planned
    there are none, and ``why`` says why."""

    asked: Asked
    route: str
    params: Params
    chosen: bool
    steps: tuple[Step, ...] = ()
    why: str = ""
    launches: tuple[Launch, ...] = ()


def collect(
    wanted: Iterable[Asked], device: Device, subgroup_size: int = 0, fixed_push: bool | None = None
) -> Iterator[Made]:
    """The pipelines of each call on a device. Every pipeline asks for subgroups of ``subgroup_size`` invocations;
    with 0, for what its plan does. ``fixed_push`` is that of `Options`."""
    plans: dict[str, Plan | VkconvError] = {}

    def planned_by(asked: Asked, options: Options) -> Plan | VkconvError:
        return _planned(asked, device, dataclasses.replace(options, fixed_push=fixed_push))

    for asked in wanted:
        best = plans.get(asked.text) or planned_by(asked, forcing(None))
        plans[asked.text] = best
        forced = asked.route is not None or bool(asked.params)
        planned = planned_by(asked, forcing(asked.route, asked.params)) if forced else best
        if isinstance(planned, VkconvError):
            yield Made(asked, asked.route or "", asked.params, not forced, (), str(planned))
            continue
        route, params = _taken(planned)
        chosen = not forced or (isinstance(best, Plan) and _taken(best) == _taken(planned))
        steps = [*_steps("load", planned.load, subgroup_size), *_steps("run", planned.run, subgroup_size)]
        launches = tuple(command for command in planned.run if isinstance(command, Launch))
        yield Made(asked, route, params, chosen, tuple(dict.fromkeys(steps)), launches=launches)


def _planned(asked: Asked, device: Device, options: Options) -> Plan | VkconvError:
    """The plan of a call, or why there is none."""
    try:
        return plan(graph_of_shapes(asked.call), device, options).plan
    except VkconvError as error:
        return error


def _taken(planned: Plan) -> tuple[str, Params]:
    (node,) = planned.nodes
    return node.route, node.params


def _steps(phase: str, commands: Iterable[Command | Barrier], subgroup_size: int) -> Iterator[Step]:
    for command in commands:
        if isinstance(command, Launch):
            yield Step(phase, pipeline_of(command, subgroup_size))


def pipeline_of(launch: Launch, subgroup_size: int = 0) -> Pipeline:
    """The pipeline of a launch, which asks for subgroups of ``subgroup_size``, or with 0 for what its plan does."""
    size = subgroup_size or launch.subgroup_size
    kinds = launch.shader.interface.kinds
    bindings = len(kinds) if set(kinds) <= {"b"} else kinds
    return Pipeline(launch.shader, launch.spec_words, bindings, len(launch.push), size, launch.fixed)
