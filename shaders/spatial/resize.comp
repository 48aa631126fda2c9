#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Source coordinate of output index o is (step * o + offset) / unit, in integers: exact where f32 would tip over.

int floor_div(int value, int unit) {
    return value >= 0 ? value / unit : -((unit - 1 - value) / unit);
}

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint pixels = uint(out_h * out_w);
    uint block = index / pixels;
    int pixel = int(index - block * pixels);
    int oy = pixel / out_w;
    int py = step_y * oy + offset_y;
    int px = step_x * (pixel - oy * out_w) + offset_x;
    int iy = floor_div(py, unit_y);
    int ix = floor_div(px, unit_x);
    float fy = float(py - iy * unit_y) / float(unit_y);
    float fx = float(px - ix * unit_x) / float(unit_x);
    int top = clamp(iy, 0, in_h - 1) * in_w;
    int left = clamp(ix, 0, in_w - 1);
    int bottom = clamp(iy + 1, 0, in_h - 1) * in_w;
    int right = clamp(ix + 1, 0, in_w - 1);
    for (uint k = 0; k < ITEMS; k++) {
        uint plane = block * ITEMS + k;
        if (plane >= planes) break;
        int from = int(plane) * in_h * in_w;
        float v = LOAD(x, from + top + left);
        if (LINEAR) {
            // A weight of 0 takes nothing, also not the NaN of 0 times infinity.
            float upper = fx == 0.0 ? v : v * (1.0 - fx) + LOAD(x, from + top + right) * fx;
            float lower = LOAD(x, from + bottom + left);
            lower = fx == 0.0 ? lower : lower * (1.0 - fx) + LOAD(x, from + bottom + right) * fx;
            v = fy == 0.0 ? upper : upper * (1.0 - fy) + lower * fy;
        }
        STORE(y, plane * pixels + uint(pixel), v);
    }
}
