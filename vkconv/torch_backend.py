"""The backend of torch.compile: the parts of a model that vkconv takes run on a Vulkan device, the rest in torch.

    model = torch.compile(model.eval(), backend="vkconv", dynamic=False)
    with torch.inference_mode():
        y = model(x)
    print(vkconv.torch_backend.reports()[-1])

Needs torch. Tensors go through the host. What runs with gradients is left to torch.
"""

import dataclasses
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner, Partition
from torch.fx.passes.operator_support import OperatorSupportBase

from vkconv.backend.runtime import select_device
from vkconv.core import Array, UsageError, VkconvError, VkconvWarning, did_you_mean
from vkconv.graph.aten.fx import array_of, rule_name
from vkconv.graph.aten.importer import decompositions, import_part, refusals
from vkconv.graph.aten.windows import RULES as WORK
from vkconv.loading import load
from vkconv.session import Session

__all__ = ["Report", "compile_graph", "reports"]

_OPTIONS = ("device",)
_GRADIENTS = "it is to have gradients; run the model in torch.inference_mode()"
_NO_WORK = "its part has no convolution, product, pooling or normalization, for which moving its values would pay"
_reports: list["Report"] = []


@dataclasses.dataclass
class Report:
    """What became of one graph that torch compiled: operators ``taken`` in ``parts``, and those that are ``left`` to
    torch by (operator, reason). ``failed`` has parts that no device took when they first ran, and why; ``loads`` counts
    how often a part was planned: again where weights had changed."""

    taken: int = 0
    parts: int = 0
    left: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    loads: int = 0

    def __str__(self) -> str:
        count = self.left.total()
        lines = [f"{self.taken} operators in {self.parts} parts by vkconv, {count} left to torch, {self.loads} loads"]
        lines += [f"  {n} {op}: {reason}" for (op, reason), n in self.left.most_common()]
        lines += [f"  {name} runs in torch: {reason}" for name, reason in self.failed.items()]
        return "\n".join(lines)


def reports() -> Sequence[Report]:
    """One report for each graph that was compiled in this process, the latest last."""
    return tuple(_reports)


