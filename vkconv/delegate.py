"""Delegation: the regions of an ONNX model that vkconv takes on a device, and the rest, with a reason for every node.

    parts = partition("model.onnx", load_device("lavapipe"))
    print(parts.table())
    with DelegatedSession(parts, "auto", fallback="onnxruntime") as session:
        outputs = session.run({"x": array})

Nothing runs anywhere but on the Vulkan device unless a fallback is named. Needs the ``onnx`` package, and for the
fallback ``onnxruntime``.
"""

import dataclasses
import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vkconv.core import Array, InputError, Shape, UnsupportedError, UsageError, VkconvError, given_array
from vkconv.device import Device
from vkconv.graph.ir import Graph, TensorSpec
from vkconv.onnx_export import to_onnx
from vkconv.plan.planner import Options, plan
from vkconv.running import Closing
from vkconv.table import Column, Table

if TYPE_CHECKING:
    import onnx

    from vkconv.session import Session
    from vkconv.staged import StagedSession

FALLBACKS = ("onnxruntime",)
_HOW = "pip install 'vkconv[fallback]'"
_NODES_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A node that vkconv does not take: its name, the ONNX op, and why."""

    node: str
    op: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Region:
    """Nodes that run together: on vkconv where ``taken``, else as ``refused`` says. ``inputs`` and ``outputs`` are the
    values that other regions, or the model's user, hand in and get."""

    taken: bool
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    refused: tuple[Refused, ...]
    model: "onnx.ModelProto" = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Partition:
    """A model in regions, in an order in which they can run."""

    name: str
    device: Device
    regions: tuple[Region, ...]
    inputs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array] = dataclasses.field(repr=False)

    @property
    def refused(self) -> tuple[Refused, ...]:
        """Every node that vkconv does not take."""
        return tuple(refused for region in self.regions for refused in region.refused)

    def table(self, fallback: str = "", times_us: Sequence[float] = ()) -> Table:
        """A row per region: where it runs, its nodes, why not on vkconv; with the time that each took."""
        rows = []
        for i, region in enumerate(self.regions):
            on = "vkconv" if region.taken else f"FALLBACK: {fallback} on the host" if fallback else "nothing"
            reasons = dict.fromkeys(f"{r.op}: {r.reason}" for r in region.refused)
            time_ms = [times_us[i] / 1e3] if times_us else []
            rows.append((i, on, len(region.nodes), *time_ms, _shortened(region.nodes), "; ".join(reasons)))
        taken = sum(len(region.nodes) for region in self.regions if region.taken)
        whole = sum(len(region.nodes) for region in self.regions)
        names = [Column("region"), Column("runs on"), Column("nodes")]
        names += [Column("time", unit="ms")] if times_us else []
        names += [Column("which"), Column("why not on vkconv")]
        return Table(f"{self.name} on {self.device.name}: vkconv takes {taken} of {whole} nodes", names, rows)


