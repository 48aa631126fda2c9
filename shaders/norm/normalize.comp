#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "row_set.glsl"
#include "scaling.glsl"

// (x - mean) / sqrt(var + eps) * scale + bias with mean and variance of the row. PART makes those of a part of a row,
// APPLY the results from those of all parts. STATISTICS also writes what the row's are. A row whose squares leave the
// range of f32 is multiplied by ``power``, of two, before all that.
const uint BY_ELEMENT = 0, BY_ROW = 1, BY_RUN = 2;

#include "row_walk.glsl"

#define SCALED(power) times(ITEM(0.0), vec4(power))

// What the mean of squares is at least where none of them lost what counts.
const float LEAST_SQUARE = 8.0779357e-28;  // 2^-90
// A variance of less than this times the mean's square, over the elements of a row, is what rounding leaves of a
// constant one: others have an element that is 2^-24 of the mean away.
const float FLAT = 8.8817842e-16;  // 2^-50

// A mean in two numbers, and the sum of squared differences to their sum. Corrected two-pass algorithm (Chan, Golub and
// LeVeque 1983): differences to the rounded mean are exact where the row is close together, so their own sum says how
// far that mean is off.
struct Moments {
    float mean;
    float drift;
    float squares;
};

#ifdef APPLY
float part_size(uint i) { return float(min(chunk, count - i * chunk)); }

// The smallest power of the parts.
float power_of_parts() {
    float most = 0.0;
    for (uint i = lane; i < parts; i += LANES) most = larger(most, inverse_of(made[4 * (row * parts + i) + 3]));
    return inverse_of(row_peak(most));
}

// Of the row times ``power``.
Moments combined(float power) {
    Moments m = Moments(0.0, 0.0, 0.0);
    uint at = row * parts;
    if (CENTRED) {
        for (uint i = lane; i < parts; i += LANES) {
            uint one = 4 * (at + i);
            float ratio = power * inverse_of(made[one + 3]);
            m.mean += made[one] * ratio * (part_size(i) / float(count));
        }
        m.mean = row_sum(m.mean);
    }
    for (uint i = lane; i < parts; i += LANES) {
        uint one = 4 * (at + i);
        float ratio = power * inverse_of(made[one + 3]);
        precise float d = (made[one] * ratio - m.mean) + made[one + 1] * ratio;
        m.drift += part_size(i) * d;
        m.squares += made[one + 2] * ratio * ratio + part_size(i) * d * d;
    }
    m.drift = row_sum(m.drift) / float(count);
    m.squares = row_sum(m.squares);
    return m;
}
#endif

#ifndef PART
uint parameter(uint i) {
    if (PARAMETERS == BY_ELEMENT) return i;
    return row % parameter_period * parameter_step + (PARAMETERS == BY_RUN ? i / parameter_run : 0u);
}
#endif

void main() {
    if (!find_row()) return;
    Moments m;
    float power = 1.0;
#ifdef APPLY
    power = power_of_parts();
    [[dont_unroll]] for (uint attempt = 0; attempt < 2; attempt++) {
        m = combined(power);
        // Parts that are in range, and their sum is not.
        if (attempt == 1 || power_for(m.squares, 0.0) == 1.0) break;
        power = power * 5.9604645e-08;  // 2^-24: 2^-120 at the least, which no driver flushes to 0
    }
#else
    float size = float(last - first);
    LOAD_ROW(0.0)
    [[dont_unroll]] for (uint attempt = 0; attempt < 2; attempt++) {
        m = Moments(0.0, 0.0, 0.0);
        if (CENTRED) {
            vec4 sums = vec4(0.0);
            EACH_ITEM sums += SCALED(power);
            m.mean = row_sum(vec4_sum(sums)) / size;
        }
        vec4 squares = vec4(0.0);
        vec4 drifts = vec4(0.0);
        EACH_ITEM {
            precise vec4 d = SCALED(power);
            if (CENTRED) d = inside_row(item, d - m.mean);
            squares += d * d;
            if (CENTRED) drifts += d;
        }
        m.squares = row_sum(vec4_sum(squares));
        if (CENTRED) m.drift = row_sum(vec4_sum(drifts)) / size;
        float square = m.squares / size;
#ifdef PART
        square += m.mean * m.mean;
#endif
        float wanted = power_for(square + eps, LEAST_SQUARE);
        if (attempt == 1 || wanted == 1.0) break;
        power = wanted;
    }
#endif
#ifdef PART
    if (lane != 0) return;
    uint at = 4 * (row * parts + part);
    made[at] = m.mean;
    made[at + 1] = m.drift;
    made[at + 2] = m.squares - size * m.drift * m.drift;
    made[at + 3] = power;
#else
    float variance = m.squares / float(count) - m.drift * m.drift;
    variance = larger(variance, 0.0);  // below it by rounding
    float least = eps * power * power;
    bool is_flat = power != 1.0 && !isnan(variance) && (variance + least) * float(count) <= FLAT * m.mean * m.mean;
    if (is_flat) variance = 0.0;
    float factor = 1.0 / sqrt(is_flat ? eps : variance + least);
#ifdef STATISTICS
    if (part == 0 && lane == 0) {
        float mean = isinf(m.mean) ? m.mean : m.mean + m.drift;  // the drift from an infinite mean is NaN
        mean *= inverse_of(power);
        float deviation = is_flat ? factor : factor * power;
        variance *= inverse_of(power);
        variance *= inverse_of(power);
        STORE(mean_made, row, RUNNING ? LOAD(old_mean, row) * momentum + mean * (1.0 - momentum) : mean);
        STORE(deviation_made, row, RUNNING ? LOAD(old_variance, row) * momentum + variance * (1.0 - momentum) : deviation);
    }
#endif
    float slope = is_flat && eps > 0.0 ? 0.0 : factor;
    float shift = 0.0;
    if (PARAMETERS == BY_ROW) {
        if (HAS_SCALE) slope *= LOAD(scale, parameter(0));
        if (HAS_BIAS) shift = LOAD(bias, parameter(0));
    }
    EACH_ITEM {
        precise vec4 d = SCALED(power);
        if (CENTRED) d = d - m.mean;
        vec4 v = (d - m.drift) * slope;
        if (VEC4) {
            uint i = element(item, 0);
            if (!inside(item, i)) continue;
            uint p = parameter(i);
            if (PARAMETERS == BY_ELEMENT) {
                if (HAS_SCALE) v *= LOAD4(scale4, p / 4);
                if (HAS_BIAS) v += LOAD4(bias4, p / 4);
            } else if (PARAMETERS == BY_RUN) {
                if (HAS_SCALE) v *= LOAD(scale, p);
                if (HAS_BIAS) v += LOAD(bias, p);
            } else {
                v += shift;
            }
            STORE4(y4, address(i) / 4, v);
        } else {
            [[unroll]] EACH_OF_VEC4 {
                uint i = element(item, j);
                if (inside(item, i)) {
                    if (PARAMETERS == BY_ROW) {
                        v[j] += shift;
                    } else {
                        uint p = parameter(i);
                        if (HAS_SCALE) v[j] *= LOAD(scale, p);
                        if (HAS_BIAS) v[j] += LOAD(bias, p);
                    }
                    STORE(y, address(i), v[j]);
                }
            }
        }
    }
#endif
}
