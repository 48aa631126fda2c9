#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef ATOMIC_FLOAT
#extension GL_EXT_shader_atomic_float : require
#endif
#include "reduce.glsl"

// An invocation combines up to ITEMS elements of an output in registers. With REDUCTION_TREE those of a workgroup meet
// in shared memory, and the first combines the output with that by one atomic operation; without, where the innermost
// dimension of x is kept, neighbours have neighbouring outputs and each does so. Operations are an addition of the
// device's own or by compare-and-swap, and maxima and minima of floats as integers of the same order. ``parts`` is how
// many workgroups, or invocations, share an output.

REDUCTION_SPACE(space, VALUE)
REDUCTION(group_total, VALUE, space, COMBINE)

uint element_offset(uint index) {
    uint line = LINE_RANK > 0 ? index / run : 0u;
    return line_offset(line) + (index - line * run) * run_stride;
}

#ifdef DTYPE_i32
bool multiplied(uint at, int v) {
    int before = y[at];
    return atomicCompSwap(y[at], before, before * v) == before;
}
#else
// Unless another invocation comes between.
bool swapped(uint at, float v) {
    uint before = y[at];
    return atomicCompSwap(y[at], before, floatBitsToUint(COMBINE(uintBitsToFloat(before), v))) == before;
}
#endif

void main() {
#ifdef REDUCTION_TREE
    uint index = flat_group();
    if (index >= parts * outputs) return;
    uint output_index = index / parts;
    uint step = gl_WorkGroupSize.x;
    uint first = index % parts * ITEMS * step + gl_LocalInvocationID.x;
#else
    uint index = flat_index();
    if (index >= parts * outputs) return;
    uint output_index = index % outputs;
    uint step = parts;
    uint first = index / outputs;
#endif
    uint base = kept_offset(output_index, KEPT_RANK);
    VALUE peak = VALUE(NO_PEAK);
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == LOG_SUM_EXP) peak = finite_or_0(peaks[output_index]);
#endif
    VALUE total = identity_of(FUNCTION);
    for (uint k = 0; k < ITEMS; k++) {
        uint i = first + k * step;
        if (i < count) total = COMBINE(total, term_of(FUNCTION, LOAD(x, base + element_offset(i)), peak));
    }
    total = group_total(total);
#ifdef REDUCTION_TREE
    if (gl_LocalInvocationID.x > 0) return;
#endif
#ifdef DTYPE_i32
    if (FUNCTION == MAX) {
        atomicMax(y[output_index], total);
    } else if (FUNCTION == MIN) {
        atomicMin(y[output_index], total);
    } else if (FUNCTION == PROD) {
        for (bool done = false; !done;) done = multiplied(output_index, total);
    } else {
        atomicAdd(y[output_index], total);
    }
#else
    if (FUNCTION == MAX) {
        atomicMax(y[output_index], ordered_max(total));
    } else if (FUNCTION == MIN) {
        atomicMin(y[output_index], ordered_min(total));
#ifdef ATOMIC_FLOAT
    } else if (FUNCTION != PROD) {
        atomicAdd(y_float[output_index], total);
#endif
    } else {
        for (bool done = false; !done;) done = swapped(output_index, total);
    }
#endif
}
