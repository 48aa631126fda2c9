#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(constant_id = 3) const bool IS_MAX = true;
layout(constant_id = 4) const bool COUNT_PADDING = false;

layout(push_constant) uniform Push {
    uint planes;
    int h, w, oh, ow;
    int kh, kw, sh, sw, dh, dw;
    int pt, pl, pb, pr;
};

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Y { ELEM y[]; };

// One output per invocation. Padding never wins a maximum and adds nothing to a sum; the average divides by the
// taps on the input or, with COUNT_PADDING, on the input and its padding, never by those beyond both.
void main() {
    uint index = flat_index();
    if (index >= planes * uint(oh * ow)) return;
    int pixel = int(index) % (oh * ow);
    int plane = int(index) / (oh * ow) * h;
    int iy0 = pixel / ow * sh - pt;
    int ix0 = pixel % ow * sw - pl;
    float best = uintBitsToFloat(0xFF800000u);
    float sum = 0.0;
    int count = 0;
    for (int ky = 0; ky < kh; ky++) {
        int iy = iy0 + ky * dh;
        for (int kx = 0; kx < kw; kx++) {
            int ix = ix0 + kx * dw;
            bool inside = iy >= 0 && iy < h && ix >= 0 && ix < w;
            if (inside || (COUNT_PADDING && iy < h + pb && ix < w + pr)) count++;
            if (inside) {
                float v = TO_F32(x[(plane + iy) * w + ix]);
                sum += v;
                if (isnan(v) || v > best) best = v;
            }
        }
    }
    y[index] = FROM_F32(IS_MAX ? best : sum / float(count));
}
