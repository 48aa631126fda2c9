#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// The innermost dimension of x is reduced: a workgroup takes one part of one output. ACROSS of its lanes take
// neighbouring vec4 of a line, the others further lines; LOADS vec4 loads are on their way at a time. What lies
// before and after a line's aligned vec4 is loaded one by one.

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

VALUE gather(uint base, Part part, uint function, VALUE peak) {
    uint lane = gl_LocalInvocationID.x % ACROSS;
    uint step = gl_WorkGroupSize.x / ACROSS;
    VALUE4 sum = VALUE4(identity_of(function));
    VALUE single = identity_of(function);
    for (uint line = part.first_line + gl_LocalInvocationID.x / ACROSS; line < part.end_line; line += step) {
        uint start = base + line_offset(line);
        uint end = start + part.end;
        start += part.first;
        uint aligned = min((start + 3) & ~3u, end);
        for (uint i = start + lane; i < aligned; i += ACROSS) {
            single = combine_as(function, single, term_of(function, LOAD_X(x, i), peak));
        }
        uint end4 = end / 4;
        uint i4 = aligned / 4 + lane;
        for (; i4 + (LOADS - 1) * ACROSS < end4; i4 += LOADS * ACROSS) {
            VALUE4 v[LOADS];
            [[unroll]] for (uint k = 0; k < LOADS; k++) v[k] = LOAD_X4(x4, i4 + k * ACROSS);
            [[unroll]] for (uint k = 0; k < LOADS; k++) v[k] = term_of(function, v[k], VALUE4(peak));
            // In pairs, so that they do not wait for each other and one running sum is enough.
            IN_PAIRS(4)
            IN_PAIRS(2)
            IN_PAIRS(1)
            sum = combine_as(function, sum, v[0]);
        }
        for (; i4 < end4; i4 += ACROSS) sum = combine_as(function, sum, term_of(function, LOAD_X4(x4, i4), VALUE4(peak)));
        for (uint i = max(aligned, end4 * 4) + lane; i < end; i += ACROSS) {
            single = combine_as(function, single, term_of(function, LOAD_X(x, i), peak));
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
