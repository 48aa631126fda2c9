#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "cubic.glsl"

const uint NEAREST = 0, LINEAR = 1, CUBIC = 2;  // MODES in vkconv/ops/spatial/grid_sample.py
const uint ZEROS = 0, BORDER = 1, REFLECTION = 2;  // PADDINGS there

// Mirrored at the edges, which are the middles of the outer pixels or their outer sides, until it is between them.
float reflect_into(float v, int extent) {
    float low = ALIGN_CORNERS ? 0.0 : -0.5;
    float range = float(ALIGN_CORNERS ? extent - 1 : extent);
    if (range <= 0.0) return low;
    float away = abs(v - low);
    float turns = floor(away / range);
    float rest = away - turns * range;
    return mod(turns, 2.0) == 0.0 ? low + rest : low + range - rest;
}

float clamp_into(float v, int extent) { return v < 0.0 ? 0.0 : v > float(extent - 1) ? float(extent - 1) : v; }

// The same of a pixel's index, exact also far out.
int mirrored(int i, int extent) {
    if (extent == 1) return 0;
    int span = ALIGN_CORNERS ? extent - 1 : extent;
    int away = i >= 0 ? i : ALIGN_CORNERS ? -i : -1 - i;
    int rest = away % span;
    return (away / span) % 2 == 0 ? rest : extent - 1 - rest;
}

// Pixel that index i stands for; -1 where it is a zero.
int pixel(int i, int extent) {
    if (i >= 0 && i < extent) return i;
    if (PADDING == ZEROS) return -1;
    return PADDING == BORDER ? clamp(i, 0, extent - 1) : mirrored(i, extent);
}

void main() {
    uint index = flat_index();
    if (index >= total) return;
    uint plane = index / places;
    uint image = plane / channels;
    uint place = image * places + index - plane * places;
    int low[3];
    float fraction[3];
    int reach = MODE == NEAREST ? 1 : MODE == LINEAR ? 2 : 4;
    int taps = 1;
    int extent = 1;
    for (uint d = 0; d < RANK; d++) {
        float v = LOAD(grid, place * RANK + RANK - 1 - d);
        v = ALIGN_CORNERS ? (v + 1.0) * 0.5 * float(n[d] - 1) : ((v + 1.0) * float(n[d]) - 1.0) * 0.5;
        if (MODE == NEAREST) v = roundEven(v);
        if (PADDING == BORDER && MODE != CUBIC) v = clamp_into(v, n[d]);  // cubic clamps each pixel that it reads
        float edge = ALIGN_CORNERS ? 0.0 : 0.5;
        if (PADDING == REFLECTION && (v < -edge || v > float(n[d] - 1) + edge)) v = reflect_into(v, n[d]);
        // What is no number, or far out, is as far out as counts.
        if (!(abs(v) < 1e9)) v = v > 0.0 ? 1e9 : -1e9;
        low[d] = int(floor(v));
        fraction[d] = v - floor(v);
        taps *= reach;
        extent *= n[d];
    }
    float sum = 0.0;
    for (int tap = 0; tap < taps; tap++) {
        int rest = tap;
        int from = 0;
        bool inside = true;
        float weight = 1.0;
        for (uint d = 0; d < RANK; d++) {
            int t = rest % reach;
            rest /= reach;
            int step = MODE == CUBIC ? t - 1 : t;
            int i = pixel(low[d] + step, n[d]);
            inside = inside && i >= 0;
            from = from * n[d] + i;
            float distance = float(step) - fraction[d];
            if (MODE == LINEAR) weight *= 1.0 - abs(distance);
            if (MODE == CUBIC) weight *= cubic(abs(distance), -0.75);
        }
        if (inside && weight != 0.0) sum += weight * LOAD(x, plane * uint(extent) + uint(from));
    }
    STORE(y, index, sum);
}
