#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "activation.glsl"

// The gate of squeeze-and-excite, a workgroup for each image: the mean of each channel, a product with w1 (HIDDEN x
// CHANNELS) and its activation, one with w2 (gates x HIDDEN) and its. What lies between them stays in shared memory.
// Neighbouring lanes share a channel or a row of weights, read it side by side and add up what they have: MEAN_LANES,
// SQUEEZE_LANES and EXCITE_LANES of them, powers of two that divide LOCAL, the size of a workgroup.
shared float means[CHANNELS];
shared float squeezed[HIDDEN];
shared float parts[LOCAL];

// The sum of what ``lanes`` neighbours have, for all of them; every lane of the workgroup takes part.
float together(int lane, int lanes, float part) {
    parts[lane] = part;
    barrier();
    for (int step = lanes / 2; step > 0; step /= 2) {
        if (lane % lanes < step) parts[lane] += parts[lane + step];
        barrier();
    }
    float sum = parts[lane - lane % lanes];
    barrier();
    return sum;
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int image = int(flat_group());
    if (image >= images) return;

    for (int first = 0; first < CHANNELS; first += LOCAL / MEAN_LANES) {
        int c = first + lane / MEAN_LANES;
        float part = 0.0;
        if (c < CHANNELS) {
            int from = (image * CHANNELS + c) * plane;
            for (int i = lane % MEAN_LANES; i < plane; i += MEAN_LANES) part += LOAD(x, from + i);
        }
        float sum = together(lane, MEAN_LANES, part);
        if (c < CHANNELS && lane % MEAN_LANES == 0) means[c] = sum / float(plane);
    }
    barrier();
    for (int first = 0; first < HIDDEN; first += LOCAL / SQUEEZE_LANES) {
        int row = first + lane / SQUEEZE_LANES;
        float part = 0.0;
        if (row < HIDDEN) {
            for (int i = lane % SQUEEZE_LANES; i < CHANNELS; i += SQUEEZE_LANES) {
                part += LOAD(w1, row * CHANNELS + i) * means[i];
            }
        }
        float sum = together(lane, SQUEEZE_LANES, part);
        if (row < HIDDEN && lane % SQUEEZE_LANES == 0) {
            squeezed[row] = activate(ACT, sum + (HAS_B1 ? LOAD(b1, row) : 0.0), act_a, act_b);
        }
    }
    barrier();
    for (int first = 0; first < gates; first += LOCAL / EXCITE_LANES) {
        int row = first + lane / EXCITE_LANES;
        float part = 0.0;
        if (row < gates) {
            for (int i = lane % EXCITE_LANES; i < HIDDEN; i += EXCITE_LANES) {
                part += LOAD(w2, row * HIDDEN + i) * squeezed[i];
            }
        }
        float sum = together(lane, EXCITE_LANES, part);
        if (row < gates && lane % EXCITE_LANES == 0) {
            float value = activate(GATE, sum + (HAS_B2 ? LOAD(b2, row) : 0.0), gate_a, gate_b);
            STORE(y, image * gates + row, value);
        }
    }
}
