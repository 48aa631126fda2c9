"""The routes that softmax and the normalizations share: who reads a row, how often, and where its values meet."""

from collections.abc import Callable

from vkconv import kernel as declared
from vkconv.call import Call
from vkconv.device import Device, target_of
from vkconv.kernel import Shader
from vkconv.ops.core.requirements import (
    ARITHMETIC,
    FLOATS,
    LONG_ROW,
    ON_GPU,
    SHUFFLE,
    UNROLLS,
    invocations,
    lane_by_lane,
    loops_end,
    unrolls,
)
from vkconv.ops.norm.row_programs import (
    APPLY,
    CLUSTERS,
    LEAST_LANES,
    MOST_ITEMS,
    PARTS,
    REGISTERS,
    SUBGROUP,
    TREE,
    Defines,
    RowKernel,
    RowPrograms,
    filling_rows,
    filling_workgroups,
    is_few_or_long,
    is_near,
    parts_by_rule,
)
from vkconv.ops.norm.row_sets import RowSet
from vkconv.policy import Policy
from vkconv.requirement import Requirement
from vkconv.route import Route

_LEAST_CLUSTERED = Policy("norm.clusters", int)


def row_routes(
    shader: declared.Kernel, kernel: Callable[[Call], RowKernel], outputs: tuple[Defines, ...] = ((),)
) -> tuple[Route, ...]:
    """The routes of an op by its ``kernel``; ``outputs`` are the defines that its calls may have."""
    programs = RowPrograms(shader, kernel)

    def variants(*defines: Defines) -> tuple[Shader, ...]:
        return tuple(Shader(shader, defines=(*d, *more)) for d in defines for more in outputs)

    def rows(call: Call) -> RowSet:
        return kernel(call).rows

    def count(call: Call) -> int:
        return rows(call).count

    def shown(call: Call, device: Device) -> str:
        return f"{target_of(device).device_class}, {rows(call)}"

    long_rows = Requirement(
        "rows as long as lanes share on such devices",
        lambda call, device: count(call) >= LONG_ROW.of(device),
        lambda call, device: f"{count(call)} elements, at least {LONG_ROW.of(device)}",
    )
    near = Requirement(
        "elements of a row in a cache line with others, or fewer rows than fill the device",
        lambda call, device: is_near(rows(call), device) or rows(call).rows < filling_rows(device),
        lambda call, device: f"{rows(call).run_step} apart, {rows(call).rows} rows, {filling_rows(device)} fill it",
    )
    fits = Requirement(
        "a row that fits in the registers of a workgroup",
        lambda call, device: bool(programs.register_lanes(call, device)),
        lambda call, device: f"{count(call)} elements",
    )
    pays = Requirement(
        "a GPU; or a CPU driver that unrolls loops, and a row that its subgroups hold in few registers, in a call "
        "that is worth compiling for where it takes many of each lane",
        programs.holding_pays,
        shown,
    )
    lane_pays = Requirement(
        "few vec4 of a row, or a call that is worth compiling for",
        programs.lane_pays,
        shown,
    )
    lane_keeps = Requirement(
        "a row that one lane holds in registers, as far as the GPU's compiler is known",
        programs.lane_keeps,
        lambda call, device: f"{rows(call).items(1)} x 4 values spill there",
    )
    few_long_rows = Requirement(
        "fewer rows than fill the device, and parts of each as many and as long as pay",
        lambda call, device: parts_by_rule(rows(call), device) > 1,
        lambda call, device: (
            f"{rows(call).rows} rows of {rows(call).count}, {filling_workgroups(device)} workgroups fill it"
        ),
    )
    shares_rows = Requirement(
        f"{UNROLLS.text}, or any with fewer rows than two subgroups have lanes",
        lambda call, device: unrolls(device) or (lane_by_lane(device) and rows(call).rows < 2 * device.subgroup_size),
        shown,
    )
    few_or_long = Requirement(
        "rows as long as are worth reading again by subgroups, or few",
        lambda call, device: is_few_or_long(rows(call), device),
        lambda call, device: str(rows(call)),
    )
    most = 4 * MOST_ITEMS
    holds_alone = Requirement.of(f"rows of at most {most} elements", count, lambda n: 0 < n <= most)
    short_or_far = Requirement(
        "rows shorter than lanes share, or elements of a row in cache lines of their own and many rows",
        lambda call, device: not (long_rows.test(call, device) and near.test(call, device)),
        lambda call, device: f"{rows(call)}, {max(1, rows(call).run_step)} apart",
    )
    held_by_cluster = Requirement(
        "a row of which each lane of a part of a subgroup holds few vec4",
        lambda call, device: all(programs.cluster_params(call, device).values()),
        lambda call, device: f"{count(call)} elements, subgroups of {device.subgroup_size}",
    )
    clustered = Requirement(
        "rows shorter than a workgroup shares, and as long as some lanes of a subgroup do on this device",
        lambda call, device: 0 < _LEAST_CLUSTERED.of(device) <= count(call) < LONG_ROW.of(device),
        lambda call, device: (
            f"{rows(call)}, shared from {_LEAST_CLUSTERED.of(device) or 'no number'} on, up to {LONG_ROW.of(device)}"
        ),
    )
    bindings = Requirement(
        "a binding for the parts beside those of the call",
        lambda call, device: programs.buffers(call) < device.limit("maxPerStageDescriptorStorageBuffers"),
        lambda call, device: (
            f"{programs.buffers(call)} buffers, it allows {device.limit('maxPerStageDescriptorStorageBuffers')}"
        ),
    )
    groups = (invocations(LEAST_LANES),)
    return (
        Route(
            "split_rows",
            programs.split,
            (*variants((SUBGROUP, PARTS, APPLY), (TREE, PARTS, APPLY)), *programs.part_shaders),
            "few long rows would leave most of the device idle: a workgroup for each part of a row, then one for each "
            "part again that combines what all of them made, in fixed order",
            must=(FLOATS, *groups, bindings, loops_end(programs.split, programs.split_params)),
            prefer=(ON_GPU, few_long_rows),
            params=programs.split_params,
        ),
        Route(
            "clusters",
            programs.clusters,
            variants((SUBGROUP, REGISTERS, CLUSTERS)),
            "neighbouring lanes of a subgroup share a short row, which they read side by side, and meet by shuffles: "
            "one lane for each row reads as far apart as rows are long",
            must=(FLOATS, *groups, SHUFFLE, ARITHMETIC, held_by_cluster),
            prefer=(ON_GPU, near, clustered),
            params=programs.cluster_params,
            note=programs.note,
        ),
        Route(
            "one_lane",
            programs.one_lane,
            variants((REGISTERS,)),
            "an invocation holds a short row, so that it is read once and lanes need not meet; neighbouring rows lie "
            "side by side where elements of a row lie far apart",
            must=(FLOATS, holds_alone),
            prefer=(short_or_far, lane_pays, lane_keeps),
            params=programs.serial_params,
            note=programs.note,
        ),
        Route(
            "one_pass",
            programs.one_pass,
            variants((SUBGROUP, REGISTERS), (TREE, REGISTERS)),
            "the row stays in registers, so that it is read once: those of a subgroup, whose lanes meet without shared "
            "memory, where it fits there, else of a workgroup",
            must=(FLOATS, *groups, fits),
            prefer=(long_rows, near, pays),
            source="OneFlow, How to implement an efficient softmax CUDA kernel: a warp for each row of up to 1024",
            params=programs.one_pass_params,
            note=programs.note,
        ),
        Route(
            "subgroup",
            programs.by_subgroups,
            variants((SUBGROUP,)),
            "a subgroup for each row and no shared memory: as many lanes for few rows, right for any length",
            must=(FLOATS, ARITHMETIC, loops_end(programs.by_subgroups, programs.subgroup_params)),
            prefer=(shares_rows, few_or_long, near),
            params=programs.subgroup_params,
        ),
        Route(
            "workgroup",
            programs.by_workgroups,
            variants((SUBGROUP,), (TREE,)),
            "a workgroup for each row, which it reads again for each step: rows too long for registers",
            must=(FLOATS, *groups, loops_end(programs.by_workgroups, programs.workgroup_params)),
            prefer=(ON_GPU, long_rows, near),
            params=programs.workgroup_params,
        ),
        Route(
            "serial",
            programs.serial,
            variants(()),
            "an invocation for each row: neighbouring rows side by side where elements of a row lie far apart, no "
            "shared memory and no barriers, right anywhere, best on a CPU driver",
            must=(FLOATS, loops_end(programs.serial, programs.serial_params)),
            params=programs.serial_params,
        ),
    )
