// What every conv2d shader shares: x NCHW, y NCHW, the push block CONV2D_PUSH of vkconv/shaders/conv.py, bias and
// activation.
#extension GL_EXT_control_flow_attributes : require
#include "epilogue.glsl"

Channel channel_of(int co) { return channel_at(co, c_out); }

// ``residual`` is what residual_at() has for the place that the result goes to.
float finish(float sum, Channel channel, float residual) { return finished(sum, channel, act_a, act_b, residual); }

float finish(float sum, Channel channel) { return finish(sum, channel, 0.0); }
