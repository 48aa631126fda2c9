#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "reduce.glsl"

// The innermost dimension of x is reduced, and is short: CLUSTER neighbouring lanes of a subgroup take neighbouring
// elements of an output's lines and meet by shuffles, SUBGROUP / CLUSTER outputs beside each other. All lanes take part
// in each shuffle, also those without an output.

VALUE over_cluster(uint function, VALUE v) {
    [[unroll]] for (uint i = 0; i < 7; i++) {
        if ((1u << i) < CLUSTER) v = combine_as(function, v, subgroupShuffleXor(v, 1u << i));
    }
    return v;
}

VALUE gather(uint lane, uint base, uint function, VALUE peak) {
    VALUE total = identity_of(function);
    for (uint line = 0; line < lines; line++) {
        uint at = base + line_offset(line);
        for (uint i = lane; i < run; i += CLUSTER) {
            total = combine_as(function, total, term_of(function, LOAD_X(x, at + i), peak));
        }
    }
    return total;
}

#ifdef VALUE_IS_FLOAT
float squares_again(uint lane, uint base, float power) {
    float sum = 0.0;
    for (uint line = 0; line < lines; line++) {
        uint at = base + line_offset(line);
        for (uint i = lane; i < run; i += CLUSTER) sum += square_of(LOAD_X(x, at + i), power);
    }
    return sum;
}
#endif

void main() {
    uint item = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
    uint lane = item % CLUSTER;
    uint index = flat_group() * (gl_WorkGroupSize.x / CLUSTER) + item / CLUSTER;
    bool inside = index < outputs;
    uint base = kept_offset(inside ? index : 0u, KEPT_RANK);
    VALUE peak = VALUE(NO_PEAK);
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == LOG_SUM_EXP) peak = finite_or_0(over_cluster(MAX, gather(lane, base, MAX, 0.0)));
#endif
    VALUE total = over_cluster(FUNCTION, gather(lane, base, FUNCTION, peak));
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == L2) {
        peak = power_for(total);
        float mine = is_one(peak) ? 0.0 : squares_again(lane, base, peak);
        float again = over_cluster(FUNCTION, mine);
        if (!is_one(peak)) total = again;
    }
#endif
    if (inside && lane == 0) STORE_Y(y, index, finished(total, peak));
}