def compile_graph(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A callable for a graph of TorchDynamo; what ``torch.compile(backend="vkconv")`` calls. ``options`` may have
    ``device``, as `vkconv.load` takes it. Raises UsageError for others, and DeviceError where there is no device."""
    for name in options or {}:
        if name not in _OPTIONS:
            raise UsageError(f"the backend has no option {name!r}{did_you_mean(name, _OPTIONS)}; it has device")
    device = select_device((options or {}).get("device", "auto"))[0]  # raises where there is none
    fixed = frozenset(i for i, value in enumerate(inputs) if _is_fixed(value))

    def infer(inner: torch.fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        return _partitioned(inner, fixed if len(given) == len(inputs) else frozenset(), device)

    def left(inner: torch.fx.GraphModule, _given: Sequence[Any]) -> Callable[..., Any]:
        calls = [node for node in inner.graph.nodes if node.op == "call_function"]
        _reports.append(Report(left=Counter((rule_name(node), _GRADIENTS) for node in calls)))
        made: Callable[..., Any] = inner
        return made

    compiler = aot_autograd(
        fw_compiler=left,
        bw_compiler=lambda inner, _given: inner,
        inference_compiler=infer,
        decompositions=decompositions(core_aten_decompositions()),
    )
    compiled: Callable[..., Any] = compiler(module, inputs)
    return compiled


def _is_fixed(value: Any) -> bool:
    """Whether an input is a parameter or a buffer, whose value is taken for constant until it changes."""
    return isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None


class _Taken(OperatorSupportBase):  # type: ignore[misc]   # torch is no dependency: all of it is Any
    def __init__(self, refused: Mapping[torch.fx.Node, str]) -> None:
        self._refused = refused

    def is_node_supported(self, _submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return node.op == "call_function" and node not in self._refused


def _partitioned(module: torch.fx.GraphModule, fixed: frozenset[int], device: str | int) -> Callable[..., Any]:
    """The module with its parts that vkconv takes in place of their operators."""
    refused, report = refusals(module.graph), Report()
    for node in module.graph.nodes:  # an output of what is left is left with it
        if node.target is operator.getitem and node.args[0] in refused:
            refused[node] = refused[node.args[0]]
    partitioner = CapabilityBasedPartitioner(module, _Taken(refused), allows_single_node_partition=True)
    found = [p for p in partitioner.propose_partitions() if _works(p)]
    taken = {node for part in found for node in part.nodes}
    for node in module.graph.nodes:
        if node.op == "call_function" and node not in taken and node.target is not operator.getitem:
            report.left[rule_name(node), refused.get(node, _NO_WORK)] += 1
    report.taken, report.parts = sum(node.target is not operator.getitem for node in taken), len(found)
    _reports.append(report)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    constant = {node.name for i, node in enumerate(placeholders) if i in fixed}
    fused = partitioner.fuse_partitions(found)
    for node in fused.graph.nodes:
        if node.op == "call_module":
            part = fused.get_submodule(str(node.target))
            assert isinstance(part, torch.fx.GraphModule)
            fixed_places = [i for i, given in enumerate(node.args) if getattr(given, "name", "") in constant]
            fused.set_submodule(
                str(node.target), _Part(part, frozenset(fixed_places), device, report, str(node.target))
            )
    fused.recompile()
    made: Callable[..., Any] = fused
    return made


def _works(part: Partition) -> bool:
    return any(rule_name(node) in WORK for node in part.nodes)


class _Part(torch.nn.Module):  # type: ignore[misc]
    """A part of a graph as a session, which is made when it first runs; torch runs it where that fails, with a
    warning."""

    def __init__(
        self, inner: torch.fx.GraphModule, fixed: frozenset[int], device: str | int, report: Report, name: str
    ) -> None:
        super().__init__()
        self._inner, self._fixed, self._device, self._report, self._name = inner, fixed, device, report, name
        self._inputs = [node for node in inner.graph.nodes if node.op == "placeholder"]
        given = inner.graph.output_node().args[0]
        self._single = not isinstance(given, tuple | list)
        self._results: list[torch.Tensor] = [node.meta["val"] for node in ([given] if self._single else given)]
        self._session: Session | None = None
        self._weights: tuple[tuple[int, int], ...] = ()

    def forward(self, *given: torch.Tensor) -> Any:
        if self._name in self._report.failed:
            return self._inner(*given)
        weights = tuple((given[i].data_ptr(), _version(given[i])) for i in sorted(self._fixed))
        try:
            if self._session is None or weights != self._weights:
                self._load(given)
                self._weights = weights
            assert self._session is not None
            arrays = {n.name: array_of(given[i]) for i, n in enumerate(self._inputs) if i not in self._fixed}
            made = list(self._session.run(arrays).values())
        except VkconvError as error:
            self._report.failed[self._name] = str(error)
            warnings.warn(f"{self._name} runs in torch: {error}", VkconvWarning, stacklevel=2)
            return self._inner(*given)
        results = [_tensor(array, like, given) for array, like in zip(made, self._results, strict=True)]
        return results[0] if self._single else tuple(results)

    def _load(self, given: Sequence[torch.Tensor]) -> None:
        constants = {self._inputs[i].name: array_of(given[i]) for i in self._fixed}
        graph = import_part(self._inner.graph.nodes, constants, self._name)
        if self._session is not None:
            self._session.close()
            self._session = None
        session = load(graph, self._device)
        assert isinstance(session, Session)  # every size is known
        self._session = session
        self._report.loads += 1


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to in place; inference tensors do not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _tensor(array: Array, like: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """An output as torch would have made it: type, strides and device."""
    own = np.array(array)
    made = torch.from_numpy(own.view(np.uint16)).view(torch.bfloat16) if like.dtype is torch.bfloat16 else None
    made = torch.from_numpy(own) if made is None else made
    if made.stride() != like.stride():
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).copy_(made)
    device = next((tensor.device for tensor in given), made.device)
    return made.to(device)
