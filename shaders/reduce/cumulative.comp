#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

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
