"""vkconv behind ONNX's own backend interface: what onnx's backend tests, and tools that speak it, drive.

    from vkconv.onnx_backend import VkconvBackend
    outputs = VkconvBackend.run_model(model, [x])

Needs the ``onnx`` package.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx
import onnx.checker
import onnx.helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from vkconv.core import Array, InputError, UsageError
from vkconv.graph.onnx import load_onnx_proto
from vkconv.graph.onnx.narrow import BY_NAME, ELEMENTS
from vkconv.session import Session
from vkconv.settings import Settings
from vkconv.staged import StagedSession, dispatches, open_model

# The names that onnx's tests give devices: the first one stands for whatever a backend runs on by default.
_DEVICES = ("CPU", "VULKAN")


class VkconvRep(BackendRep):
    """A model on a Vulkan device, as `VkconvBackend.prepare` makes it; ``session`` is vkconv's own handle."""

    def __init__(self, session: Session | StagedSession) -> None:
        self.session = session
        # What the graph has as bytes, since no kernel has its type.
        marks = session.metadata.items()
        self._narrow = {key[len(ELEMENTS) :]: BY_NAME[name] for key, name in marks if key.startswith(ELEMENTS)}

    def run(self, inputs: Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike], **kwargs: Any) -> tuple[Array, ...]:
        """One inference: inputs in the model's order, or by name; outputs in the model's order, and by name.

        Numbers count as arrays of rank 0. Raises InputError for inputs that do not fit, and what `Session.run` raises;
        ``timeout_s`` is the one option.
        """
        names = list(self.session.inputs)
        if not isinstance(inputs, Mapping):
            if not isinstance(inputs, Sequence) or len(inputs) != len(names):
                given = f"{len(inputs)}" if isinstance(inputs, Sequence) else f"a {type(inputs).__name__}"
                raise InputError(f"{self.session.name!r} takes a list of {len(names)} inputs ({names}), not {given}")
            inputs = dict(zip(names, inputs, strict=True))
        outputs = self.session.run({name: self._stored(name, array) for name, array in inputs.items()}, **kwargs)
        marks = self._narrow
        values = [marks[n].from_stored(outputs[n]) if n in marks else outputs[n] for n in self.session.outputs]
        made: tuple[Array, ...] = namedtupledict("Outputs", list(self.session.outputs))(*values)
        return made

    def _stored(self, name: str, array: npt.ArrayLike) -> npt.ArrayLike:
        """An input as the graph has it: of a type that no kernel has, its bytes."""
        narrow = self._narrow.get(name)
        given = np.asarray(array) if narrow else None
        return narrow.to_stored(given) if narrow and given is not None and given.dtype == narrow.numpy else array

    @property
    def dispatches(self) -> int:
        """Dispatches of the latest run, without what was prepacked when the plan was made."""
        return dispatches(self.session)

    def close(self) -> None:
        """Release the device memory."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class VkconvBackend(Backend):
    """ONNX models on Vulkan.

    ``device`` is ``CPU``, which is what onnx calls the default and stands for the device that ``auto`` selects, or
    ``VULKAN``, or ``VULKAN:i`` for device i of `vkconv devices`. Whatever vkconv cannot run raises a VkconvError.
    """

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> VkconvRep:
        """The model on a device; ``kwargs`` are those of `vkconv.load`. Raises what onnx's checker and it raise."""
        onnx.checker.check_model(model)
        return VkconvRep(open_model(load_onnx_proto(model), _selector(device), Settings.of(kwargs)))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Array, ...]:
        """Prepare a model and run it once."""
        with cls.prepare(model, device, **kwargs) as prepared:
            return prepared.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run one node; ``opset_version`` is the newest that onnx has unless given. ``inputs`` are those of the node
        that are not empty, each once. ``outputs_info`` is not needed: types of outputs follow from those of inputs."""
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        names = list(dict.fromkeys(name for name in node.input if name))
        arrays = [np.asarray(array) for array in inputs]
        if len(arrays) != len(names):
            raise InputError(f"{node.op_type} node takes {len(names)} inputs ({names}), not {len(arrays)}")
        types = [onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
        graph = onnx.helper.make_graph(
            [node],
            node.name or node.op_type,
            [
                onnx.helper.make_tensor_value_info(name, kind, array.shape)
                for name, kind, array in zip(names, types, arrays, strict=True)
            ],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        opset = [onnx.helper.make_opsetid(node.domain, version)]
        ir_version = onnx.helper.find_min_ir_version_for(opset, ignore_unknown=True)
        model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=ir_version)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=False)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `prepare` takes a device of this name; it may still not be there."""
        name, _, index = device.partition(":")
        return name in _DEVICES and (not index or (index.isdecimal() and name == "VULKAN"))


def _selector(device: str) -> str | int:
    if not VkconvBackend.supports_device(device):
        raise UsageError(f"vkconv has no device {device!r}; name CPU or VULKAN (the default one), or VULKAN:i")
    index = device.partition(":")[2]
    return int(index) if index else "auto"
