"""What makes a route fast is no number of code: `prefer` and cost models read policies and targets (vkconv/policies).

A walk over the code of each requirement, with what it closes over and the functions of its module that it names, finds
the numbers in it. Legal values of parameters are not walked: they are numbers of kernels.
"""

import types
from collections import defaultdict

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.requirement import Requirement

# Axes, counts of tensors, one more or less, vec4, and units: thousands, MiB.
FREE = {*range(-2, 5), 20, 1000, 1 << 20}
ALLOWED = {
    "EIGHT": "elements of an 8-wide vector",
    "block_diagonal._ROWS": "rows of the smallest tile of matrices",
    "block_diagonal._DEPTH": "elements of an 8-wide vector",
    "in_registers._BLOCK": "outputs of a workgroup of subgroup_tile",
    "space_to_depth._MOST_STRIDE": "strides whose divisors are looked for",
    "winograd._LEAST_CHANNELS": "accuracy: transforms round more than short sums may",
    "winograd._LEAST_CHANNELS_5X5_BY_4X4": "accuracy: transforms round more than short sums may",
    "coopmat_fragment._LANES_OF_RUNS": "lanes of which a kernel knows what they hold",
    "depthwise._BESIDE": "registers of the kernel for addresses and loads",
    "depthwise._MEET": "sums that lanes of the kernel add together at a time",
    "common._MOST_TAPS": "what a kernel unrolls at most",
    "blocks._MOST_PHASES": "what a kernel unrolls at most",
    "blocks._MOST_REACH": "what a kernel unrolls at most",
    "phases._MOST_PHASES": "what a launch counts at most",
    "MOST_SPAN": "what a kernel unrolls at most",
    "routes.<lambda>: 8": "outputs of an invocation of the smallest tile of transposed phases",
    "requirements.invocations: 64": "the workgroup of a tile",
    "requirements.shared_bytes: 4096": "the shared memory of a tile",
}


def functions(value):
    """The functions of a requirement, a method, or several of them."""
    value = getattr(value, "__func__", value)
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, Requirement):
        yield from functions(value.test)
    elif isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from functions(each)


def closed_over(function):
    return [cell.cell_contents for cell in function.__closure__ or ()]


def walked(value, seen):
    """Functions of vkconv that deciding comes by."""
    for function in functions(value):
        if function.__code__ in seen or not function.__module__.startswith(("vkconv", __name__)):
            continue
        seen.add(function.__code__)
        yield function
        named = (function.__globals__.get(name) for name in function.__code__.co_names)
        near = [
            each
            for one in named
            if isinstance(one, types.FunctionType | Requirement) or hasattr(one, "__wrapped__")
            for each in functions(one)
            if each.__module__ == function.__module__
        ]
        for each in (*closed_over(function), *near):
            yield from walked(each, seen)


def is_number(value):
    return type(value) in (int, float) and value not in FREE


def constants(code):
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from constants(one)
        else:
            yield one


def numbers(value):
    """The numbers that deciding comes by, each as the last part of its module, and its name, or function and number."""
    found = set()
    for function in walked(value, set()):
        module, where = function.__module__.rpartition(".")[2], function.__qualname__.split(".<locals>")[0]
        names = ((name, function.__globals__.get(name)) for name in function.__code__.co_names)
        literals = filter(is_number, (*constants(function.__code__), *closed_over(function)))
        found |= {f"{module}.{name}" for name, value in names if is_number(value)}
        found |= {f"{module}.{where}: {value}" for value in literals}
    return found


def test_what_prefers_a_route_and_what_it_costs_read_no_number_of_code():
    found = defaultdict(set)
    for op in OPS.values():
        for route in op.routes:
            for text, value in (*((need.text, need) for need in route.prefer), ("cost", route.estimated_us)):
                for number in numbers(value):
                    found[number].add(f"{op.name}/{route.name}: {text}")
    short = {name: name if name in ALLOWED else name.rpartition(".")[2] for name in found}
    new = {name: sorted(where) for name, where in found.items() if short[name] not in ALLOWED}
    assert not new, "a number that devices may differ in is a row of a policy (CONTRIBUTING.md, Add a policy)"
    assert not ALLOWED.keys() - set(short.values()), "no rule reads these any more"


THRESHOLD = 77


def _few(n):
    return n < THRESHOLD


def test_the_walk_finds_a_number_wherever_it_stands():
    def of(most):
        return Requirement.of("few", lambda call: call, lambda n: n < most)

    outer = of(76)
    device = load_device("h200")
    for need, number in (
        (Requirement.of("few", lambda call: call, lambda n: n < 75), "75"),
        (of(76), "76"),
        (Requirement.of("few", lambda call: call, lambda n: _few(n)), "THRESHOLD"),
        (Requirement("few", lambda call, device: outer.test(call, device), lambda call, device: ""), "76"),
    ):
        assert need.test(74, device) and not need.test(77, device)
        assert [name for name in numbers(need) if name.endswith(number)], number
