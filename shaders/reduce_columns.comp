#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// The innermost dimension of x is kept: neighbouring lanes take neighbouring columns, with VEC4 by fours, and each of
// ACROSS lanes SPAN of them that lie ACROSS apart. The lanes of a workgroup are so many across and the rest slabs,
// RUN_SLABS of them along a line's run and the others along lines; slabs meet in shared memory. LOADS rows are on their
// way at a time.
layout(constant_id = 8) const uint ACROSS = 64;
layout(constant_id = 9) const uint LOADS = 8;
layout(constant_id = 10) const uint SPAN = 1;
layout(constant_id = 11) const uint RUN_SLABS = 1;
#ifdef VEC4
#define VALUE ELEM4
const uint WIDTH = 4;
#else
#define VALUE ELEM
const uint WIDTH = 1;
#endif

layout(set = 0, binding = 0) readonly restrict buffer X { VALUE x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Peak { VALUE peaks[]; };
layout(set = 0, binding = 2) writeonly restrict buffer Y { VALUE y[]; };

#ifdef REDUCTION_TREE
REDUCTION_SPACE(space, VALUE)
REDUCTION_STRIDED(slab_total, VALUE, space, COMBINE)
#ifdef DTYPE_f32
REDUCTION_STRIDED(slab_peak, VALUE, space, COMBINE_PEAK)
#endif
#else
VALUE slab_total(VALUE v, uint index, uint count, uint stride) { return v; }
VALUE slab_peak(VALUE v, uint index, uint count, uint stride) { return v; }
#endif

// What SPAN columns from ``column`` on have in this lane's rows, into ``total``; rows are combined in pairs, so that
// they do not wait for each other. No function, since arrays that one returns leave the registers.
#define IN_PAIRS(n, function)                                                                               \
    if (LOADS >= 2 * n) {                                                                                   \
        [[unroll]] for (uint k = 0; k < n * SPAN; k++) {                                                    \
            v[min(k, LOADS * SPAN - 1)] = combine_as(                                                       \
                function, v[min(k, LOADS * SPAN - 1)], v[min(k + n * SPAN, LOADS * SPAN - 1)]);             \
        }                                                                                                   \
    }
#define GATHER(total, function, peak)                                                                       \
    {                                                                                                       \
        [[unroll]] for (uint k = 0; k < SPAN; k++) total[k] = VALUE(identity_of(function));                 \
        for (uint line = part.first_line + line_slab; line < part.end_line; line += line_slabs) {           \
            uint at = (base + line_offset(line)) / WIDTH;                                                   \
            uint i = part.first + run_slab;                                                                 \
            uint row = at + i * stride;                                                                     \
            for (; i + (LOADS - 1) * RUN_SLABS < part.end; i += LOADS * RUN_SLABS, row += LOADS * step) {   \
                VALUE v[LOADS * SPAN];                                                                      \
                [[unroll]] for (uint k = 0; k < LOADS * SPAN; k++) {                                        \
                    v[k] = x[row + k / SPAN * step + cols[k % SPAN]];                                       \
                }                                                                                           \
                [[unroll]] for (uint k = 0; k < LOADS * SPAN; k++) {                                        \
                    v[k] = term_of(function, v[k], peak[k % SPAN]);                                         \
                }                                                                                           \
                IN_PAIRS(4, function)                                                                       \
                IN_PAIRS(2, function)                                                                       \
                IN_PAIRS(1, function)                                                                       \
                [[unroll]] for (uint k = 0; k < SPAN; k++) total[k] = combine_as(function, total[k], v[k]); \
            }                                                                                               \
            for (; i < part.end; i += RUN_SLABS, row += step) {                                             \
                [[unroll]] for (uint k = 0; k < SPAN; k++) {                                                \
                    VALUE v = x[row + cols[k]];                                                             \
                    total[k] = combine_as(function, total[k], term_of(function, v, peak[k]));               \
                }                                                                                           \
            }                                                                                               \
        }                                                                                                   \
    }

void main() {
    uint width = kept_n[KEPT_RANK - 1];
    uint columns = width / WIDTH;
    uint blocks = (columns + ACROSS * SPAN - 1) / (ACROSS * SPAN);
    uint planes = outputs / width;
    uint index = flat_group();
    if (index >= parts * planes * blocks) return;
    uint column = index % blocks * ACROSS * SPAN + gl_LocalInvocationID.x % ACROSS;
    index /= blocks;
    uint plane = index % planes;
    uint part_index = index / planes;
    Part part = part_of(part_index);
    uint base = kept_offset(plane, KEPT_RANK - 1);
    uint stride = run_stride / WIDTH;
    // Columns past the last repeat it.
    uint cols[SPAN];
    [[unroll]] for (uint j = 0; j < SPAN; j++) cols[j] = min(column + j * ACROSS, columns - 1);

    uint slab = gl_LocalInvocationID.x / ACROSS;
    uint slabs = gl_WorkGroupSize.x / ACROSS;
    uint line_slabs = slabs / RUN_SLABS;
    uint run_slab = slab % RUN_SLABS;
    uint line_slab = slab / RUN_SLABS;
    uint step = RUN_SLABS * stride;

    VALUE peak[SPAN];
    [[unroll]] for (uint j = 0; j < SPAN; j++) peak[j] = VALUE(0);
    VALUE total[SPAN];
#ifdef DTYPE_f32
    if (FUNCTION == LOG_SUM_EXP) {
        if (GIVEN_PEAK) {
            [[unroll]] for (uint j = 0; j < SPAN; j++) peak[j] = peaks[plane * columns + cols[j]];
        } else {
            GATHER(total, MAX, peak)
            [[unroll]] for (uint j = 0; j < SPAN; j++) peak[j] = slab_peak(total[j], slab, slabs, ACROSS);
        }
        [[unroll]] for (uint j = 0; j < SPAN; j++) peak[j] = finite_or_0(peak[j]);
    }
#endif
    GATHER(total, FUNCTION, peak)
    [[unroll]] for (uint j = 0; j < SPAN; j++) {
        VALUE sum = slab_total(total[j], slab, slabs, ACROSS);
        if (slab == 0 && column + j * ACROSS < columns) {
            y[(part_index * outputs) / WIDTH + plane * columns + column + j * ACROSS] =
                TO_PARTS ? sum : finished(sum, peak[j]);
        }
    }
}
