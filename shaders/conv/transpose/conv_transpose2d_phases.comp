#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "gemm_tile.glsl"
#include "transposed.glsl"

// Implicit GEMM for each phase of a transposed convolution. Outputs fall into blocks of sh x sw; the outputs at one
// place of their block, a phase, are a dense convolution of stride 1 by the taps that reach that place: (c_out per
// group) x (blocks of all images) = (c_out x K) by (K x blocks), K = those taps x channels, k-tiles gathered into
// shared memory (gemm_tile.glsl). A workgroup makes a tile of one phase, or with TOGETHER of all phases in turn, so
// that outputs that lie side by side are written at about the same time. Where no tap reaches a phase, bias is all
// there is. Weights are packed [group][c_out / BM][kh][kw][c_in up to BK][BM] (pack_tiles.comp). With SPLIT_K > 1, K of
// each phase is cut into that many slices and y is scratch of [SPLIT_K][output], summed by sum_split_k.comp, which adds
// bias and activation.

int taps_of(Taps t, int tap_step, int kernel) { return t.first < kernel ? (kernel - t.first - 1) / tap_step + 1 : 0; }

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int block_rows = (oh + sh - 1) / sh;
    int block_cols = (ow + sw - 1) / sw;
    int plane = block_rows * block_cols;
    int pixels = n * plane;
    int row_tiles = (out_group + BM - 1) / BM;
    int col_tiles = (pixels + BN - 1) / BN;
    int chunks = (in_group + BK - 1) / BK;

    int index = int(flat_group());
    if (index >= SPLIT_K * (TOGETHER ? 1 : sh * sw) * groups * row_tiles * col_tiles) return;
    int tile_y = index % row_tiles;
    index /= row_tiles;
    int tile_x = index % col_tiles;
    index /= col_tiles;
    int group = index % groups;
    index /= groups;
    int slice = index % SPLIT_K;
    int first_phase = TOGETHER ? 0 : index / SPLIT_K;
    int last_phase = TOGETHER ? sh * sw : first_phase + 1;
    int first_k_tile = (group * row_tiles + tile_y) * kh * kw * chunks;

    // The column of b that this invocation loads.
    int pixel = tile_x * BN + lane % BN;
    bool inside = pixel < pixels;
    int x_plane = (pixel / plane * c_in + group * in_group) * h;
    int by = pixel % plane / block_cols;
    int bx = pixel % block_cols;

    for (int phase = first_phase; phase < last_phase; phase++) {
        int phase_y = phase / sw;
        int phase_x = phase % sw;
        Taps rows = taps_reaching(phase_y + pt, sh, dh, GCD_H, INVERSE_H, kh, h);
        Taps cols = taps_reaching(phase_x + pl, sw, dw, GCD_W, INVERSE_W, kw, w);
        int taps_x = taps_of(cols, sw / GCD_W, kw);
        int steps = taps_of(rows, sh / GCD_H, kh) * taps_x * chunks;
        int first = slice * steps / SPLIT_K;
        int last = (slice + 1) * steps / SPLIT_K;
        int chunk = first % chunks;
        int tx = steps > 0 ? first / chunks % taps_x : 0;
        int ty = steps > 0 ? first / chunks / taps_x : 0;

        vec4 a_next[A_LOADS];
        float b_next[B_LOADS];
        vec4 acc[ACCS];
        [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);

        for (int step = first; step <= last; step++) {
            // The k-tile after the one that is multiplied is on its way meanwhile.
            if (step < last) {
                int tap = (rows.first + ty * (sh / GCD_H)) * kw + cols.first + tx * (sw / GCD_W);
                int a_at = (first_k_tile + tap * chunks + chunk) * A_VECS;
                [[unroll]] for (int i = 0; i < A_LOADS; i++) {
                    int vec = lane + i * LANES;
                    if (A_VECS % LANES == 0 || vec < A_VECS) a_next[i] = LOAD4(weight, a_at + vec);
                }
                int iy = by + rows.origin - ty * (dh / GCD_H);
                int ix = bx + cols.origin - tx * (dw / GCD_W);
                bool ok = inside && iy >= 0 && iy < h && ix >= 0 && ix < w;
                int k0 = chunk * BK + lane / BN;
                int x_at = (x_plane + k0 * h + iy) * w + ix;
                [[unroll]] for (int i = 0; i < B_LOADS; i++) {
                    bool there = ok && k0 + i * B_STEP < in_group;
                    b_next[i] = there ? LOAD(x, there ? x_at + i * B_STEP * h * w : 0) : 0.0;
                }
                if (++chunk == chunks) {
                    chunk = 0;
                    if (++tx == taps_x) {
                        tx = 0;
                        ty++;
                    }
                }
            }
            if (step > first) {
                MULTIPLY_K_TILE(lane, step - 1)
                if (BUFFERS == 1) barrier();
            }
            if (step < last) {
                STORE_K_TILE(a_next, b_next, lane, step)
                barrier();
            }
        }
        if (BUFFERS > 1) barrier();  // the next phase begins to store

        int slice_at = slice * n * c_out * oh * ow;
        int out_at[TN];
        [[unroll]] for (int j = 0; j < TN; j++) {
            int p = tile_x * BN + tile_column(lane, j);
            int oy = p % plane / block_cols * sh + phase_y;
            int ox = p % block_cols * sw + phase_x;
            bool there = p < pixels && oy < oh && ox < ow;
            out_at[j] = there ? slice_at + ((p / plane * c_out + group * out_group) * oh + oy) * ow + ox : -1;
        }
        [[unroll]] for (int i = 0; i < TM; i++) {
            int row = tile_y * BM + tile_row(lane, i);
            if (row < out_group) {
                Channel channel = channel_of(group * out_group + row);
                [[unroll]] for (int j = 0; j < TN; j++) {
                    float value = acc[i * TN4 + j / 4][j % 4];
                    int at = out_at[j] + row * oh * ow;
                    if (out_at[j] >= 0) STORE_Y(y, at, SPLIT_K == 1 ? finish(value, channel) : value);
                }
            }
        }
    }
}
