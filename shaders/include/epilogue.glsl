// What becomes of a sum: the bias of its channel is added, then the activation applied; prelu is leaky_relu with a
// slope per channel in place of its parameter. Behind an activation without parameters a and b may be a scale and
// shift. One buffer holds what a call has of [bias][slope] (vkconv/ops/kernels/epilogue.py). With RESIDUAL a number of
// its own, which lies where the result goes, is added before the activation; its buffer is bound behind that of the
// results. VEC4_RESIDUAL, defined before: the residual is read by vec4 too.
#include "activation.glsl"

const bool HAS_BIAS = (PER_CHANNEL & 1u) != 0u;
const bool HAS_SLOPE = (PER_CHANNEL & 2u) != 0u;
const bool IS_RESCALED = (PER_CHANNEL & 4u) != 0u;

struct Channel {
    float offset;
    float slope;
};

float offset_at(int c) { return HAS_BIAS ? LOAD(per_channel, c) : 0.0; }

// Of ``channels`` channels.
float slope_at(int c, int channels) { return HAS_SLOPE ? LOAD(per_channel, HAS_BIAS ? channels + c : c) : 0.0; }

Channel channel_at(int c, int channels) { return Channel(offset_at(c), slope_at(c, channels)); }

float after_sum(float sum, float slope, float a, float b) {
    float value = activate(ACT, sum, HAS_SLOPE ? slope : a, b);
    return IS_RESCALED ? value * a + b : value;
}

float finished(float sum, Channel channel, float a, float b) {
    return after_sum(sum + channel.offset, channel.slope, a, b);
}

#ifdef RESIDUAL

float residual_at(int i) { return LOAD(residual, i); }

#ifdef VEC4_RESIDUAL
vec4 residual4_at(int i) { return LOAD4(residual4, i); }
#endif

float finished(float sum, Channel channel, float a, float b, float residual) {
    return after_sum(sum + channel.offset + residual, channel.slope, a, b);
}
#else
float residual_at(int i) { return 0.0; }

#ifdef VEC4_RESIDUAL
vec4 residual4_at(int i) { return vec4(0.0); }
#endif

float finished(float sum, Channel channel, float a, float b, float residual) { return finished(sum, channel, a, b); }
#endif
