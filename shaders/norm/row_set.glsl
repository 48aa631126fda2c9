// Rows of a tensor (vkconv/ops/norm/row_sets.py): where each begins, where its elements lie, and which of them a lane
// takes. A lane takes items of four values: neighbours if VEC4, else values LANES apart. Who shares a row: the lanes of
// a workgroup or of a subgroup (REDUCTION_SUBGROUP, REDUCTION_TREE), of a cluster of LANES in a subgroup (CLUSTERS too),
// or nobody. With PARTS a workgroup has one part of a row. With REGISTERS the items of a lane stay in registers, so that
// the row is read once.
#extension GL_EXT_control_flow_attributes : require
#include "reduction.glsl"
#ifdef CLUSTERS
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

const uint DENSE = 0, STRIDED = 1, RUNS = 2;

#define EACH_OF_VEC4 for (int j = 0; j < 4; j++)

REDUCTION_SPACE(row_space, float)
REDUCTION(group_sum, float, row_space, REDUCTION_ADD)
REDUCTION(group_peak, float, row_space, REDUCTION_MAX)

// Over the lanes of a row. A workgroup of several rows has one for each subgroup, or for each cluster.
float row_sum(float v) {
#ifdef CLUSTERS
    [[unroll]] for (uint apart = 1; apart < LANES; apart *= 2) v += subgroupShuffleXor(v, apart);
    return v;
#elif defined(REDUCTION_SUBGROUP)
    if (LANES < gl_WorkGroupSize.x) return REDUCTION_ADD_SUBGROUP(v);
#endif
    return group_sum(v);
}

float row_peak(float v) {
#ifdef CLUSTERS
    [[unroll]] for (uint apart = 1; apart < LANES; apart *= 2) v = larger(v, subgroupShuffleXor(v, apart));
    return v;
#elif defined(REDUCTION_SUBGROUP)
    if (LANES < gl_WorkGroupSize.x) return REDUCTION_MAX_SUBGROUP(v);
#endif
    return group_peak(v);
}

float vec4_sum(vec4 v) { return (v.x + v.y) + (v.z + v.w); }
float vec4_peak(vec4 v) { return larger(larger(v.x, v.y), larger(v.z, v.w)); }
