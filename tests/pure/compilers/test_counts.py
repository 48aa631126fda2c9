"""How often blocks run: loops that count, loops in loops, guards, branches on data; and what weighs static counts."""

import dataclasses
import math

import pytest

from vkconv.compilers.blocks import Block, Kernel, Op, read_kernel
from vkconv.compilers.control import Control
from vkconv.compilers.counts import Counts, places_of
from vkconv.compilers.integers import ANY_ALL, EXTENDED, SCALAR, count_trips
from vkconv.compilers.mix import Kind, mixes_of
from vkconv.compilers.walk import Walk
from vkconv.core import ShaderError
from vkconv.spirv import Instruction

BOOL, INT, FLOAT, VEC4, FLOAT_POINTER = 1, 2, 3, 4, 5
PUSH, BUFFER = 10, 11
N, M = 12, 13  # push constants that are read in the first block
ZERO, ONE, THREE, MINUS = 20, 21, 22, 23
TYPES: dict[int, Instruction] = {
    BOOL: (Op.TYPE_BOOL, (BOOL,)),
    INT: (Op.TYPE_INT, (INT, 32, 1)),
    FLOAT: (Op.TYPE_FLOAT, (FLOAT, 32)),
    VEC4: (Op.TYPE_VECTOR, (VEC4, FLOAT, 4)),
}
LESS, LESS_UNSIGNED, ADD, FMUL, FADD, UDIV = 177, 176, 128, 133, 129, 134
READ_PUSHES = (
    (Op.ACCESS_CHAIN, (9, 14, PUSH, ZERO)),
    (Op.LOAD, (INT, N, 14)),
    (Op.ACCESS_CHAIN, (9, 15, PUSH, ONE)),
    (Op.LOAD, (INT, M, 15)),
)
STORAGE_BUFFER = 12


def block(label: int, *body: Instruction, go: Instruction, phis=None, merge: int | None = None) -> Block:
    return Block(label, phis or {}, tuple(body), go, merge)


def jump(label: int) -> Instruction:
    return (Op.BRANCH, (label,))


def branch(condition: int, yes: int, no: int) -> Instruction:
    return (Op.BRANCH_CONDITIONAL, (condition, yes, no))


END: Instruction = (Op.RETURN, ())


def kernel_of(*blocks: Block) -> Kernel:
    first = dataclasses.replace(blocks[0], body=(*READ_PUSHES, *blocks[0].body))
    return Kernel(
        blocks=(first, *blocks[1:]),
        types=TYPES,
        constants={ZERO: (0,), ONE: (1,), THREE: (3,), MINUS: (0xFFFFFFFF,)},
        value_types={},
        variables={PUSH: (8, 9), BUFFER: (7, STORAGE_BUFFER)},
        pushes={0: 0, 1: 4},
        built_ins={},
    )


def run(kernel: Kernel, *push: int) -> tuple[list[int], Control]:
    control = Control(kernel)
    return Walk(kernel, control, "test").blocks_run([*push, 0, 0][:2], {}), control


def loop(
    head: int, body: tuple[int, int], after: int, bound: int, counter: int, entry: int, start: int = ZERO
) -> list[Block]:
    """``for (i = start; i < bound; ++i)``: its head, which comes from ``entry``, and its last block, ``body[1]``."""
    test, update = counter + 1, counter + 2
    return [
        block(
            head,
            (LESS, (BOOL, test, counter, bound)),
            phis={counter: {entry: start, body[1]: update}},
            go=branch(test, body[0], after),
            merge=after,
        ),
        block(body[1], (ADD, (INT, update, counter, ONE)), go=jump(head)),
    ]


def test_a_loop_runs_as_often_as_push_constants_say() -> None:
    head, last = loop(101, (102, 102), 103, N, 50, 100)
    kernel = kernel_of(block(100, go=jump(101)), head, last, block(103, go=END))
    for n in (0, 1, 7, 1_000_000_000):
        counts, control = run(kernel, n)
        assert counts == [1, n + 1, n, 1]
    (counted,) = control.counted.values()
    assert counted.alone and counted.trips is None


def test_loops_inside_loops_are_multiplied_without_being_walked() -> None:
    outer_head, outer_last = loop(101, (102, 104), 105, N, 50, 100)
    inner_head, inner_last = loop(102, (103, 103), 104, M, 60, 101)
    kernel = kernel_of(block(100, go=jump(101)), outer_head, inner_head, inner_last, outer_last, block(105, go=END))
    counts, _ = run(kernel, 1_000_000, 3_000)
    assert counts == [1, 1_000_001, 3_001_000_000, 3_000_000_000, 1_000_000, 1]
    assert run(kernel, 5, 0)[0] == [1, 6, 5, 0, 5, 1]


def test_an_inner_bound_that_moves_with_the_outer_counter_is_walked() -> None:
    outer_head, outer_last = loop(101, (102, 104), 105, N, 50, 100)
    inner_head, inner_last = loop(102, (103, 103), 104, 50, 60, 101)  # j < i
    kernel = kernel_of(block(100, go=jump(101)), outer_head, inner_head, inner_last, outer_last, block(105, go=END))
    counts, control = run(kernel, 6)
    assert counts == [1, 7, 15 + 6, 15, 6, 1]
    assert not control.counted[1].alone and control.counted[2].alone


