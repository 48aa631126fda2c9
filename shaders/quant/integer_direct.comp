#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer_conv.glsl"
#include "windows.glsl"

int sum_at(uint index, ivec4 channel, int co, int zero) {
    int pixel = int(index % uint(oh * ow));
    int plane = int(index / uint(oh * ow));
    int in_group = c_in / groups;
    int first = (plane / c_out) * c_in + co / (c_out / groups) * in_group;
    int iy0 = pixel / ow * sh - pt;
    int ix0 = pixel % ow * sw - pl;
    ivec2 rows = taps_inside(iy0, dh, kh, h);
    ivec2 cols = taps_inside(ix0, dw, kw, w);
    int sum = 0;
    for (int ci = 0; ci < in_group; ci++) {
        for (int ky = rows.x; ky < rows.y; ky++) {
            int row = ((first + ci) * h + iy0 + ky * dh) * w + ix0;
            int tap = ((co * in_group + ci) * kh + ky) * kw;
            for (int kx = cols.x; kx < cols.y; kx++) {
                int at = row + kx * dw;
                int value = signed_byte(x[at >> 2] ^ flips(X_SIGNED), uint(at)) - zero;
                sum += value * (signed_byte(weight[(tap + kx) >> 2] ^ flips(W_SIGNED), uint(tap + kx)) - channel.x);
            }
        }
    }
    return sum;
}

// By definition, one sum or the four bytes of a word per invocation: any groups, stride, dilation and padding.
void main() {
    uint word = flat_index();
    uint count = uint(n * c_out) * uint(oh * ow);
    uint each = RESULT == 0 ? 1u : 4u;
    if (word >= (count + each - 1) / each) return;
    int zero = x_zero();
    int y_zero = channels[c_out].x;
    uint result = 0u;
    for (uint k = 0; k < each; k++) {
        uint index = word * each + k;
        if (index >= count) break;
        int co = int(index / uint(oh * ow)) % c_out;
        ivec4 channel = channels[co];
        result |= finished(sum_at(index, channel, co, zero), channel, y_zero) << (8 * k);
    }
    y[word] = result;
}
