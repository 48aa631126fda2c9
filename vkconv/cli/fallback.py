"""``vkconv run --fallback``: a model whose regions run on the device, or by the fallback on the host."""

import statistics
from pathlib import Path

from vkconv.cli.inputs import make_inputs
from vkconv.cli.output import show, show_json
from vkconv.cli.outputs import output_table, parse_outputs, save_outputs
from vkconv.core import UsageError


def run_delegated(
    model: Path,
    inputs: list[str] | None,
    shapes: list[str] | None,
    outputs: list[str] | None,
    device: str,
    fallback: str,
    runs: int,
    warmup: int,
    as_json: bool,
) -> None:
    """Cut a model, run it, and show where each region ran, its time, and the outputs."""
    from vkconv.backend.runtime import select_device
    from vkconv.delegate import FALLBACKS, DelegatedSession, partition

    if fallback not in FALLBACKS:
        raise UsageError(f"--fallback {fallback}: vkconv knows {', '.join(FALLBACKS)}")
    if model.suffix.lower() != ".onnx":
        raise UsageError(f"--fallback cuts ONNX models, and {model} is none")
    facts = select_device(device)[1]
    open_parts = partition(model, facts)
    arrays, texts = make_inputs(open_parts.inputs, inputs, shapes)
    parts = partition(model, facts, {name: array.shape for name, array in arrays.items()})
    targets = parse_outputs(outputs, parts.outputs)
    with DelegatedSession(parts, device, fallback=fallback) as session:
        times = []
        for _ in range(1 + warmup + runs):
            results = session.run(arrays)
            times.append(session.times_us)
    steady = [statistics.median(column) for column in zip(*times[1 + warmup :], strict=True)]
    table, stats = parts.table(fallback, steady), output_table(results)
    written, problem = save_outputs(targets, results)
    if as_json:
        show_json(
            {
                "schema": "vkconv.run.fallback/1",
                "model": str(model),
                "device": facts.name,
                "fallback": fallback,
                "inputs": texts,
                "steady_us": [sum(run) for run in times[1 + warmup :]],
                "regions": [
                    {
                        "on": "vkconv" if region.taken else fallback,
                        "nodes": list(region.nodes),
                        "steady_us": us,
                        "refused": [{"node": r.node, "op": r.op, "reason": r.reason} for r in region.refused],
                    }
                    for region, us in zip(parts.regions, steady, strict=True)
                ],
                "outputs": stats.rows,
                "written": written,
            }
        )
    else:
        head = [f"{model} on {facts.name}, fallback {fallback} on the host"]
        head += [f"input {name} = {text}" for name, text in texts.items()]
        whole_ms = sum(steady) / 1e3
        show(*head, table, f"steady {whole_ms:.4g} ms in all", stats, *(f"wrote {p}: {n}" for p, n in written.items()))
    if problem:
        raise problem
