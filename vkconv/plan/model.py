"""The plan as data: what a backend runs and what explain, profile and memory reports print."""

import dataclasses
from collections.abc import Collection, Mapping

from vkconv.call import Call
from vkconv.core import Array
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.plan.arriving import Arrived, Early
from vkconv.plan.checks import InputCheck
from vkconv.plan.commands import Barrier, BufferKind, Command, Launch, Region
from vkconv.plan.narrowing import Narrowed, Widened, ahead, behind
from vkconv.plan.transfers import Transfers
from vkconv.plan.weights import Resident
from vkconv.route import Choice, Params
from vkconv.texture import PlannedTexture


@dataclasses.dataclass(frozen=True)
class PlannedNode:
    """One node of a plan: its call, the route and why, and how many dispatches one inference takes. ``remark`` is what
    a pass says of it."""

    name: str
    call: Call
    text: str
    choice: Choice | None
    dispatches: int
    prepack_dispatches: int
    remark: str = ""

    @property
    def route(self) -> str:
        """The route's name; ``alias`` where the output is the input's bytes, ``empty`` where it has no element."""
        return (
            self.choice.route.name
            if self.choice
            else "alias"
            if self.dispatches == 0 and not self.call.is_empty
            else "empty"
        )

    @property
    def params(self) -> Params:
        """The route's parameters and their values; none where no route runs."""
        return self.choice.params if self.choice else {}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes a plan takes. ``activations_bytes`` is reserved for values and scratch that share memory by
    lifetime; ``lower_bound_bytes`` is the largest set of them alive at one step, which no layout can beat. Both count
    the texels of textures. ``weights_bytes`` stays on the device for the session's life, shared by its plans,
    ``load_bytes`` only while loading; ``upload_bytes`` and ``download_bytes`` are host-visible: inputs and outputs,
    staged or where kernels use them; what is streamed counts in both places. ``caches_bytes`` are inputs that stay on
    the device from run to run."""

    activations_bytes: int
    lower_bound_bytes: int
    weights_bytes: int
    load_bytes: int
    upload_bytes: int
    download_bytes: int
    caches_bytes: int = 0

    @property
    def device_bytes(self) -> int:
        return self.activations_bytes + self.weights_bytes + self.caches_bytes

    @property
    def peak_bytes(self) -> int:
        """Everything, as it is while the weights are loaded."""
        return self.device_bytes + self.load_bytes + self.upload_bytes + self.download_bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything a backend needs, as plain data.

    ``buffers`` names each allocation with its size and kind. ``stage`` says where each constant goes in the
    ``load`` buffer before the ``load`` commands run, once; ``inputs`` and ``outputs`` say where the host writes
    and reads around each run of the ``run`` commands; ``known`` are outputs that folded to constants; ``weights``
    says where ``load`` leaves constants that later plans of the session may share;
    ``textures`` names each image to make, of which regions are always the whole;
    ``values`` says where every value lies while it is alive; ``checks`` are for the host to make before each run.
    Every input has a buffer of its own, ``input:X`` or, where the host narrows it, ``narrowed:X``, and every output,
    ``output:Y`` or ``widened:Y``, but where two are the same bytes. ``transfers`` says whether they are staging,
    ``narrowed`` how inputs come that the host narrows, ``widened`` how outputs leave that it widens. ``caches`` are the
    inputs that stay on the device from run to run, in memory of the session, and that the run updates in place.
    ``early`` says how a run begins before its input has come, if it does.
    """

    graph: str
    device: Device
    inputs: Mapping[str, tuple[TensorSpec, Region]]
    outputs: Mapping[str, tuple[TensorSpec, Region]]
    known: Mapping[str, Array]
    buffers: Mapping[str, tuple[int, BufferKind]]
    stage: Mapping[str, Region]
    load: tuple[Command | Barrier, ...]
    run: tuple[Command | Barrier, ...]
    nodes: tuple[PlannedNode, ...]
    values: Mapping[str, tuple[TensorSpec, Region]]
    memory: Memory
    transfers: Transfers
    weights: Resident = dataclasses.field(default_factory=dict)
    checks: tuple[InputCheck, ...] = ()
    caches: tuple[str, ...] = ()
    textures: Mapping[str, PlannedTexture] = dataclasses.field(default_factory=dict)
    narrowed: Mapping[str, Narrowed] = dataclasses.field(default_factory=dict)
    widened: Mapping[str, Widened] = dataclasses.field(default_factory=dict)
    early: Early | None = None

    def port(self, name: str) -> Region:
        """Where the host writes an input."""
        return self.narrowed[name].port if name in self.narrowed else self.inputs[name][1]

    @property
    def imported(self) -> tuple[str, ...]:
        """The inputs that are worth importing: kernels read them in the pages of the caller's array, where that begins
        as bindings must and its pages can be had. Not those that the host narrows."""
        if not self.transfers.imported:
            return ()
        least_bytes = self.transfers.imported.least_bytes(sum(isinstance(c, Launch) for c in self.run))
        copied = {*self.caches, *self.narrowed}
        given = ((name, spec) for name, (spec, _) in self.inputs.items() if name not in copied)
        return tuple(name for name, spec in given if spec.size and spec.nbytes >= least_bytes)

    def out_port(self, name: str) -> Region:
        """Where the host reads an output."""
        return self.widened[name].port if name in self.widened else self.outputs[name][1]

    def commands(self, there: Collection[str] = (), stay: bool = False) -> tuple[Command | Barrier | Arrived, ...]:
        """What a run does, and what of its streamed input it needs at first; ``there`` are the inputs given as arrays
        of the device, on which with ``stay`` outputs stay."""
        is_early = self.early is not None and self.early.x not in there
        run = self.early.marked(self.run) if self.early and is_early else self.run
        return ahead(self.narrowed, there, behind(self.widened, run) if stay else run)
