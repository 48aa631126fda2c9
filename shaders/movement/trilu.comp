#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint line = i / columns;
    int ahead = int(i - line * columns) - int(line % rows) - k;
    STORE(y, i, (UPPER ? ahead >= 0 : ahead <= 0) ? LOAD(x, i) : VALUE(0));
}
