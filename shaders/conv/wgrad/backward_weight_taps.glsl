// The end of a workgroup that makes the TAPS taps of one output channel: each of its LANES has a sum of every tap. They
// meet always in the same order, by subgroups of SUBGROUP lanes, or in a tree.
#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
const int PARTS = LANES / SUBGROUP;
shared float sums[PARTS > 1 ? TAPS * PARTS : 1];
#else
#include "backward_weight_meet.glsl"
#endif

void store_taps(float acc[TAPS], int lane, int slice, int channel, int total) {
#ifdef SUBGROUPS
    if (PARTS == 1) {
        [[unroll]] for (int i = 0; i < TAPS; i++) {
            float sum = subgroupAdd(acc[i]);
            if (lane == i % LANES) store(slice, channel * TAPS + i, total, sum);
        }
        return;
    }
    [[unroll]] for (int i = 0; i < TAPS; i++) {
        float sum = subgroupAdd(acc[i]);
        if (subgroupElect()) sums[i * PARTS + int(gl_SubgroupID)] = sum;
    }
    barrier();
    for (int i = lane; i < TAPS; i += LANES) {
        float sum = 0.0;
        for (int part = 0; part < PARTS; part++) sum += sums[i * PARTS + part];
        store(slice, channel * TAPS + i, total, sum);
    }
#else
    [[unroll]] for (int i0 = 0; i0 < TAPS; i0 += MEET) {
        if (i0 > 0) barrier();
        [[unroll]] for (int j = 0; j < MEET; j++) {
            if (i0 + j < TAPS) sums[j * LANES + lane] = acc[min(i0 + j, TAPS - 1)];
        }
        barrier();
        if (i0 + shared_sum(lane) < TAPS) add_up(lane);
        barrier();
        int i = i0 + lane;
        if (lane < MEET && i < TAPS) store(slice, channel * TAPS + i, total, met(lane));
    }
#endif
}
