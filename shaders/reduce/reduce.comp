#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// One output per invocation; of 64-bit integers, with REDUCTION_TREE, one per workgroup.

#ifdef REDUCTION_TREE
REDUCTION_SPACE(space, VALUE)
REDUCTION(over_lanes, VALUE, space, COMBINE)

void main() {
    uint index = flat_group();
    bool inside = index < outputs;
    uint base = kept_offset(inside ? index : 0u, KEPT_RANK);
    VALUE total = identity_of(FUNCTION);
    for (uint e = gl_LocalInvocationID.x; e < lines * run; e += gl_WorkGroupSize.x) {
        uint line = e / run;
        VALUE value = LOAD_X(x, base + line_offset(line) + (e - line * run) * run_stride);
        total = combine_as(FUNCTION, total, term_of(FUNCTION, value, VALUE(NO_PEAK)));
    }
    total = over_lanes(total);
    if (inside && gl_LocalInvocationID.x == 0u) STORE_Y(y, index, finished(total, VALUE(NO_PEAK)));
}

#else

// Eight sums side by side, so that they do not wait for each other.
VALUE gather(uint base, uint function, VALUE peak) {
    const uint WIDTH = 8;
    VALUE sums[WIDTH];
    [[unroll]] for (uint k = 0; k < WIDTH; k++) sums[k] = identity_of(function);
    for (uint line = 0; line < lines; line++) {
        uint at = base + line_offset(line);
        uint i = 0;
        for (; i + WIDTH <= run; i += WIDTH) {
            [[unroll]] for (uint k = 0; k < WIDTH; k++) {
                sums[k] = combine_as(function, sums[k], term_of(function, LOAD_X(x, at + (i + k) * run_stride), peak));
            }
        }
        for (; i < run; i++) {
            sums[0] = combine_as(function, sums[0], term_of(function, LOAD_X(x, at + i * run_stride), peak));
        }
    }
    [[unroll]] for (uint half_width = WIDTH / 2; half_width > 0; half_width /= 2) {
        [[unroll]] for (uint k = 0; k < half_width; k++) {
            sums[k] = combine_as(function, sums[k], sums[k + half_width]);
        }
    }
    return sums[0];
}

#ifdef VALUE_IS_FLOAT
// The sum of squares, one after another: drivers that run both sides of a branch take a step of it for every call.
float squares_again(uint base, float power) {
    float sum = 0.0;
    for (uint line = 0; line < lines; line++) {
        uint at = base + line_offset(line);
        for (uint i = 0; i < run; i++) sum += square_of(LOAD_X(x, at + i * run_stride), power);
    }
    return sum;
}
#endif

void main() {
    uint index = flat_index();
    if (index >= outputs) return;
    uint base = kept_offset(index, KEPT_RANK);
    VALUE peak = VALUE(NO_PEAK);
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == LOG_SUM_EXP) peak = finite_or_0(gather(base, MAX, 0.0));
#endif
    VALUE total = gather(base, FUNCTION, peak);
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == L2) {
        peak = power_for(total);
        if (!is_one(peak)) total = squares_again(base, peak);
    }
#endif
    STORE_Y(y, index, finished(total, peak));
}
#endif
