#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

// One input channel per group and as many output channels: planes of all images lie one behind the other, in the input
// as in the output. A workgroup has PLANES of them, which it copies into shared memory with the zeros around, as far as
// windows reach: each element is loaded once, by neighbouring lanes. Then an invocation makes RY outputs of a column.
const int ROW_BLOCKS = (OH + RY - 1) / RY;
const int TILE_H = (ROW_BLOCKS * RY - 1) * SH + (KH - 1) * DH + 1;
const int TILE_W = (OW - 1) * SW + (KW - 1) * DW + 1;
const int TILE = TILE_H * TILE_W;
const int TAPS = KH * KW;
const int ROWS = (RY - 1) * SH + (KH - 1) * DH + 1;
const int ITEMS = PLANES * ROW_BLOCKS * OW;

shared float tile[PLANES * TILE];
shared float taps[PLANES * TAPS];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int local = int(gl_WorkGroupSize.x);
    int planes = n * c_out;
    int first = int(flat_group()) * PLANES;
    if (first >= planes) return;

    for (int i = lane; i < PLANES * TILE; i += local) {
        int plane = first + i / TILE;
        int iy = i % TILE / TILE_W - pt;
        int ix = i % TILE % TILE_W - pl;
        bool ok = plane < planes && iy >= 0 && iy < h && ix >= 0 && ix < w;
        tile[i] = ok ? float(LOAD(x, ok ? (plane * h + iy) * w + ix : 0)) : 0.0;
    }
    for (int i = lane; i < PLANES * TAPS; i += local) {
        taps[i] = LOAD(weight, (first + i / TAPS) % c_out * TAPS + i % TAPS);
    }
    barrier();

    for (int i = lane; i < ITEMS; i += local) {
        int ox = i % OW;
        int oy0 = i / OW % ROW_BLOCKS * RY;
        int part = i / (OW * ROW_BLOCKS);
        if (first + part >= planes) break;
        int from = part * TILE + oy0 * SH * TILE_W + ox * SW;
        float acc[RY];
        [[unroll]] for (int o = 0; o < RY; o++) acc[o] = 0.0;
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            [[unroll]] for (int kx = 0; kx < KW; kx++) {
                float v = tile[from + r * TILE_W + kx * DW];
                [[unroll]] for (int o = 0; o < RY; o++) {
                    int reach = r - o * SH;
                    if (reach >= 0 && reach % DH == 0 && reach / DH < KH) {
                        acc[o] += taps[part * TAPS + reach / DH * KW + kx] * v;
                    }
                }
            }
        }
        Channel channel = channel_of((first + part) % c_out);
        int out_column = (first + part) * OH * OW + ox;
        [[unroll]] for (int o = 0; o < RY; o++) {
            int to = out_column + (oy0 + o) * OW;
            if (oy0 + o < OH) STORE_Y(y, to, finish(acc[o], channel, residual_at(to)));
        }
    }
}
