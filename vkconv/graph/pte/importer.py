"""From a ``.pte`` file to a `Graph`: the calls of its program and of its Vulkan delegates by the rules of their
operators, and one error for all that is missing."""

import contextlib
from collections.abc import Iterator

from vkconv.core import MAX_NODES, GraphError, ModelError, UnsupportedError, did_you_mean
from vkconv.graph.aten.view import RefusedError
from vkconv.graph.ir import Declared, Graph, TensorSpec
from vkconv.graph.problems import report
from vkconv.graph.pte.flatbuffer import AGAIN
from vkconv.graph.pte.names import RULES, rule_name
from vkconv.graph.pte.program import read
from vkconv.graph.pte.values import OPEN, Call, Chain, Delegated, Move, Tensor
from vkconv.graph.pte.view import PteView, Scope, Shared
from vkconv.graph.pte.vulkan import VULKAN

_ADVICE = (
    "Lower the model again without these, with VulkanPartitioner or with none, or save the program that it was made of "
    "(torch.export.save) and load the .pt2 file."
)
_QUANTIZED = "it computes with quantized integers, which only ExecuTorch's kernels unpack; lower the model in floats"
_CHANGES = (
    "it changes a value inside it that is kept between runs; lower the model without a partitioner, or export it with "
    "its state as inputs and outputs"
)
_SIZES = "it computes a size while the program runs; export the program with its sizes fixed"
_REASONS = {
    **dict.fromkeys(("q8ta", "qcs4w", "q4gsw", "q8csw", "quantize", "qparams", "int8pack", "quantized"), _QUANTIZED),
    **dict.fromkeys(("kv_cache", "update_cache", "index_put_"), _CHANGES),
    **dict.fromkeys(("sym_", "executorch_prim"), _SIZES),
}
STATE, INITIAL = "pte.state.", "pte.initial."
"""Of metadata: the output that a state becomes, and the number that all of it begins with, by the input that it is."""
# What writes a tensor that it is given.
_INTO = "aten::copy_"
# What rules raise where a file is not what its schema says.
_DAMAGED = (IndexError, TypeError, ValueError, KeyError, AttributeError, OverflowError, ArithmeticError)


def import_bytes(data: bytes, name: str) -> Graph:
    """See `vkconv.graph.pte.load_pte_bytes`."""
    try:
        return _Importer(read(data), len(data), name).graph()
    except UnsupportedError:
        raise
    except (GraphError, ModelError) as error:
        raise ModelError(f"{name}: {error}") from None


class _Importer:
    def __init__(self, chain: Chain, file_bytes: int, name: str) -> None:
        self._name, self._shared = name, Shared(file_bytes)
        self._problems: list[tuple[str, str, str]] = []
        self._program = Scope(self._shared, chain)
        self._calls = 0

    def graph(self) -> Graph:
        chain, builder = self._program.chain, self._shared.builder
        metadata = {"pte.source": self._name, **chain.facts}
        inputs = dict[str, TensorSpec]()
        for i, index in enumerate(chain.inputs):
            held, name = chain.values[index], f"input_{i}"
            if not isinstance(held, Tensor):  # ExecuTorch takes no other number than the one of the export
                metadata[f"pte.{name}"] = str(held)
                continue
            if held.dtype is None:
                self._problems.append(("input", name, f"it is {held.type_name}, a type that vkconv does not have"))
                continue
            inputs[name] = TensorSpec(held.dims, held.dtype)
            with self._collecting("input", name):
                self._program.write(index, name)
        for index in _states(chain):
            name = f"state_{len(self._program.states)}"
            with self._collecting("state", name):
                inputs[name], metadata[f"{INITIAL}{name}"] = _begins(self._program.tensor(index, "a state"))
                self._program.write(index, name)
                self._program.states[index] = name
                metadata[f"{STATE}{name}"] = f"{name}/next"
        self._run(self._program)
        results, names = [], []
        declared = {}
        for i, index in enumerate(chain.outputs):
            held, name = chain.values[index], f"output_{i}"
            if not isinstance(held, Tensor):
                self._problems.append(("output", name, "it is no tensor"))
                continue
            with self._collecting("output", name):
                results.append(self._program.value(index))
            names.append(name)
            declared[name] = Declared(str(held.dtype), held.dims)
        for index, name in self._program.states.items():
            results.append(self._program.value(index))
            names.append(f"{name}/next")
        if self._problems:
            raise UnsupportedError(report(self._name, "program", self._problems, _ADVICE))
        return builder.graph(inputs, results, self._name, names).replace(metadata=metadata, declared=declared)

    @contextlib.contextmanager
    def _collecting(self, kind: str, name: str) -> Iterator[None]:
        try:
            yield
        except RefusedError as refused:
            self._problems.append((kind, name, str(refused)))

    def _run(self, scope: Scope) -> None:
        for step in scope.chain.steps:
            self._calls += 1
            if self._calls > MAX_NODES:
                raise ModelError(f"has more than {MAX_NODES} calls, which vkconv takes; simplify the model")
            if isinstance(step, Call):
                self._call(scope, step)
            elif isinstance(step, Move):
                with self._collecting("move", f"value_{step.source}"):
                    scope.write(step.target, scope.value(step.source))
            else:
                self._delegate(scope, step)

    def _call(self, scope: Scope, call: Call) -> None:
        operator = rule_name(call.operator)
        view = PteView(scope, call, operator, f"{operator.rsplit('.', 2)[-2]}_{self._calls}")
        try:
            if operator == "sym_size.int":
                _size(view)
            elif _is_into(call) and call.args[:1] != call.made:
                raise RefusedError("it changes a value that is kept between runs, and makes another of it")
            elif operator in RULES:
                RULES[operator](view)
            else:
                raise RefusedError(_reason(call.operator, operator))
        except RefusedError as refused:
            self._problems.append((call.operator, view.name, str(refused)))
            self._stand_in(scope, call.made)
        except _DAMAGED as error:
            raise ModelError(
                f"a call of {call.operator} has arguments that it cannot have ({error}); the file is damaged, {AGAIN}"
            ) from None

    @staticmethod
    def _stand_in(scope: Scope, made: tuple[int, ...]) -> None:
        """So that what reads it is not refused too."""
        for index in made:
            if isinstance(scope.chain.values[index], Tensor):
                with contextlib.suppress(RefusedError):
                    scope.write(index, "refused")

    def _delegate(self, scope: Scope, step: Delegated) -> None:
        name = f"delegate_{self._calls}"
        if step.graph is None:
            reason = (
                f"vkconv reads the graphs of {VULKAN}, and portable kernels; lower the model with VulkanPartitioner"
            )
            self._problems.append((f"delegate {step.backend}", name, reason))
            self._stand_in(scope, step.args)
            return
        graph = step.graph
        if len(graph.inputs) < len(step.args) < len(graph.inputs) + len(graph.outputs):
            # Outputs that the program does not take are buffers of the delegate.
            self._problems.append((f"delegate {step.backend}", name, _CHANGES))
            self._stand_in(scope, step.args)
            return
        if len(step.args) != len(graph.inputs) + len(graph.outputs):
            raise ModelError(
                f"a delegate of {len(graph.inputs)} inputs and {len(graph.outputs)} outputs is called with "
                f"{len(step.args)} values; the file is damaged, {AGAIN}"
            )
        inner = Scope(self._shared, graph)
        given, made = step.args[: len(graph.inputs)], step.args[len(graph.inputs) :]
        for outer, index in zip(given, graph.inputs, strict=True):
            with self._collecting("input", name):
                _enter(scope, outer, inner, index, name)
        self._run(inner)
        for outer, index in zip(made, graph.outputs, strict=True):
            with self._collecting("output", name):
                _leave(scope, outer, inner, index, name)