def partition(
    model: "str | Path | bytes | Graph | onnx.ModelProto", device: Device, shapes: Mapping[str, Shape] | None = None
) -> Partition:
    """Cut a model in regions that vkconv takes on a device and the rest, as few as can be: an ONNX file, its bytes, a
    model, or a graph that can be written as one.

    A node is refused where vkconv has no equivalent for it, where no tool can tell the type of what it reads from a
    refused one, and, where the shapes of all inputs are known (``shapes`` binds those that the model leaves open),
    where no route of it can run on the device. Raises ModelError for what is no ONNX model, and UnsupportedError for
    inputs and constants of types that vkconv does not have.
    """
    if importlib.util.find_spec("onnx") is None:
        raise UsageError("cutting a model needs the onnx package, which is not installed; pip install 'vkconv[onnx]'")
    from onnx.external_data_helper import load_external_data_for_model

    from vkconv.graph.onnx import GIVEN
    from vkconv.graph.onnx.cut import cut, is_known, unknown_types, with_shapes, without_constant_nodes
    from vkconv.graph.onnx.importer import in_order, in_rules, read_expanded, refused_nodes
    from vkconv.graph.onnx.proto import infer_infos, parsed

    if isinstance(model, Graph):
        model = to_onnx(model)
    if isinstance(model, bytes):
        model = parsed(model, Path(GIVEN))
    path = Path(model) if isinstance(model, str | Path) else Path(GIVEN)
    if isinstance(model, str | Path):
        whole = read_expanded(path)
        load_external_data_for_model(whole, str(path.parent))
    else:
        whole = in_rules(model)
    whole = with_shapes(without_constant_nodes(whole), shapes or {})
    reasons = dict(refused_nodes(whole, path))
    nodes, infos = in_order(whole.graph), infer_infos(whole)
    # Where inference does not get through, what the model says of its outputs has to do.
    infos |= {output.name: output for output in whole.graph.output if not is_known(infos.get(output.name))}
    unknown = unknown_types(nodes, reasons, infos)
    reasons |= {i: f"it reads {value!r}, whose type onnx cannot tell" for i, value in unknown.items()}
    # What the device refuses may cut a region in two: until every one can be planned.
    while True:
        pieces = cut(whole, nodes, reasons, infos)
        more = _refused_by_device([(piece.nodes, piece.model) for piece in pieces if piece.taken], whole, device, infos)
        if not more:
            break
        reasons |= more
    names = [node.name or f"{node.op_type}_{i}" for i, node in enumerate(nodes)]
    regions = tuple(
        Region(
            piece.taken,
            tuple(names[i] for i in piece.nodes),
            piece.inputs,
            piece.outputs,
            tuple(Refused(names[i], nodes[i].op_type, reasons[i]) for i in piece.nodes if i in reasons),
            piece.model,
        )
        for piece in pieces
    )
    outputs = tuple(output.name for output in whole.graph.output)
    return Partition(whole.graph.name or path.stem, device, regions, _inputs(whole), outputs, _known(whole, outputs))


def _inputs(whole: "onnx.ModelProto") -> dict[str, TensorSpec]:
    """The inputs of a model as vkconv sees them."""
    import onnx

    from vkconv.graph.onnx import load_onnx_proto

    only = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import)
    initializers = {tensor.name for tensor in whole.graph.initializer}
    only.graph.input.extend(info for info in whole.graph.input if info.name not in initializers)
    only.graph.output.extend(only.graph.input)
    return dict(load_onnx_proto(only).inputs)


def _known(whole: "onnx.ModelProto", outputs: Sequence[str]) -> dict[str, Array]:
    """Outputs of a model that are constants of it."""
    import onnx.numpy_helper

    return {t.name: onnx.numpy_helper.to_array(t) for t in whole.graph.initializer if t.name in outputs}


def _refused_by_device(
    pieces: Sequence[tuple[tuple[int, ...], "onnx.ModelProto"]],
    whole: "onnx.ModelProto",
    device: Device,
    infos: Mapping[str, Any],
) -> dict[int, str]:
    """Nodes of regions that cannot be planned for a device, which cannot be planned alone either; by place.

    Raises what planning raises where every node alone can be.
    """
    from vkconv.graph.onnx.cut import cut

    found: dict[int, str] = {}
    for places, model in pieces:
        error = _why_not_planned(model, device)
        if error is None:
            continue
        alone: dict[int, str] = {}
        for i, node in zip(places, model.graph.node, strict=True):
            single = type(whole)()
            single.CopyFrom(model)
            del single.graph.node[:], single.graph.output[:]
            single.graph.node.append(node)
            single.graph.output.extend(infos[name] for name in node.output if name in infos)
            why = _why_not_planned(cut(single, [node], (), infos)[0].model, device)
            if why is not None:
                alone[i] = str(why)
        if not alone:
            raise error
        found |= alone
    return found


def _why_not_planned(model: "onnx.ModelProto", device: Device) -> VkconvError | None:
    """The error of planning a model for a device; none where it can be, or where its shapes are open."""
    from vkconv.graph.onnx import load_onnx_proto
    from vkconv.ops import OPS
    from vkconv.plan.bound import value_inputs
    from vkconv.plan.stages import cut_stages, is_staged

    try:
        graph = load_onnx_proto(model)
        if graph.is_static and not value_inputs(graph, OPS) and not is_staged(cut_stages(graph, OPS)):
            plan(graph, device, Options(measured={}))
    except VkconvError as error:
        return error
    return None


