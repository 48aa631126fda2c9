// What the kernels of a convolution's gradient by its weights share: which slice of the sum, and where results go.
#extension GL_EXT_control_flow_attributes : require

#include "backward_weight_sum.glsl"
#include "backward_weight_store.glsl"
