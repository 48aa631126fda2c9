// What the kernels of reduce share: the functions, the push block of vkconv/shaders/reduce.py, and where elements
// lie. x is walked as lines: the innermost dimension that is reduced is a line's run, the others count lines.
#extension GL_EXT_control_flow_attributes : require
#include "reduction.glsl"
#include "math.glsl"
#include "scaling.glsl"

const uint SUM = 0, MEAN = 1, MAX = 2, MIN = 3, PROD = 4, SUM_SQUARE = 5, L1 = 6, L2 = 7, LOG_SUM = 8, LOG_SUM_EXP = 9;
const uint SIZE = 10;  // the largest |x|

#ifdef VALUE_IS_FLOAT
vec4 exp_f32(vec4 v) { return vec4(exp_f32(v.x), exp_f32(v.y), exp_f32(v.z), exp_f32(v.w)); }
vec4 log_f32(vec4 v) { return vec4(log_f32(v.x), log_f32(v.y), log_f32(v.z), log_f32(v.w)); }
// An infinite peak would give inf - inf; without it the sum is inf, 0 or NaN by itself.
float finite_or_0(float v) { return isinf(v) ? 0.0 : v; }
vec4 finite_or_0(vec4 v) { return vec4(finite_or_0(v.x), finite_or_0(v.y), finite_or_0(v.z), finite_or_0(v.w)); }
// Of 2^32 squares each may have lost 2^-126 where the sum is less than LEAST_SQUARES.
const float LEAST_SQUARES = 8.4703295e-22;  // 2^-70
float power_for(float v) { return power_for(v, LEAST_SQUARES); }
vec4 power_for(vec4 v) { return vec4(power_for(v.x), power_for(v.y), power_for(v.z), power_for(v.w)); }
float square_of(float v, float power) { return times(v, power) * times(v, power); }
vec4 square_of(vec4 v, vec4 power) { return times(v, power) * times(v, power); }
bool is_one(float power) { return power == 1.0; }
bool is_one(vec4 power) { return power == vec4(1.0); }
vec4 inverse_of(vec4 v) { return vec4(inverse_of(v.x), inverse_of(v.y), inverse_of(v.z), inverse_of(v.w)); }
#endif

#ifdef DTYPE_i64
#include "int64.glsl"

const float NO_PEAK = 0.0;

uvec2 identity_of(uint function) {
    return function == MAX ? LOWEST : function == MIN ? HIGHEST : uvec2(function == PROD ? 1u : 0u, 0u);
}

uvec2 combine_as(uint function, uvec2 p, uvec2 q) {
    if (function == MAX) return less64(p, q) ? q : p;
    if (function == MIN) return less64(q, p) ? q : p;
    return function == PROD ? mul64(p, q) : add64(p, q);
}

uvec2 term_of(uint function, uvec2 v, uvec2 peak) {
    return function == SUM_SQUARE ? mul64(v, v) : function == L1 ? abs64(v) : v;
}

uvec2 finished(uvec2 total, uvec2 peak) {
    if (FUNCTION != MEAN) return total;
    uvec2 rest;
    uvec2 size = divide64(abs64(total), uvec2(max(count, 1u), 0u), rest);
    return negative64(total) ? negate64(size) : size;
}

#else

// A peak that changes nothing.
const float NO_PEAK = FUNCTION == L2 ? 1.0 : 0.0;

VALUE identity_of(uint function) {
    return function == MAX ? LOWEST : function == MIN ? HIGHEST : function == PROD ? VALUE(1) : VALUE(0);
}

#define REDUCE_FUNCTIONS(T)                                                  \
    T combine_as(uint function, T p, T q) {                                  \
        if (function == MAX || function == SIZE) return larger(p, q);        \
        if (function == MIN) return smaller(p, q);                           \
        if (function == PROD) return p * q;                                  \
        return p + q;                                                        \
    }                                                                        \
    /* What one element adds to ``function``; peak is the maximum, or of  */ \
    /* l2 the power of two that its elements are multiplied by before. */    \
    T term_of(uint function, T v, T peak) {                                  \
        if (function == SUM_SQUARE || function == L2) return v * v;          \
        if (function == L1 || function == SIZE) return abs(v);               \
        return function == LOG_SUM_EXP ? EXP(v - peak) : v;                  \
    }                                                                        \
    T finished(T total, T peak) {                                            \
        if (FUNCTION == MEAN) return total / VALUE(max(count, LEAST_COUNT)); \
        if (FUNCTION == L2) return SQRT(total) * INVERSE(peak);              \
        if (FUNCTION == LOG_SUM) return LOG(total);                          \
        return FUNCTION == LOG_SUM_EXP ? LOG(total) + peak : total;          \
    }
#ifdef DTYPE_i32
#define EXP(v) v
#define LOG(v) v
#define SQRT(v) v
#define INVERSE(v) v
#define LEAST_COUNT 1u
#else
#define EXP(v) exp_f32(v)
#define LOG(v) log_f32(v)
#define SQRT(v) sqrt(v)
#define INVERSE(v) inverse_of(v)
#define LEAST_COUNT 0u
#endif
REDUCE_FUNCTIONS(VALUE)
REDUCE_FUNCTIONS(VALUE4)
#endif

// What kernels that have TO_PARTS write: l2 of a part as it is, since its sum of squares has a scale of its own.
#define MADE(total, peak) (TO_PARTS && FUNCTION != L2 ? total : finished(total, peak))

// What terms are combined with: the operation of the function, as one of those of reduction.glsl.
#define COMBINE(p, q) combine_as(FUNCTION, p, q)
#define COMBINE_PEAK(p, q) larger(p, q)

// The first element of what is reduced into an output, counted over the first ``rank`` dimensions that are kept.
uint kept_offset(uint index, uint rank) {
    uint at = 0;
    for (uint d = rank; d > 0; d--) {
        uint q = d > 1 ? index / kept_n[d - 1] : 0u;
        at += (index - q * kept_n[d - 1]) * kept_stride[d - 1];
        index = q;
    }
    return at;
}

uint line_offset(uint line) {
    uint at = 0;
    for (uint d = LINE_RANK; d > 0; d--) {
        uint q = d > 1 ? line / line_n[d - 1] : 0u;
        at += (line - q * line_n[d - 1]) * line_stride[d - 1];
        line = q;
    }
    return at;
}

// The lines of a part and, of each of them, which elements.
struct Part {
    uint first_line, end_line;
    uint first, end;
};

Part part_of(uint index) {
    uint line = index / line_splits;
    uint first = (index - line * line_splits) * part_run;
    return Part(line * part_lines, min((line + 1) * part_lines, lines), min(first, run), min(first + part_run, run));
}
