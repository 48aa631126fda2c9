#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(constant_id = 3) const bool UPPER = true;

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) WRITEONLY restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint total, rows, columns;
    int k;
};

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint line = i / columns;
    int ahead = int(i - line * columns) - int(line % rows) - k;
    STORE(y, i, (UPPER ? ahead >= 0 : ahead <= 0) ? LOAD(x, i) : VALUE(0));
}
