#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "transposed.glsl"

// One output element per invocation, which sums exactly the taps that reach it. w is [c_in][c_out / groups][kh][kw].

void main() {
    uint index = flat_index();
    if (index >= uint(n * c_out) * uint(oh * ow)) return;
    int pixel = int(index) % (oh * ow);
    int plane = int(index) / (oh * ow);
    int co = plane % c_out;
    int image = plane / c_out;
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int at_y = pixel / ow + pt;
    int at_x = pixel % ow + pl;
    Taps rows = taps_reaching(max(at_y, 0), SH, DH, GCD_H, INVERSE_H, kh, h);
    Taps cols = taps_reaching(max(at_x, 0), SW, DW, GCD_W, INVERSE_W, kw, w);
    if (at_y < 0 || at_x < 0) rows.end = rows.begin;  // negative padding: no tap reaches what lies before the windows
    if (ONLY_EMPTY && at_y % GCD_H == 0 && at_x % GCD_W == 0) return;

    int first = co / out_group * in_group;
    float acc = 0.0;
    int last = ONLY_EMPTY ? first : first + in_group;
    for (int ci = first; ci < last; ci++) {
        int tap_plane = (ci * out_group + co % out_group) * kh;
        int x_plane = (image * c_in + ci) * h;
        for (int j = rows.begin; j < rows.end; j++) {
            int tap = (tap_plane + rows.first + j * (SH / GCD_H)) * kw + cols.first;
            int row = (x_plane + rows.origin - j * (DH / GCD_H)) * w + cols.origin;
            for (int i = cols.begin; i < cols.end; i++) {
                acc += LOAD(x, row - i * (DW / GCD_W)) * LOAD(weight, tap + i * (SW / GCD_W));
            }
        }
    }
    STORE(y, index, finish(acc, channel_of(co)));
}