def _states(chain: Chain) -> dict[int, None]:
    """The tensors that a call changes which were there before: those that the program keeps from run to run."""
    calls = (step for step in chain.steps if isinstance(step, Call) and _is_into(step))
    return dict.fromkeys(step.made[0] for step in calls if step.args[:1] == step.made)


def _is_into(call: Call) -> bool:
    return call.operator in (_INTO, f"{_INTO}.default")


def _begins(tensor: Tensor) -> tuple[TensorSpec, str]:
    """A state as an input, and the number that all of it begins with: 0 where the file has none, as in the memory that
    ExecuTorch's runtime gives a program."""
    if tensor.dtype is None:
        raise RefusedError(f"it has {tensor.type_name}, a type that vkconv does not have")
    numbers = set() if tensor.initial is None else set(tensor.initial.reshape(-1).tolist())
    if len(numbers) > 1:
        raise RefusedError("it begins with other numbers than one; vkconv has states that begin with one")
    number = next(iter(numbers), 0)
    return TensorSpec(tensor.dims, tensor.dtype), str(number if isinstance(number, float) else int(number))


def _size(n: PteView) -> None:
    """A size of a tensor, which is known: all are taken as they are in the file, the largest that there can be."""
    shape = n.meta(0).shape
    n.scope.sizes[n.call.made[0]] = n.int_of(shape[n.axis(n.arg(1), len(shape))])


def _enter(scope: Scope, outer: int, inner: Scope, index: int, name: str) -> None:
    """An input of a delegate, in the element type that it has there."""
    if not isinstance(inner.chain.values[index], Tensor):
        known = scope.given(outer)
        if isinstance(known, int) and inner.chain.values[index] is OPEN:
            inner.sizes[index] = known
        return
    inner.write(index, _crossed(scope, outer, inner, index, name))


def _leave(scope: Scope, outer: int, inner: Scope, index: int, name: str) -> None:
    if not isinstance(scope.chain.values[outer], Tensor):
        known = inner.given(index)
        if isinstance(known, int):
            scope.sizes[outer] = known
        return
    scope.write(outer, _crossed(inner, index, scope, outer, name))


def _crossed(source: Scope, index: int, target: Scope, at: int, name: str) -> str:
    """A value of one chain as one of another, where 64-bit integers may be 32-bit ones."""
    given, wanted = source.tensor(index, "what crosses a delegate"), target.tensor(at, "what crosses a delegate")
    if given.dims != wanted.dims:
        raise ModelError(
            f"a delegate is given {given.dims} as {wanted.dims}, another shape; the file is damaged, {AGAIN}"
        )
    value = source.value(index)
    if wanted.dtype is None:
        raise RefusedError(f"it has {wanted.type_name}, a type that vkconv does not have")
    return value if given.dtype is wanted.dtype else source.builder.emit(name, "cast", value, to=str(wanted.dtype))


def _reason(operator: str, name: str) -> str:
    for part, reason in _REASONS.items():
        if part in operator:
            return reason
    return f"vkconv has no such operator{did_you_mean(name, RULES)}"
