#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require

// dw = scale * (sum of the slices) + beta * add, always in the same order. LANES lanes of a workgroup share an element,
// each summing every LANES-th slice, and the first adds their sums. With no slices it is what atomics then add to.
// BY_TAPS: slices are [output channel][tap][input channel], and transposed to the order of dw as it is written.

shared float sums[LANES * ELEMENTS];  // no Select: an Adreno driver gets those wrong (ncnn#6972)

void main() {
    int element = int(gl_LocalInvocationID.x) % ELEMENTS;
    int lane = int(gl_LocalInvocationID.x) / ELEMENTS;
    int index = int(flat_group()) * ELEMENTS + element;
    bool inside = index < total;
    int at = inside ? index : 0;
    float sum = 0.0;
    int p = lane;
    // Four loads are on their way at a time; the order of the adds stays.
    for (; p + 3 * LANES < slice_count; p += 4 * LANES) {
        float v[4];
        [[unroll]] for (int i = 0; i < 4; i++) v[i] = slices[(p + i * LANES) * total + at];
        [[unroll]] for (int i = 0; i < 4; i++) sum += v[i];
    }
    for (; p < slice_count; p += LANES) sum += slices[p * total + at];
    if (LANES > 1) {
        sums[lane * ELEMENTS + element] = sum;
        barrier();
        sum = 0.0;
        for (int i = 0; i < LANES; i++) sum += sums[i * ELEMENTS + element];
    }
    if (!inside || lane > 0) return;
    int to = BY_TAPS ? (index / channels / taps * channels + index % channels) * taps + index / channels % taps : index;
    float value = scale * sum;
    STORE_Y(dw, to, HAS_ADD ? value + beta * LOAD(add, to) : value);
}
