// What every conv2d shader shares: x NCHW, y NCHW, the push block of vkconv/ops/conv2d_parts.py, bias and activation.
#extension GL_EXT_control_flow_attributes : require
#define EPILOGUE_ID 3
#define EPILOGUE_BINDING 2
#include "epilogue.glsl"

layout(push_constant) uniform Push {
    int n, c_in, h, w;
    int c_out, oh, ow, groups;
    int kh, kw, sh, sw;
    int dh, dw, pt, pl;
    float act_a, act_b;
#ifdef MORE_PUSH
    MORE_PUSH
#endif
};

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
#ifdef WEIGHT_VEC4
layout(set = 0, binding = 1) readonly restrict buffer W { vec4 weight4[]; };
#else
layout(set = 0, binding = 1) readonly restrict buffer W { ELEM weight[]; };
#endif
#ifndef Y_ELEM
#define Y_ELEM ELEM
#endif
#ifndef REDUCE
layout(set = 0, binding = 3) writeonly restrict buffer Y { Y_ELEM y[]; };
#endif

Channel channel_of(int co) { return channel_at(co, c_out); }

// ``residual`` is what residual_at() has for the place that the result goes to.
ELEM finish(float sum, Channel channel, float residual) {
    return FROM_F32(finished(sum, channel, act_a, act_b, residual));
}

ELEM finish(float sum, Channel channel) { return finish(sum, channel, 0.0); }
