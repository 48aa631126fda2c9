#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// Parts, [part][output], to outputs, always in the same order: LANES lanes of a workgroup share an output, each
// combines every LANES-th part, and they meet in shared memory. With no parts it is the identity, which atomics then
// combine with.

#ifdef REDUCTION_TREE
REDUCTION_SPACE(space, VALUE)
REDUCTION_STRIDED(total_of, VALUE, space, COMBINE)
REDUCTION_STRIDED(peak_of, VALUE, space, COMBINE_PEAK)
#else
VALUE peak_of(VALUE v, uint index, uint count, uint stride) { return v; }
VALUE total_of(VALUE v, uint index, uint count, uint stride) { return v; }
#endif

VALUE part_at(uint index) {
#ifdef VALUE_IS_FLOAT
    if (KEYS) return unordered(part_keys[index]);
#endif
    return part[index];
}

// What a part adds: itself, but to l2 the square of it.
VALUE part_term(uint function, VALUE v, VALUE peak) {
#ifdef VALUE_IS_FLOAT
    if (function == L2) return square_of(v, peak);
#endif
    return v;
}

// Four loads are on their way at a time; the order stays.
VALUE gather(uint lane, uint at, uint function, VALUE peak) {
    VALUE total = identity_of(function);
    uint p = lane;
    for (; p + 3 * LANES < parts; p += 4 * LANES) {
        VALUE v[4];
        [[unroll]] for (uint i = 0; i < 4; i++) v[i] = part_at((p + i * LANES) * outputs + at);
        [[unroll]] for (uint i = 0; i < 4; i++) total = combine_as(function, total, part_term(function, v[i], peak));
    }
    for (; p < parts; p += LANES) {
        total = combine_as(function, total, part_term(function, part_at(p * outputs + at), peak));
    }
    return total;
}

void main() {
    uint element = gl_LocalInvocationID.x % ELEMENTS;
    uint lane = gl_LocalInvocationID.x / ELEMENTS;
    uint index = flat_group() * ELEMENTS + element;
    bool inside = index < outputs;
    uint at = inside ? index : 0u;
    VALUE peak = VALUE(NO_PEAK);
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == L2) peak = power_of_size(peak_of(gather(lane, at, SIZE, 0.0), lane, LANES, ELEMENTS));
#endif
    VALUE total = total_of(gather(lane, at, FUNCTION, peak), lane, LANES, ELEMENTS);
    if (!inside || lane > 0) return;
#ifdef VALUE_IS_FLOAT
    if (parts == 0 && KEYS) {
        y_keys[index] = ordered(total);
        return;
    }
    if (FUNCTION == LOG_SUM_EXP && !TO_PARTS) peak = finite_or_0(peaks[index]);
#endif
    STORE_Y(y, index, TO_PARTS ? total : finished(total, peak));
}
