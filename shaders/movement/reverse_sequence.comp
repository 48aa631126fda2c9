#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint row = i / inner;
    int first = int(row / n1);
    int second = int(row % n1);
    int time = TIME_FIRST ? first : second;
    int batch = TIME_FIRST ? second : first;
    int most = int(TIME_FIRST ? n0 : n1);
    int length = lengths[WIDE ? 2 * batch : batch];
    if (WIDE && lengths[2 * batch + 1] != length >> 31) length = lengths[2 * batch + 1] < 0 ? 0 : most;
    length = clamp(length, 0, most);
    int from = time < length ? length - 1 - time : time;
    uint source = TIME_FIRST ? uint(from) * n1 + uint(batch) : uint(batch) * n1 + uint(from);
    STORE(y, i, LOAD(x, source * inner + i - row * inner));
}