def test_a_guard_on_the_counter_is_walked_and_one_on_a_push_constant_is_not() -> None:
    def guarded(by: int) -> Kernel:
        head, last = loop(101, (102, 104), 105, N, 50, 100)
        guard = block(102, (LESS, (BOOL, 70, by, THREE)), go=branch(70, 103, 104), merge=104)
        return kernel_of(block(100, go=jump(101)), head, guard, block(103, go=jump(104)), last, block(105, go=END))

    assert run(guarded(50), 10)[0][3] == 3 and not run(guarded(50), 10)[1].counted[1].alone
    assert run(guarded(M), 10, 2)[0][3] == 10 and run(guarded(M), 10, 3)[0][3] == 0
    assert run(guarded(M), 10)[1].counted[1].alone


def test_a_counter_is_known_after_its_loop() -> None:
    head, last = loop(101, (102, 102), 103, N, 50, 100)
    second_head, second_last = loop(103, (104, 104), 105, M, 60, 101, start=50)  # from where the first ended
    kernel = kernel_of(block(100, go=jump(101)), head, last, second_head, second_last, block(105, go=END))
    assert run(kernel, 4, 10)[0] == [1, 5, 4, 7, 6, 1]


def test_a_loop_that_tests_at_its_end_runs_once_at_least() -> None:
    body = block(
        101,
        (ADD, (INT, 52, 50, ONE)),
        (LESS, (BOOL, 51, 52, N)),
        phis={50: {100: ZERO, 101: 52}},
        go=branch(51, 101, 102),
        merge=102,
    )
    kernel = kernel_of(block(100, go=jump(101)), body, block(102, go=END))
    assert [run(kernel, n)[0][1] for n in (0, 1, 2, 9)] == [1, 1, 2, 9]


def test_branches_on_data_take_the_shorter_way_and_are_told() -> None:
    load = ((Op.ACCESS_CHAIN, (6, 80, BUFFER, ZERO)), (Op.LOAD, (INT, 81, 80)), (LESS, (BOOL, 82, 81, N)))
    kernel = kernel_of(
        block(100, *load, go=branch(82, 101, 102), merge=102), block(101, go=jump(102)), block(102, go=END)
    )
    control = Control(kernel)
    walk = Walk(kernel, control, "test")
    assert walk.guesses == {0} and walk.blocks_run([9, 9], {}) == [1, 0, 1]


def test_a_loop_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(block(100, go=jump(101)), block(101, go=jump(101), merge=102), block(102, go=END))
    monkeypatch.setattr("vkconv.compilers.walk._MOST_STEPS", 100)
    with pytest.raises(ShaderError, match="test: an invocation was not through after 100 blocks"):
        run(kernel)


@pytest.mark.parametrize(
    ("op", "first", "bound", "step", "trips"),
    [
        (177, 0, 7, 2, 4),
        (177, 0, 8, 2, 4),
        (177, 0xFFFFFFFE, 2, 1, 4),  # from -2
        (176, 5, 5, 1, 0),
        (179, 1, 9, 4, 3),
        (173, 7, 0, -2, 4),
        (175, 6, 0, -3, 3),
        (171, 0, 12, 3, 4),
        (170, 5, 5, 1, 1),
        (177, 0, 7, -1, 0),
    ],
)
def test_trips(op: int, first: int, bound: int, step: int, trips: int) -> None:
    assert count_trips(op, first, bound, step) == trips


# ---- what code has, and what it does


def counts_of(kernel: Kernel, *push: int) -> Counts:
    each, control = run(kernel, *push)
    constant = tuple(one for one in control.counted.values() if one.trips is not None)
    heads = {one.loop.head for one in constant}
    left = tuple(one for head, one in kernel.loops.items() if head not in heads)
    return Counts(mixes_of(kernel), tuple(map(float, each)), constant, left, 0)


def nested(inner_bound: int) -> Kernel:
    """``for (i < N) for (j < inner_bound) y = x * x``, and a sum before."""
    outer_head, outer_last = loop(101, (102, 104), 105, N, 50, 100)
    inner_head, inner_last = loop(102, (103, 103), 104, inner_bound, 60, 101)
    inner_last = dataclasses.replace(inner_last, body=((FMUL, (VEC4, 90, 91, 91)), *inner_last.body))
    before = block(100, (FADD, (FLOAT, 92, 93, 93)), go=jump(101))
    return kernel_of(before, outer_head, inner_head, inner_last, outer_last, block(105, go=END))


def test_loops_of_a_constant_count_stand_unrolled_in_code() -> None:
    counts = counts_of(nested(THREE), 10)
    assert counts.dynamic[Kind.MULTIPLY] == 10 * 3 * 4  # a vector of four
    assert counts.static()[Kind.MULTIPLY] == 3 * 4 and counts.weight(Kind.MULTIPLY) == 10
    assert (counts.loops_left, counts.static(1)[Kind.MULTIPLY]) == (1, 3 * 4)
    # A compiler that says that it has both loops has not unrolled the inner one.
    assert counts.static(2)[Kind.MULTIPLY] == 4 and counts.weight(Kind.MULTIPLY, 2) == 30


