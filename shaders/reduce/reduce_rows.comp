#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// The innermost dimension of x is reduced: a workgroup takes one part of one output. ACROSS of its lanes take
// neighbouring vec4 of a line, the others further lines; LOADS vec4 loads are on their way at a time. Without WHOLE
// parts of lines begin anywhere: lanes take neighbouring elements, four loads in place of one. Which lane adds what
// depends on places in a line alone, so that equal lines come to equal bits.

REDUCTION_SPACE(space, VALUE)
#define OF_FUNCTION(p, q) COMBINE(p, q)
#ifdef REDUCTION_SUBGROUP
// Only one of them is left after specialization.
VALUE across_subgroup(VALUE v) {
    if (FUNCTION == MAX) return subgroup_larger(v);
    if (FUNCTION == MIN) return subgroup_smaller(v);
    if (FUNCTION == PROD) return subgroupMul(v);
    return subgroupAdd(v);
}
#define OF_FUNCTION_SUBGROUP(v) across_subgroup(v)
#endif
REDUCTION(row_total, VALUE, space, OF_FUNCTION)
#ifdef VALUE_IS_FLOAT
REDUCTION(row_peak, VALUE, space, REDUCTION_MAX)
#endif

// The loads from the n-th on onto those before, where there are so many; up to 8 in all.
#define IN_PAIRS(n)                                                             \
    if (LOADS >= 2 * n) {                                                       \
        [[unroll]] for (uint k = 0; k < n; k++) {                               \
            v[min(k, LOADS - 1)] = combine_as(                                  \
                function, v[min(k, LOADS - 1)], v[min(k + n, LOADS - 1)]);      \
        }                                                                       \
    }

// Of those that the lanes take in turn from ``start`` on.
VALUE4 quad_at(uint start, uint index, uint lane) {
    if (WHOLE) return LOAD_X4(x4, start / 4 + index * ACROSS + lane);
    uint at = start + 4 * index * ACROSS + lane;
    return VALUE4(LOAD_X(x, at), LOAD_X(x, at + ACROSS), LOAD_X(x, at + 2 * ACROSS), LOAD_X(x, at + 3 * ACROSS));
}

VALUE gather(uint base, Part part, uint function, VALUE peak) {
    uint lane = gl_LocalInvocationID.x % ACROSS;
    uint step = gl_WorkGroupSize.x / ACROSS;
    VALUE4 sum = VALUE4(identity_of(function));
    VALUE single = identity_of(function);
    for (uint line = part.first_line + gl_LocalInvocationID.x / ACROSS; line < part.end_line; line += step) {
        uint start = base + line_offset(line) + part.first;
        uint elements = part.end - part.first;
        uint quads = elements / (4 * ACROSS);
        if (WHOLE && lane < elements / 4 % ACROSS) quads++;
        uint i = 0;
        for (; i + LOADS <= quads; i += LOADS) {
            VALUE4 v[LOADS];
            [[unroll]] for (uint k = 0; k < LOADS; k++) v[k] = quad_at(start, i + k, lane);
            [[unroll]] for (uint k = 0; k < LOADS; k++) v[k] = term_of(function, v[k], VALUE4(peak));
            // In pairs, so that they do not wait for each other and one running sum is enough.
            IN_PAIRS(4)
            IN_PAIRS(2)
            IN_PAIRS(1)
            sum = combine_as(function, sum, v[0]);
        }
        for (; i < quads; i++) sum = combine_as(function, sum, term_of(function, quad_at(start, i, lane), VALUE4(peak)));
        if (WHOLE) continue;
        for (uint rest = 4 * quads * ACROSS + lane; rest < elements; rest += ACROSS) {
            single = combine_as(function, single, term_of(function, LOAD_X(x, start + rest), peak));
        }
    }
    VALUE pairs = combine_as(function, combine_as(function, sum.x, sum.y), combine_as(function, sum.z, sum.w));
    return combine_as(function, pairs, single);
}

#ifdef VALUE_IS_FLOAT
// The lane's sum of squares, one after another: drivers that run both sides of a branch take a step of it for every row.
float squares_again(uint base, Part part, float power) {
    float sum = 0.0;
    uint step = gl_WorkGroupSize.x / ACROSS;
    for (uint line = part.first_line + gl_LocalInvocationID.x / ACROSS; line < part.end_line; line += step) {
        uint start = base + line_offset(line);
        for (uint i = part.first + gl_LocalInvocationID.x % ACROSS; i < part.end; i += ACROSS) {
            sum += square_of(LOAD_X(x, start + i), power);
        }
    }
    return sum;
}
#endif

void main() {
    uint group = flat_group();
    uint output_index = group / parts;
    if (output_index >= outputs) return;
    uint part_index = group - output_index * parts;
    Part part = part_of(part_index);
    uint base = kept_offset(output_index, KEPT_RANK);
    VALUE peak = VALUE(NO_PEAK);
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == LOG_SUM_EXP) {
        peak = finite_or_0(GIVEN_PEAK ? peaks[output_index] : row_peak(gather(base, part, MAX, 0.0)));
    }
#endif
    VALUE total = row_total(gather(base, part, FUNCTION, peak));
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == L2) {
        peak = power_for(total);
        if (!is_one(peak)) total = row_total(squares_again(base, part, peak));
    }
#endif
    if (gl_LocalInvocationID.x != 0) return;
    STORE_Y(y, part_index * outputs + output_index, MADE(total, peak));
}
