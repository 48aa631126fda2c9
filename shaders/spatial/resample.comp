#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "cubic.glsl"

const uint NEAREST = 0, LINEAR = 1, CUBIC = 2;  // MODES in vkconv/ops/spatial/resize.py

// One axis of three: x is outer x n_in x inner. Output index o looks at (step o + offset) / unit.

int floor_div(int value, int by) {
    return value >= 0 ? value / by : -((by - 1 - value) / by);
}

float weight(float d) {
    d = abs(d);
    if (MODE == LINEAR) return d < 1.0 ? 1.0 - d : 0.0;
    return cubic(d, a);
}

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint line = i / inner;
    uint outer = line / uint(n_out);
    int place = step * int(line - outer * uint(n_out)) + offset;
    int at = floor_div(place, unit);
    int rest = place - at * unit;
    uint from = outer * uint(n_in) * inner + i - line * inner;
    if (EXTRAPOLATE && (at < 0 || at > n_in - 1 || (at == n_in - 1 && rest > 0))) {
        STORE_Y(y, i, beyond);
        return;
    }
    if (MODE == NEAREST) {
        STORE_Y(y, i, LOAD_X(x, from + uint(clamp(at, 0, n_in - 1)) * inner));
        return;
    }
    float fraction = float(rest) / float(unit);
    float sum = 0.0;
    float weights = 0.0;
    for (int k = first; k < first + taps; k++) {
        if (EXCLUDE_OUTSIDE && (at + k < 0 || at + k >= n_in)) continue;
        float w = weight((float(k) - fraction) * squeeze);
        // A weight of 0 takes nothing, also not the NaN of 0 times infinity.
        if (w != 0.0) sum += w * LOAD_X(x, from + uint(clamp(at + k, 0, n_in - 1)) * inner);
        weights += w;
    }
    STORE_Y(y, i, NORMALIZE ? sum / weights : sum);
}