class DelegatedSession(Closing):
    """A model whose regions run where a partition says: on the Vulkan device, or by the fallback on the host.

    ``times_us`` has what each region of the latest run took. Use it as a context manager, or call `close` when done.
    """

    def __init__(self, parts: Partition, device: str | int = "auto", *, fallback: str = "") -> None:
        """Raises UnsupportedError where nodes are refused and no fallback is named, UsageError for one that is not
        known or not installed."""
        _check_fallback(parts, fallback)
        self.name = parts.name
        self.parts = parts
        self.fallback = fallback
        self.times_us: tuple[float, ...] = ()
        self._runners: list[Session | StagedSession | _OnnxRuntime] = []
        try:
            for region in parts.regions:
                self._runners.append(_vkconv(region, device) if region.taken else _OnnxRuntime(region))
        except BaseException:
            self.close()
            raise

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """What a run takes, by name."""
        return MappingProxyType(self.parts.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what a run gives."""
        return self.parts.outputs

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """One inference: every input by name in, every output by name out. Raises what `Session.run` raises, and
        InputError for an input that is missing or unknown."""
        self._check_open()
        if not isinstance(inputs, Mapping) or set(inputs) != set(self.parts.inputs):
            names = map(str, inputs) if isinstance(inputs, Mapping) else [f"a {type(inputs).__name__} for a dict"]
            wanted, given = (", ".join(every) or "none" for every in (self.parts.inputs, names))
            raise InputError(f"{self.name!r} takes the inputs {wanted}, and was given {given}")
        values: dict[str, Array] = {
            name: given_array(array, f"input {name!r} of {self.parts.name!r}") for name, array in inputs.items()
        }
        values |= self.parts.constants
        times = []
        for region, runner in zip(self.parts.regions, self._runners, strict=True):
            started = time.perf_counter_ns()
            values |= runner.run({name: values[name] for name in region.inputs})
            times.append((time.perf_counter_ns() - started) / 1e3)
        self.times_us = tuple(times)
        return {name: values[name] for name in self.parts.outputs}

    def table(self) -> Table:
        """Where each region runs, why, and what it took in the latest run."""
        return self.parts.table(self.fallback, self.times_us)

    def close(self) -> None:
        """Release the device memory."""
        self._closed = True
        for runner in self._runners:
            runner.close()
        self._runners = []


def _check_fallback(parts: Partition, fallback: str) -> None:
    if fallback and fallback not in FALLBACKS:
        raise UsageError(f"there is no fallback {fallback!r}; vkconv knows {', '.join(FALLBACKS)}")
    if parts.refused and not fallback:
        lines = [f"  {refused.op} ({refused.node}): {refused.reason}" for refused in parts.refused]
        raise UnsupportedError(
            "\n".join(
                [
                    f"{parts.name}: {len(lines)} nodes cannot run on vkconv:",
                    *lines,
                    f"--fallback {FALLBACKS[0]} runs them ({_HOW})",
                ]
            )
        )
    if fallback and importlib.util.find_spec(fallback) is None:
        raise UsageError(f"the fallback {fallback} is not installed; run: {_HOW}")


def _vkconv(region: Region, device: str | int) -> "Session | StagedSession":
    from vkconv.graph.onnx import load_onnx_proto
    from vkconv.staged import open_model

    return open_model(load_onnx_proto(region.model), device)


class _OnnxRuntime:
    """A region on ONNX Runtime's CPU provider."""

    def __init__(self, region: Region) -> None:
        import onnxruntime

        self._outputs = list(region.outputs)
        try:
            self._session: Any = onnxruntime.InferenceSession(
                region.model.SerializeToString(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common base
            raise UnsupportedError(f"onnxruntime does not take {_shortened(region.nodes)} either: {error}") from None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            arrays = self._session.run(self._outputs, dict(inputs))
        except Exception as error:
            raise InputError(f"onnxruntime: {error}") from None
        return dict(zip(self._outputs, map(np.asarray, arrays), strict=True))

    def close(self) -> None:
        self._session = None


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _NODES_SHOWN
    return ", ".join(names[:_NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")
