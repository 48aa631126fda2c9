#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require
#include "reduction.glsl"

// Where the largest or smallest of the elements along an axis is. Elements count as unsigned integers of the same
// order, so that NaN is beyond all and -0 equals 0. ACROSS lanes take neighbouring outputs, the others of a workgroup
// further elements, LOADS of them at a time; without REDUCTION_* one invocation works for each output. An axis may be
// cut into parts of ``part_n`` elements, whose best are stored with TO_PARTS, key and place, [outer][part][inner]; with
// FROM_PARTS these are the elements.

#ifdef DTYPE_i64
#include "int64.glsl"

// One invocation for each output: an element of 64 bits has no key of one word.
void main() {
    uint index = flat_index();
    if (index >= outputs) return;
    uint outer = index / inner;
    uint base = outer * n * inner + (index - outer * inner);
    VALUE best = LOAD(x, base);
    uint place = 0u;
    for (uint i = 1; i < n; i++) {
        VALUE v = LOAD(x, base + i * inner);
        bool beyond = MINIMUM ? less64(v, best) : less64(best, v);
        if (beyond || (LAST && v == best)) {
            best = v;
            place = i;
        }
    }
    if (WIDE) {
        y[2 * index] = place;
        y[2 * index + 1] = 0u;
    } else {
        y[index] = place;
    }
}

#else

#ifndef FROM_PARTS
uint key_of(VALUE v) {
#ifdef DTYPE_i32
    uint key = uint(v) ^ 0x80000000u;
    return MINIMUM ? ~key : key;
#else
    if (v == 0.0) v = 0.0;
    return MINIMUM ? ~ordered_min(v) : ordered_max(v);
#endif
}

#endif

// A key and where it was found. What no element has loses against all of them.
const uvec2 NOTHING = uvec2(0u, LAST ? 0u : 0xFFFFFFFFu);
uvec2 better(uvec2 p, uvec2 q) {
    bool first = p.x > q.x || (p.x == q.x && (LAST ? p.y > q.y : p.y < q.y));
    return first ? p : q;
}
#define BETTER(p, q) better(p, q)

#ifdef FROM_PARTS
#define ELEMENT uvec2
#define LOAD_ELEMENT(at) x[at]
#define CANDIDATE(v, i) v
#else
#define ELEMENT VALUE
#define LOAD_ELEMENT(at) LOAD(x, at)
#define CANDIDATE(v, i) uvec2(key_of(v), i)
#endif

#if defined(REDUCTION_SUBGROUP)
uvec2 best_of_subgroup(uvec2 v) {
    uint key = subgroupMax(v.x);
    bool has = v.x == key;
    return uvec2(key, LAST ? subgroupMax(has ? v.y : 0u) : subgroupMin(has ? v.y : 0xFFFFFFFFu));
}
#define BETTER_SUBGROUP(v) best_of_subgroup(v)
REDUCTION_SPACE(space, uvec2)
REDUCTION(best_of_row, uvec2, space, BETTER)
#elif defined(REDUCTION_TREE)
REDUCTION_SPACE(space, uvec2)
REDUCTION_STRIDED(best_of_slabs, uvec2, space, BETTER)
#endif

void main() {
#if defined(REDUCTION_SUBGROUP) || defined(REDUCTION_TREE)
    // Neighbouring outputs may be of two rows of the dimensions before the axis.
    uint output_index = flat_group() * ACROSS + gl_LocalInvocationID.x % ACROSS;
    uint slab = gl_LocalInvocationID.x / ACROSS;
    uint slabs = gl_WorkGroupSize.x / ACROSS;
#else
    uint output_index = flat_index();
    uint slab = 0;
    const uint slabs = 1;
#endif
    bool inside = output_index < outputs;
    uint index = inside ? output_index : 0u;
    uint plane = index / inner;
    uint outer = plane / parts;
    uint first = (plane - outer * parts) * part_n;
    uint end = min(first + part_n, n);
    uint base = outer * n * inner + (index - plane * inner);

    uvec2 best = NOTHING;
    uint i = first + slab;
    for (; i + (LOADS - 1) * slabs < end; i += LOADS * slabs) {
        ELEMENT v[LOADS];
        [[unroll]] for (uint k = 0; k < LOADS; k++) v[k] = LOAD_ELEMENT(base + (i + k * slabs) * inner);
        [[unroll]] for (uint k = 0; k < LOADS; k++) best = better(best, CANDIDATE(v[k], i + k * slabs));
    }
    for (; i < end; i += slabs) best = better(best, CANDIDATE(LOAD_ELEMENT(base + i * inner), i));
#if defined(REDUCTION_SUBGROUP)
    best = best_of_row(best);
#elif defined(REDUCTION_TREE)
    best = best_of_slabs(best, slab, slabs, ACROSS);
#endif
    if (!inside || slab > 0) return;
    if (TO_PARTS) {
        y[2 * output_index] = best.x;
        y[2 * output_index + 1] = best.y;
    } else if (WIDE) {
        y[2 * output_index] = best.y;
        y[2 * output_index + 1] = 0u;
    } else {
        y[output_index] = best.y;
    }
}
#endif
