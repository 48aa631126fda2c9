"""Needs that several routes share: element types, workgroup limits, device classes."""

from vkconv.core import DType
from vkconv.device import Device
from vkconv.route import Call, Need


def _dtypes(call: Call) -> str:
    named = {**call.operands, **call.outputs}
    return ", ".join(f"{name} is {spec.dtype}" for name, spec in named.items() if spec is not None)


def elements_in(*dtypes: DType) -> Need:
    """Every operand and output has one of these element types (integers of other widths fold on the host)."""

    def test(call: Call, device: Device) -> bool:
        specs = (*call.operands.values(), *call.outputs.values())
        return all(s is None or s.dtype in dtypes for s in specs)

    return Need(f"{' or '.join(dtypes)} elements", test, lambda call, device: _dtypes(call))


F32 = elements_in(DType.F32)
F32_OR_I32 = elements_in(DType.F32, DType.I32)
WORDS = elements_in(DType.F32, DType.I32, DType.U32)


def operands_in(name: str, *dtypes: DType) -> Need:
    """The named operand has one of these element types."""

    def test(call: Call, device: Device) -> bool:
        spec = call.operands.get(name)
        return spec is None or spec.dtype in dtypes

    return Need(f"{name} of {' or '.join(dtypes)} elements", test, lambda call, device: str(call.operands.get(name)))