def test_loops_that_only_push_constants_bound_stand_once_in_code() -> None:
    counts = counts_of(nested(M), 10, 7)
    assert counts.static()[Kind.MULTIPLY] == 4 and counts.weight(Kind.MULTIPLY) == 70
    assert counts.loops_left == 2
    # What is not in any loop weighs less: an addition of ten instructions in all that run 10 times.
    assert counts.weight(Kind.ARITHMETIC) < 70


def test_a_kind_that_a_kernel_has_not_weighs_as_all_its_instructions() -> None:
    counts = counts_of(nested(THREE), 10)
    assert counts.weight(Kind.SPECIAL) == pytest.approx(counts.dynamic[Kind.ALL] / counts.static()[Kind.ALL])


def test_the_mix_of_a_block() -> None:
    body = (
        (Op.ACCESS_CHAIN, (6, 30, BUFFER, ZERO)),
        (Op.LOAD, (VEC4, 31, 30)),
        (Op.EXT_INST, (VEC4, 32, 1, 50, 31, 31, 31)),  # fma
        (148, (FLOAT, 33, 31, 31)),  # dot
        (Op.EXT_INST, (FLOAT, 34, 1, 27, 33)),  # exp
        (UDIV, (INT, 35, N, M)),
        (UDIV, (INT, 36, N, THREE)),
        (111, (FLOAT, 37, 35)),
        (Op.STORE, (30, 33)),
    )
    (mix,) = mixes_of(kernel_of(block(100, *body, go=END)))
    assert mix[Kind.MULTIPLY] == 4 + 4 and mix[Kind.ARITHMETIC] == 8
    assert (mix[Kind.MEMORY], mix[Kind.LOAD_BYTES], mix[Kind.STORE_BYTES]) == (2, 16, 4)
    assert (mix[Kind.SPECIAL], mix[Kind.CONVERT]) == (3, 1)
    assert mix[Kind.COMPILED] == 8 + 20 + 4 + 2 + 2 * 4


def test_places_are_all_invocations_or_spread_evenly_over_them() -> None:
    few = list(places_of((2, 3, 1), (2, 1, 1), 32))
    assert len(few) == 12 and len({(one[26], one[27]) for one in few}) == 12
    many = list(places_of((100, 50, 2), (8, 8, 1), 16))
    assert len(many) == 64
    groups = sorted({one[26][0] + 100 * (one[26][1] + 50 * one[26][2]) for one in many})
    assert len(groups) == 16 and all(n * 625 <= group < (n + 1) * 625 for n, group in enumerate(groups))
    for one in many:
        assert one[28] == tuple(a * b + c for a, b, c in zip(one[26], one[25], one[27], strict=True))
        lane = one[27][0] + 8 * one[27][1]
        assert one[29] == (lane,) and (one[40], one[41]) == ((lane // 16,), (lane % 16,))
    assert math.prod(many[0][25]) == 64 and many[0][38] == (4,)


def test_more_functions_than_one_are_refused() -> None:
    words = [0x07230203, 0x10300, 0, 1, 0]
    for op, *operands in ((54, 1, 2, 0, 3), (248, 4), (253,), (56,)) * 2:
        words += [(len(operands) + 1) << 16 | op, *operands]
    with pytest.raises(ShaderError, match="twice has 2 functions"):
        read_kernel(b"".join(word.to_bytes(4, "little") for word in words), "twice")


@pytest.mark.parametrize(
    ("op", "operands", "result"),
    [
        (130, (1, 2), 0xFFFFFFFF),
        (132, (1 << 31, 2), 0),
        (134, (7, 0), 0),
        (135, (0xFFFFFFF9, 2), 0xFFFFFFFD),  # -7 / 2 is -3
        (138, (0xFFFFFFF9, 2), 0xFFFFFFFF),  # and leaves -1
        (139, (0xFFFFFFF9, 2), 1),
        (195, (0x80000000, 31), 0xFFFFFFFF),
        (194, (0x80000000, 31), 1),
        (177, (0xFFFFFFFF, 0), True),
        (176, (0xFFFFFFFF, 0), False),
        (169, (False, 3, 5), 5),
        (168, (True,), False),
        (126, (1,), 0xFFFFFFFF),
    ],
)
def test_operations_on_words(op: int, operands: tuple[int, ...], result: int) -> None:
    assert SCALAR[op](*operands) == result


def test_functions_of_integers() -> None:
    assert EXTENDED[39](0xFFFFFFFF, 1) == 0xFFFFFFFF and EXTENDED[38](0xFFFFFFFF, 1) == 1
    assert EXTENDED[45](9, 0, 7) == 7 and EXTENDED[5](0xFFFFFFFE) == 2
    assert (EXTENDED[73](12), EXTENDED[75](12)) == (2, 3) and EXTENDED[73](0) == 0xFFFFFFFF
    assert ANY_ALL[154]((False, True)) and not ANY_ALL[155]((False, True))
