#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

float at(int plane, int i, int j) {
    return i >= 0 && i < h && j >= 0 && j < width ? LOAD(x, (plane * h + i) * width + j) : 0.0;
}

// x at a place between pixels, zeros around it; nothing, where that is far away or no place.
float bilinear(int plane, float row, float column) {
    if (!(row > -1.0 && row < float(h) && column > -1.0 && column < float(width))) return 0.0;
    int i = int(floor(row));
    int j = int(floor(column));
    float fi = row - float(i);
    float fj = column - float(j);
    return (1.0 - fi) * ((1.0 - fj) * at(plane, i, j) + fj * at(plane, i, j + 1))
         + fi * ((1.0 - fj) * at(plane, i + 1, j) + fj * at(plane, i + 1, j + 1));
}

void main() {
    uint index = flat_index();
    if (index >= total) return;
    int pixel = int(index % uint(oh * ow));
    int plane = int(index / uint(oh * ow));
    int image = plane / m;
    int channel = plane % m;
    int offset_groups = c / c_per_offset_group;
    float top = float(pixel / ow * sh - pt);
    float left = float(pixel % ow * sw - pl);
    float sum = HAS_BIAS ? LOAD(bias, channel) : 0.0;
    for (int k = 0; k < per_group; k++) {
        int from = channel / m_per_group * per_group + k;
        int offset_group = image * offset_groups + from / c_per_offset_group;
        for (int tap = 0; tap < kh * kw; tap++) {
            int moved = (offset_group * kh * kw + tap) * 2 * oh * ow + pixel;
            float row = top + float(tap / kw * dh) + LOAD(offset, moved);
            float column = left + float(tap % kw * dw) + LOAD(offset, moved + oh * ow);
            float value = bilinear(image * c + from, row, column);
            if (HAS_MASK) value *= LOAD(mask, (offset_group * kh * kw + tap) * oh * ow + pixel);
            sum += value * LOAD(w, (channel * per_group + k) * kh * kw + tap);
        }
    }
    STORE(y, index, sum);
}
