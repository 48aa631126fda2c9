#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(constant_id = 3) const uint KIND = 0;  // 0 sum, 1 product
layout(constant_id = 4) const bool EXCLUSIVE = false;
layout(constant_id = 5) const bool REVERSE = false;

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) WRITEONLY restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push { uint lines, length, inner; };

void main() {
    uint line = flat_index();
    if (line >= lines) return;
    uint first = line / inner * inner * length + line % inner;
    VALUE total = KIND == 0 ? VALUE(0) : VALUE(1);
    for (uint k = 0; k < length; k++) {
        uint i = first + (REVERSE ? length - 1 - k : k) * inner;
        VALUE value = LOAD(x, i);
        if (EXCLUSIVE) STORE(y, i, total);
        if (KIND == 0) total += value;
        else total *= value;
        if (!EXCLUSIVE) STORE(y, i, total);
    }
}
