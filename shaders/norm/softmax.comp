#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "math.glsl"
#include "row_set.glsl"

// PART makes the peak and the sum of a part of a row, APPLY the results from those of all parts.

#include "row_walk.glsl"

vec4 vec4_exp_below(vec4 v) {
    return vec4(exp_below(v.x), exp_below(v.y), exp_below(v.z), exp_below(v.w));
}

// What elements are relative to: with ZERO_ROWS also where all of them are -inf, so that their exponentials are 0.
float relative_to(float peak) { return ZERO_ROWS && peak == LOWEST ? 0.0 : peak; }

void main() {
    if (!find_row()) return;
    float peak = LOWEST;
    float total = 0.0;
#ifdef APPLY
    for (uint i = lane; i < parts; i += LANES) peak = larger(peak, made[row * parts + i].x);
    peak = row_peak(peak);
    float base = relative_to(peak);
    for (uint i = lane; i < parts; i += LANES) {
        vec2 one = made[row * parts + i];
        total += one.y * exp_below(one.x - base);
    }
    total = row_sum(total);
#else
    LOAD_ROW(LOWEST)
    vec4 peaks = vec4(LOWEST);
    EACH_ITEM peaks = larger(peaks, ITEM(LOWEST));
    peak = row_peak(vec4_peak(peaks));
    // What is not there counts as exp(-inf), which is 0; where the peak is -inf itself the whole row is NaN, or 0.
    float base = relative_to(peak);
    vec4 sums = vec4(0.0);
    EACH_ITEM {
        vec4 v = ITEM(LOWEST) - base;
        vec4 e = vec4_exp_below(v);
        sums += e;
#ifdef REGISTERS
        kept[item] = LOG ? v : e;
#endif
    }
    total = row_sum(vec4_sum(sums));
#endif
#ifdef PART
    // A part that is all -inf adds nothing to a row that is not.
    if (lane == 0) made[row * parts + part] = vec2(peak, peak == LOWEST ? 0.0 : total);
#else
    float log_total = LOG ? log_f32(total) : 0.0;
    float scale = ZERO_ROWS && total == 0.0 ? 0.0 : 1.0 / total;
    EACH_ITEM {
#ifdef REGISTERS
        vec4 v = LOG ? kept[item] - log_total : kept[item] * scale;
#else
        vec4 v = load_item(item, 0.0) - base;
        v = LOG ? v - log_total : vec4_exp_below(v) * scale;
#endif
        if (VEC4) {
            uint i = element(item, 0);
            if (inside(item, i)) STORE4(y4, address(i) / 4, v);
        } else {
            [[unroll]] EACH_OF_VEC4 {
                uint i = element(item, j);
                if (inside(item, i)) STORE(y, address(i), v[j]);
            }
        }
    }
#endif
}
