#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define VEC4_RESIDUAL
#include "conv2d.glsl"

// Sliding window over a patch of the input in shared memory, groups 1. A workgroup makes TH * RY rows x TW * PX columns
// of outputs of CG * CO channels, TW * TH * CG lanes. CI input channels at a time, it copies the rows and columns that
// these touch, zeros where they leave the plane, and the weights: packed [c_out / CO][c_in][kh][kw][CO]
// (pack_tiles.comp), as every lane of a subgroup reads the same. A lane makes PX neighbouring columns of every TH-th of
// RY rows. Lanes side by side begin PERIOD columns apart, so that a row lies as PERIOD phases of every PERIOD-th column:
// they then read neighbouring words, and so do lanes of neighbouring rows by BETWEEN, what lies between two rows.
const int PERIOD = PX * SW;
const int COLUMNS = (TW * PX - 1) * SW + (KW - 1) * DW + 1;
const int PITCH = (COLUMNS + PERIOD - 1) / PERIOD;
const int LINE = PERIOD * PITCH + BETWEEN;
const int ROWS = (TH * RY - 1) * SH + (KH - 1) * DH + 1;
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int TAPS4 = KH * KW * CO / 4;  // vec4 of weights of an input channel
const int LANES = TW * TH * CG;
const int ACROSS = LANES < 32 ? LANES : 32;  // lanes that copy a row
const int IN_FLIGHT = 8;

shared float input_rows[CI * ROWS * LINE];
shared vec4 taps[CG * CI * TAPS4];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int column_blocks = (ow + TW * PX - 1) / (TW * PX);
    int row_blocks = (oh + TH * RY - 1) / (TH * RY);
    int tiles = (c_out + CO - 1) / CO;
    int tile_blocks = (tiles + CG - 1) / CG;
    int index = int(flat_group());
    if (index >= n * tile_blocks * column_blocks * row_blocks) return;
    int first_tile = index % tile_blocks * CG;
    index /= tile_blocks;
    int first_column = index % column_blocks * (TW * PX);
    index /= column_blocks;
    int first_row = index % row_blocks * (TH * RY);
    int image = index / row_blocks;

    int tx = lane % TW;
    int ty = lane / TW % TH;
    int team = lane / (TW * TH);
    int iy0 = first_row * SH - pt;
    int ix0 = first_column * SW - pl;

    float acc[CO * RY * PX];
    [[unroll]] for (int i = 0; i < CO * RY * PX; i++) acc[i] = 0.0;

    [[dont_unroll]] for (int c0 = 0; c0 < c_in; c0 += CI) {
        int channels = min(CI, c_in - c0);
        if (c0 > 0) barrier();
        int across = lane % ACROSS;
        int lines = lane < LANES / ACROSS * ACROSS ? channels * ROWS : 0;
        [[dont_unroll]] for (int line = lane / ACROSS; line < lines; line += LANES / ACROSS) {
            int iy = iy0 + line % ROWS;
            bool row_inside = iy >= 0 && iy < h;
            int from = ((image * c_in + c0 + line / ROWS) * h + iy) * w + ix0;
            [[dont_unroll]] for (int base = across; base < COLUMNS; base += IN_FLIGHT * ACROSS) {
                float next[IN_FLIGHT];
                [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
                    int column = base + q * ACROSS;
                    bool ok = row_inside && column < COLUMNS && ix0 + column >= 0 && ix0 + column < w;
                    next[q] = ok ? LOAD(x, ok ? from + column : 0) : 0.0;
                }
                [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
                    int column = base + q * ACROSS;
                    if (column < COLUMNS) input_rows[line * LINE + column % PERIOD * PITCH + column / PERIOD] = next[q];
                }
            }
        }
        [[dont_unroll]] for (int i = lane; i < CG * CI * TAPS4; i += LANES) {
            int tile = first_tile + i / (CI * TAPS4);
            int tap = i % (CI * TAPS4);
            if (tile < tiles && tap < channels * TAPS4) taps[i] = LOAD4(weight, (tile * c_in + c0) * TAPS4 + tap);
        }
        barrier();

        [[dont_unroll]] for (int ci = 0; ci < channels; ci++) {
            int at = (ci * ROWS + ty * SH) * LINE + tx;
            int tap = (team * CI + ci) * TAPS4;
            [[dont_unroll]] for (int ky = 0; ky < KH; ky++) {
                float v[RY * SPAN];
                [[unroll]] for (int r = 0; r < RY; r++) {
                    [[unroll]] for (int s = 0; s < SPAN; s++) {
                        v[r * SPAN + s] = input_rows[at + r * TH * SH * LINE + s % PERIOD * PITCH + s / PERIOD];
                    }
                }
                [[unroll]] for (int kx = 0; kx < KW; kx++) {
                    [[unroll]] for (int c = 0; c < CO; c += 4) {
                        vec4 k = taps[tap + (kx * CO + c) / 4];
                        [[unroll]] for (int q = 0; q < 4; q++) {
                            [[unroll]] for (int r = 0; r < RY; r++) {
                                [[unroll]] for (int p = 0; p < PX; p++) {
                                    acc[((c + q) * RY + r) * PX + p] += k[q] * v[r * SPAN + p * SW + kx * DW];
                                }
                            }
                        }
                    }
                }
                at += DH * LINE;
                tap += KW * CO / 4;
            }
        }
    }

    int ox0 = first_column + tx * PX;
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = (first_tile + team) * CO + c;
        if (co < c_out && ox0 < ow) {
            Channel channel = channel_of(co);
            [[unroll]] for (int r = 0; r < RY; r++) {
                int oy = first_row + ty + r * TH;
                int to = ((image * c_out + co) * oh + oy) * ow + ox0;
                int sum = (c * RY + r) * PX;
                if (oy < oh) {
                    if (Y_VEC4) {
                        [[unroll]] for (int p = 0; p < PX; p += 4) {
                            if (ox0 + p < ow) {
                                vec4 values = residual4_at((to + p) / 4);
                                [[unroll]] for (int i = 0; i < 4; i++) {
                                    values[i] = finish(acc[min(sum + p + i, CO * RY * PX - 1)], channel, values[i]);
                                }
                                STORE_Y4(y4, (to + p) / 4, values);
                            }
                        }
                    } else {
                        [[unroll]] for (int p = 0; p < PX; p++) {
                            if (ox0 + p < ow) STORE_Y(y, to + p, finish(acc[sum + p], channel, residual_at(to + p)));
                        }
                    }
                }
            }
        }
    }
}
