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
#else
VALUE total_of(VALUE v, uint index, uint count, uint stride) { return v; }
#endif

VALUE part_at(uint index) {
#ifdef VALUE_IS_FLOAT
    if (KEYS) return unordered(part_keys[index]);
#endif
    return part[index];
}

void main() {
    uint element = gl_LocalInvocationID.x % ELEMENTS;
    uint lane = gl_LocalInvocationID.x / ELEMENTS;
    uint index = flat_group() * ELEMENTS + element;
    bool inside = index < outputs;
    uint at = inside ? index : 0u;
    VALUE total = identity_of(FUNCTION);
    uint p = lane;
    // Four loads are on their way at a time; the order stays.
    for (; p + 3 * LANES < parts; p += 4 * LANES) {
        VALUE v[4];
        [[unroll]] for (uint i = 0; i < 4; i++) v[i] = part_at((p + i * LANES) * outputs + at);
        [[unroll]] for (uint i = 0; i < 4; i++) total = COMBINE(total, v[i]);
    }
    for (; p < parts; p += LANES) total = COMBINE(total, part_at(p * outputs + at));
    total = total_of(total, lane, LANES, ELEMENTS);
    if (!inside || lane > 0) return;
#ifdef VALUE_IS_FLOAT
    if (parts == 0 && KEYS) {
        y_keys[index] = ordered(total);
        return;
    }
    VALUE peak = FUNCTION == LOG_SUM_EXP && !TO_PARTS ? finite_or_0(peaks[index]) : 0.0;
#else
    VALUE peak = 0;
#endif
    STORE_Y(y, index, TO_PARTS ? total : finished(total, peak));
}
