"""A node that is wrong, as a folder that repeats it: the node as a model, its inputs, what they must give, the
command."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vkconv.call import Call
from vkconv.check.calls import expect
from vkconv.core import Array, atomic_write
from vkconv.graph.vkc import save_vkc
from vkconv.plan.single import call_graph, held_constant
from vkconv.route import Params

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
MODEL = "node.vkc"
COMMAND = "command.txt"


def dump_node(
    folder: Path,
    name: str,
    call: Call,
    arrays: Mapping[str, Array],
    *,
    route: str,
    params: Params,
    constant: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
) -> tuple[Path, str]:
    """Write one call as a model of one node, its inputs and expected outputs as .npy files, and the command that checks
    it; ``constant`` operands stay in the model, ``more`` is added to the command.

    Returns the new folder, ``folder`` and the node's name made safe, and the command. Raises OSError.
    """
    target = folder / (_UNSAFE.sub("_", name).strip("._") or "node")
    held = held_constant(arrays, constant)
    target.mkdir(parents=True, exist_ok=True)
    save_vkc(call_graph(call, held), target / MODEL)
    words = ["vkconv", "check", str(target / MODEL), "--no-passes"]
    for operand, array in arrays.items():
        if operand not in held:
            _save(target / f"{operand}.npy", array)
            words += ["--input", f"{operand}=@{target / f'{operand}.npy'}"]
    for output, wanted in zip(call.outputs, expect(call, arrays).outputs, strict=True):
        _save(target / f"expected_{output}.npy", np.asarray(wanted).astype(call.outputs[output].dtype.numpy))
    words += ["--route", f"node:call={route}"]
    if params:
        words += ["--param", f"node:call={','.join(f'{key}:{value}' for key, value in params.items())}"]
    command = shlex.join([*words, *more])
    with atomic_write(target / COMMAND) as file:
        file.write(f"{command}\n".encode())
    return target, command


def _save(path: Path, array: Array) -> None:
    with np.errstate(all="ignore"), atomic_write(path) as file:
        np.save(file, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
