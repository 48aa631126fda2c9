// What every conv2d shader shares: x NCHW, y NCHW, the push block of vkconv/ops/conv2d.py, bias and activation.
#extension GL_EXT_control_flow_attributes : require
#include "activation.glsl"

layout(constant_id = 3) const uint ACT = 0;
layout(constant_id = 4) const bool HAS_BIAS = false;

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
layout(set = 0, binding = 2) readonly restrict buffer B { ELEM bias[]; };
#ifndef Y_ELEM
#define Y_ELEM ELEM
#endif
layout(set = 0, binding = 3) writeonly restrict buffer Y { Y_ELEM y[]; };

float bias_of(int co) { return HAS_BIAS ? TO_F32(bias[co]) : 0.0; }

ELEM finish(float value) { return FROM_F32(activate(ACT, value, act_a, act_b)); }
