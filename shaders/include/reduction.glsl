// One value of each lane combined over the lanes of a workgroup; every lane gets the result. Three forms:
//   REDUCTION_SUBGROUP  arithmetic within subgroups, then shared memory only where the workgroup has several of them
//   REDUCTION_TREE      a tree in shared memory, for any number of lanes and for several reductions side by side
//   neither             an invocation works alone, and its value is the result
// The order of the operations is fixed, so that results repeat bit for bit. All of it is for uniform control flow: a
// lane with nothing to add brings the identity. A workspace is used again and again; the barrier that this needs is
// inside.
//
//   REDUCTION_SPACE(space, float)                                 a slot for each lane of the workgroup
//   REDUCTION(row_sum, float, space, REDUCTION_ADD)               defines float row_sum(float)
//   REDUCTION(row_peak, float, space, REDUCTION_MAX)              the same workspace; NaN wins
//   REDUCTION_STRIDED(column_sum, vec4, space4, REDUCTION_ADD)    defines vec4 column_sum(vec4, index, count, stride)
//
// Shared memory (Dispatch.shared_bytes): the size of the type times the local size, along x, for each workspace.
#ifdef REDUCTION_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#include "extremes.glsl"

const uint NAN_BITS = 0x7FC00000u;
const uint INFINITY_BITS = 0x7F800000u;
#define INFINITY_F32 uintBitsToFloat(INFINITY_BITS)

// What changes no result: VALUE's smallest and largest value for max and min, 0 for a sum, 1 for a product.
#ifdef DTYPE_i32
#define LOWEST (-2147483647 - 1)
#define HIGHEST 2147483647
#elif defined(DTYPE_i64)
#define LOWEST uvec2(0u, 0x80000000u)
#define HIGHEST uvec2(0xFFFFFFFFu, 0x7FFFFFFFu)
#else
#define LOWEST (-INFINITY_F32)
#define HIGHEST INFINITY_F32
#endif

// Of two values; NaN wins.
vec4 larger(vec4 p, vec4 q) { return vec4(larger(p.x, q.x), larger(p.y, q.y), larger(p.z, q.z), larger(p.w, q.w)); }
vec4 smaller(vec4 p, vec4 q) {
    return vec4(smaller(p.x, q.x), smaller(p.y, q.y), smaller(p.z, q.z), smaller(p.w, q.w));
}
ivec4 larger(ivec4 p, ivec4 q) { return max(p, q); }
ivec4 smaller(ivec4 p, ivec4 q) { return min(p, q); }

// Floats as unsigned integers of the same order; NaN is above all, or for a minimum below.
uint ordered(float v) {
    uint bits = floatBitsToUint(v);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}
bool has_nan_bits(float v) { return (floatBitsToUint(v) & 0x7FFFFFFFu) > INFINITY_BITS; }
uint ordered_max(float v) { return has_nan_bits(v) ? 0xFFFFFFFFu : ordered(v); }
uint ordered_min(float v) { return has_nan_bits(v) ? 0u : ordered(v); }
float unordered(uint key) { return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key); }

#ifdef REDUCTION_SUBGROUP
// NaN gets through as an integer; subgroupMax and subgroupMin of floats leave it open.
float subgroup_larger(float v) { return unordered(subgroupMax(ordered_max(v))); }
float subgroup_smaller(float v) { return unordered(subgroupMin(ordered_min(v))); }
int subgroup_larger(int v) { return subgroupMax(v); }
int subgroup_smaller(int v) { return subgroupMin(v); }

// Mesa 22.3's lavapipe does not count a last subgroup that is not full; where it is counted, this is gl_NumSubgroups.
uint subgroup_count() {
    return max(gl_NumSubgroups, (gl_WorkGroupSize.x + gl_SubgroupSize - 1) / gl_SubgroupSize);
}
#endif

// An operation: of two values, and across a subgroup.
#define REDUCTION_ADD(p, q) ((p) + (q))
#define REDUCTION_MAX(p, q) larger(p, q)
#define REDUCTION_MIN(p, q) smaller(p, q)
#define REDUCTION_MUL(p, q) ((p) * (q))
#define REDUCTION_ADD_SUBGROUP(v) subgroupAdd(v)
#define REDUCTION_MAX_SUBGROUP(v) subgroup_larger(v)
#define REDUCTION_MIN_SUBGROUP(v) subgroup_smaller(v)
#define REDUCTION_MUL_SUBGROUP(v) subgroupMul(v)

#define REDUCTION_SPACE(space, T) shared T space[gl_WorkGroupSize.x];

// Of lanes that reduce beside each other: this one is number ``index`` of ``count`` that are ``stride`` apart.
// ``count`` is the same in all lanes; those with an index beyond it have no part in any of them: they touch no slot and
// get back what they brought.
#define REDUCTION_STRIDED(name, T, space, OP)                                           \
    T name(T value, uint index, uint count, uint stride) {                              \
        uint slot = gl_LocalInvocationID.x;                                             \
        barrier();                                                                      \
        if (index < count) space[slot] = value;                                         \
        barrier();                                                                      \
        for (uint left = count; left > 1;) {                                            \
            uint kept = (left + 1) / 2;                                                 \
            if (index + kept < left) {                                                  \
                T first = space[slot];                                                  \
                T other = space[slot + kept * stride];                                  \
                space[slot] = OP(first, other);                                         \
            }                                                                           \
            left = kept;                                                                \
            barrier();                                                                  \
        }                                                                               \
        if (index < count) value = space[slot - index * stride];                        \
        return value;                                                                   \
    }

#if defined(REDUCTION_SUBGROUP)

#define REDUCTION(name, T, space, OP)                                                   \
    T name(T value) {                                                                   \
        T total = OP##_SUBGROUP(value);                                                 \
        if (subgroup_count() > 1) {                                                     \
            barrier();                                                                  \
            if (subgroupElect()) space[gl_SubgroupID] = total;                          \
            barrier();                                                                  \
            total = space[0];                                                           \
            for (uint i = 1; i < subgroup_count(); i++) total = OP(total, space[i]);    \
        }                                                                               \
        return total;                                                                   \
    }

#elif defined(REDUCTION_TREE)

#define REDUCTION(name, T, space, OP)                                                   \
    REDUCTION_STRIDED(name##_strided, T, space, OP)                                     \
    T name(T value) { return name##_strided(value, gl_LocalInvocationID.x, gl_WorkGroupSize.x, 1); }

#else

#define REDUCTION(name, T, space, OP) T name(T value) { return value; }
#undef REDUCTION_SPACE
#define REDUCTION_SPACE(space, T)

#endif
