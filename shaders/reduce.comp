#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "math.glsl"

layout(constant_id = 3) const uint FUNCTION = 0;  // rows of FUNCTIONS in vkconv/ops/reduce.py
const uint SUM = 0, MEAN = 1, MAX = 2, MIN = 3, PROD = 4, SUM_SQUARE = 5, L1 = 6, L2 = 7, LOG_SUM = 8, LOG_SUM_EXP = 9;
layout(constant_id = 4) const uint KEPT_RANK = 1;
layout(constant_id = 5) const uint ROW_RANK = 1;

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint rows;
    uint count;  // elements reduced into one output
    uint kept_n[4];
    uint kept_stride[4];
    uint row_n[4];
    uint row_stride[4];
};

#ifdef DTYPE_f32
bool is_nan(float v) { return isnan(v); }
#define LOWEST uintBitsToFloat(0xFF800000u)
#define HIGHEST uintBitsToFloat(0x7F800000u)
#else
bool is_nan(int v) { return false; }
#define LOWEST (-2147483647 - 1)
#define HIGHEST 2147483647
#endif

ELEM combine_as(uint function, ELEM p, ELEM q) {
    if (function == MAX) return is_nan(p) || p > q ? p : q;
    if (function == MIN) return is_nan(p) || p < q ? p : q;
    if (function == PROD) return p * q;
    return p + q;
}

ELEM identity_of(uint function) {
    return function == MAX ? LOWEST : function == MIN ? HIGHEST : function == PROD ? ELEM(1) : ELEM(0);
}

// What one element adds; peak is the row's maximum for LOG_SUM_EXP.
ELEM term(ELEM v, ELEM peak) {
    if (FUNCTION == SUM_SQUARE || FUNCTION == L2) return v * v;
    if (FUNCTION == L1) return abs(v);
#ifdef DTYPE_f32
    if (FUNCTION == LOG_SUM_EXP) return exp_f32(v - peak);
#endif
    return v;
}

uint offset(uint index) {
    uint at = 0;
    for (uint d = ROW_RANK; d > 0; d--) {
        uint q = d > 1 ? index / row_n[d - 1] : 0u;
        at += (index - q * row_n[d - 1]) * row_stride[d - 1];
        index = q;
    }
    return at;
}

// The elements of this lane in order, eight sums side by side, so that the adds do not wait for each other.
ELEM gather_row(uint base, uint function, bool plain, ELEM peak) {
    const uint WIDTH = 8;
    ELEM part[WIDTH];
    for (uint k = 0; k < WIDTH; k++) part[k] = identity_of(function);
    uint lanes = lane_count();
    uint i = lane_index();
    for (; i + (WIDTH - 1) * lanes < count; i += WIDTH * lanes) {
        for (uint k = 0; k < WIDTH; k++) {
            ELEM v = x[base + offset(i + k * lanes)];
            part[k] = combine_as(function, part[k], plain ? v : term(v, peak));
        }
    }
    for (; i < count; i += lanes) {
        ELEM v = x[base + offset(i)];
        part[0] = combine_as(function, part[0], plain ? v : term(v, peak));
    }
    for (uint half_width = WIDTH / 2; half_width > 0; half_width /= 2) {
        for (uint k = 0; k < half_width; k++) part[k] = combine_as(function, part[k], part[k + half_width]);
    }
    return part[0];
}

void main() {
    uint row = row_index();
    if (row >= rows) return;
    uint base = 0;
    uint index = row;
    for (uint d = KEPT_RANK; d > 0; d--) {
        uint q = d > 1 ? index / kept_n[d - 1] : 0u;
        base += (index - q * kept_n[d - 1]) * kept_stride[d - 1];
        index = q;
    }
    ELEM peak = ELEM(0);
#ifdef DTYPE_f32
    if (FUNCTION == LOG_SUM_EXP) {
        peak = gather_row(base, MAX, true, peak);
#define COMBINE(p, q) combine_as(MAX, p, q)
        ROW_REDUCE(peak)
#undef COMBINE
        // An infinite peak would give inf - inf; without it the sum is inf, 0 or NaN by itself.
        if (isinf(peak)) peak = 0.0;
    }
#endif
    ELEM total = gather_row(base, FUNCTION, false, peak);
#define COMBINE(p, q) combine_as(FUNCTION, p, q)
    ROW_REDUCE(total)
#undef COMBINE
    if (lane_index() != 0) return;
    if (FUNCTION == MEAN) total = total / ELEM(count);
#ifdef DTYPE_f32
    if (FUNCTION == L2) total = sqrt(total);
    if (FUNCTION == LOG_SUM) total = log_f32(total);
    if (FUNCTION == LOG_SUM_EXP) total = log_f32(total) + peak;
#endif
    y[row] = total;
}
