"""Writes ExecuTorch programs of networks by ExecuTorch's own exporter, with what its runtime makes of them, and
compares vkconv's reading of them with that.

    python tools/pte_models.py make FOLDER [NAME...]       # needs executorch==1.5.1 and torchvision, not vkconv
    python tools/pte_models.py compare FOLDER [-o TABLE]   # needs vkconv; TABLE: bench/results/pte/lavapipe.csv

Each network is lowered by VulkanPartitioner (NAME.pte) and by none (NAME.portable.pte). The runtime of ExecuTorch's
wheel has no Vulkan backend: the outputs to compare with (NAME.npz) are those of its portable kernels for the latter.
Weights and inputs are random, of fixed seeds, statistics of batch normalizations those of such inputs; a network whose
outputs do not depend on its inputs is an error. Networks named f16 are lowered with ``force_fp16``; their weights are
rounded to f16 before, so that the portable program has those that vkconv reads. The table has how far vkconv is from
the runtime, and the runtime from the float64 reference of the same graph, both of the largest number of an output.
"""

import argparse
import contextlib
import csv
import sys
from pathlib import Path

import numpy as np

FIELDS = ("network", "lowering", "nodes", "inputs", "worst", "runtime_from_f64", "verdict")
MOST = 1e-5
"""Of the largest number of an output, how far one may be off."""


def networks():
    """By name, a module and its inputs, as functions: torch is not needed to compare."""
    import pte_networks

    return pte_networks.NETWORKS


def make(folder, names):
    import torch
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    folder.mkdir(parents=True, exist_ok=True)
    for name, build in networks().items():
        if names and name not in names:
            continue
        torch.manual_seed(20)
        module, inputs = build()
        norms = [norm for norm in module.modules() if hasattr(norm, "running_var")]
        with torch.no_grad():
            for norm in norms:  # as of a network that was trained: few units on the edge, which enlarge what is rounded
                norm.momentum = 1.0
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.uniform_(0.0, 1.0)
            module.train()(*(_many(x) for x in inputs))
            for norm in norms:  # nor a channel of hardly any variance
                norm.running_var.clamp_(min=float(norm.running_var.mean()) / 10)
            module = module.eval()
            others = [x.flip(-1) * 1.5 if x.is_floating_point() else x.flip(-1) for x in inputs]
            once, again = _outputs(module(*inputs)), _outputs(module(*others))
        for i, (a, b) in enumerate(zip(once, again, strict=True)):
            if a.is_floating_point() and (a - b).abs().max() < 100 * MOST * a.abs().max():
                raise SystemExit(f"{name}: output {i} does not depend on the inputs")
        forced = name.endswith("_f16")
        if forced:
            for parameter in [*module.parameters(), *module.buffers()]:
                parameter.data = parameter.data.to(torch.float16).to(torch.float32)
        program = torch.export.export(module, inputs)
        lowered = {"": [VulkanPartitioner({"force_fp16": True} if forced else {})], ".portable": []}
        for suffix, partitioner in lowered.items():
            made = to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch()
            (folder / f"{name}{suffix}.pte").write_bytes(made.buffer)
        method = Runtime.get().load_program(folder / f"{name}.portable.pte").load_method("forward")
        outputs = method.execute(inputs)
        arrays = {f"input_{i}": x.numpy() for i, x in enumerate(inputs)}
        arrays |= {f"output_{i}": y.numpy() for i, y in enumerate(outputs)}
        np.savez(folder / f"{name}.npz", **arrays)
        print(name, [f"{k} {v.shape}" for k, v in arrays.items()], flush=True)


def _many(x):
    """As many inputs of the kind as give statistics that are far from 0."""
    import torch

    return torch.cat([torch.randn_like(x) for _ in range(16)]) if x.is_floating_point() and x.dim() == 4 else x


def _outputs(made):
    return made if isinstance(made, tuple) else (made,)


def compare(folder, table):
    import vkconv
    from vkconv.check.reference import reference_outputs
    from vkconv.core import VkconvError

    rows = []
    for path in sorted(folder.glob("*.npz")):
        known = dict(np.load(path))
        for lowering, suffix in (("vulkan", ""), ("portable", ".portable")):
            row = dict.fromkeys(FIELDS, "") | {"network": path.stem, "lowering": lowering}
            given = {k: v for k, v in known.items() if k.startswith("input")}
            row["inputs"] = " ".join("x".join(map(str, v.shape)) for v in given.values())
            try:
                with contextlib.closing(vkconv.load(folder / f"{path.stem}{suffix}.pte")) as session:
                    made, exact = session.run(given), reference_outputs(session.graph, given)
                    row["nodes"] = len(session.graph.nodes)
                worst = max(_distance(made[k], known[k]) for k in made)
                row["runtime_from_f64"] = f"{max(_distance(exact[k], known[k]) for k in made):.1e}"
                row |= {"worst": f"{worst:.1e}", "verdict": "equal" if worst <= MOST else "DIFFERS"}
            except VkconvError as error:
                row["verdict"] = "REFUSED"
                print(error)
            rows.append(row)
            print(*row.values(), flush=True)
    if table is not None:
        table.parent.mkdir(parents=True, exist_ok=True)
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    wrong = sum(row["verdict"] != "equal" for row in rows)
    print(f"{len(rows) - wrong} of {len(rows)} files agree with ExecuTorch's runtime to {MOST} of the largest output")
    return int(wrong > 0 or not rows)


def _distance(made, known):
    """The largest difference, of the largest number; infinite where shapes or places of what is no number differ."""
    if made.shape != known.shape or made.dtype != known.dtype:
        return np.inf
    if made.dtype.kind != "f":
        return 0.0 if (made == known).all() else np.inf
    finite = np.isfinite(known)
    if (np.isfinite(made) != finite).any() or (made[~finite] != known[~finite]).any():
        return np.inf
    largest = np.abs(known[finite]).max(initial=0)
    return float(np.abs(made[finite].astype(np.float64) - known[finite]).max(initial=0) / max(largest, 1e-30))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("make", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.do == "make":
        return make(arguments.folder, arguments.names)
    return compare(arguments.folder, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
