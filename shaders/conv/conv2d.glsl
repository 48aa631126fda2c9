// What every conv2d shader shares: x NCHW, y NCHW, the push block of vkconv/ops/conv/conv2d/common.py, bias and activation.
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

#ifndef CONV_X
#define CONV_X ELEM
#endif
layout(set = 0, binding = 0) readonly restrict buffer X { CONV_X x[]; };
#ifdef WEIGHT_VEC4
layout(set = 0, binding = 1) readonly restrict buffer W { ELEM4 weight4[]; };
#else
layout(set = 0, binding = 1) readonly restrict buffer W { ELEM weight[]; };
#endif
#ifndef CONV_Y
#define CONV_Y Y_ELEM
#endif
#ifndef REDUCE
layout(set = 0, binding = 3) WRITEONLY restrict buffer Y { CONV_Y y[]; };
#endif

Channel channel_of(int co) { return channel_at(co, c_out); }

// ``residual`` is what residual_at() has for the place that the result goes to.
float finish(float sum, Channel channel, float residual) { return finished(sum, channel, act_a, act_b, residual); }

float finish(float sum, Channel channel) { return finish(sum, channel, 0.0); }
