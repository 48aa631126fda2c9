#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "reduce.glsl"

// The innermost dimension of x is kept: neighbouring lanes take neighbouring columns, by vec4 with VEC4, and each of
// ACROSS lanes SPAN of them that lie ACROSS apart. The lanes of a workgroup are so many across and the rest slabs,
// RUN_SLABS of them along a line's run and the others along lines; slabs meet in shared memory. LOADS rows are on their
// way at a time.
#ifdef VEC4
#define TERM VALUE4
#define LOAD_TERM LOAD_X4
#define STORE_TERM STORE_Y4
const uint WIDTH = 4;
#else
#define TERM VALUE
#define LOAD_TERM LOAD_X
#define STORE_TERM STORE_Y
const uint WIDTH = 1;
#endif

#ifdef REDUCTION_TREE
REDUCTION_SPACE(space, TERM)
REDUCTION_STRIDED(slab_total, TERM, space, COMBINE)
#ifdef VALUE_IS_FLOAT
REDUCTION_STRIDED(slab_peak, TERM, space, COMBINE_PEAK)
// Whether a lane of the workgroup has it.
bool anywhere(bool here) {
    barrier();
    if (gl_LocalInvocationID.x == 0u) space[0] = TERM(0.0);
    barrier();
    if (here) space[0] = TERM(1.0);
    barrier();
    return space[0] != TERM(0.0);
}
#endif
#else
bool anywhere(bool here) { return here; }
TERM slab_total(TERM v, uint index, uint count, uint stride) { return v; }
TERM slab_peak(TERM v, uint index, uint count, uint stride) { return v; }
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
        [[unroll]] for (uint k = 0; k < SPAN; k++) total[k] = TERM(identity_of(function));                  \
        for (uint line = part.first_line + line_slab; line < part.end_line; line += line_slabs) {           \
            uint at = (base + line_offset(line)) / WIDTH;                                                   \
            uint i = part.first + run_slab;                                                                 \
            uint row = at + i * stride;                                                                     \
            for (; i + (LOADS - 1) * RUN_SLABS < part.end; i += LOADS * RUN_SLABS, row += LOADS * step) {   \
                TERM v[LOADS * SPAN];                                                                       \
                [[unroll]] for (uint k = 0; k < LOADS * SPAN; k++) {                                        \
                    v[k] = LOAD_TERM(x, row + k / SPAN * step + cols[k % SPAN]);                            \
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
                    TERM v = LOAD_TERM(x, row + cols[k]);                                                   \
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

    TERM peak[SPAN];
    [[unroll]] for (uint j = 0; j < SPAN; j++) peak[j] = TERM(NO_PEAK);
    TERM total[SPAN];
#ifdef VALUE_IS_FLOAT
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
    [[unroll]] for (uint j = 0; j < SPAN; j++) total[j] = slab_total(total[j], slab, slabs, ACROSS);
#ifdef VALUE_IS_FLOAT
    if (FUNCTION == L2) {
        bool is_out = false;
        [[unroll]] for (uint j = 0; j < SPAN; j++) {
            peak[j] = power_for(total[j]);
            is_out = is_out || !is_one(peak[j]);
        }
        if (anywhere(is_out)) {
            // Row by row: drivers that run both sides of a branch take a step of it for every call.
            [[unroll]] for (uint j = 0; j < SPAN; j++) total[j] = TERM(0.0);
            for (uint line = part.first_line + line_slab; line < part.end_line; line += line_slabs) {
                uint row = (base + line_offset(line)) / WIDTH + (part.first + run_slab) * stride;
                for (uint i = part.first + run_slab; i < part.end; i += RUN_SLABS, row += step) {
                    [[unroll]] for (uint j = 0; j < SPAN; j++) {
                        total[j] += square_of(LOAD_TERM(x, row + cols[j]), peak[j]);
                    }
                }
            }
            [[unroll]] for (uint j = 0; j < SPAN; j++) total[j] = slab_total(total[j], slab, slabs, ACROSS);
        }
    }
#endif
    [[unroll]] for (uint j = 0; j < SPAN; j++) {
        if (slab == 0 && column + j * ACROSS < columns) {
            uint at = (part_index * outputs) / WIDTH + plane * columns + column + j * ACROSS;
            STORE_TERM(y, at, MADE(total[j], peak[j]));
        }
    }
}
