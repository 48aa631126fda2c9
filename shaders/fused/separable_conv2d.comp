#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv/conv2d.glsl"
#include "conv/gemm_tile.glsl"

// A depthwise convolution, an activation and a 1x1 convolution, the result between them kept in shared memory. A
// workgroup makes BM output channels of TILE_H x TILE_W pixels of an image. A k-tile is BK of the channels between: what
// the windows of the pixels touch of them is put into shared memory, zeros around the image, then convolved to BK x BN
// elements, and the product of these and the weights is added up in registers (gemm_tile.glsl). Workgroups of the same
// pixels and other output channels do all but the product again. With EXPAND the channels under the windows are made by
// a 1x1 convolution and an activation of their own: those at the borders of tiles by each tile that touches them. Its
// weights are packed [channels / 4][c_in][4], those of the last product as conv2d_gemm.comp has them. One buffer
// has the biases of the expanded channels, where there are some, and behind these those of the convolved ones.
const int WINDOW_H = (TILE_H - 1) * SH + (KH - 1) * DH + 1;
const int WINDOW_W = (TILE_W - 1) * SW + (KW - 1) * DW + 1;
const int WINDOW = WINDOW_H * WINDOW_W;
const int TAPS = KH * KW;
// Outputs of a column that an invocation makes of the rows that it reads.
const int COLUMN = 4;
const int ROWS = (COLUMN - 1) * SH + (KH - 1) * DH + 1;

#ifdef EXPAND
#define BIASES_BEFORE (HAS_EXPAND_BIAS ? c_between : 0)
#else
#define BIASES_BEFORE 0
#endif

shared float window[BK * WINDOW];
shared float taps[BK * TAPS];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int row_blocks = (c_out + BM - 1) / BM;
    int down = (oh + TILE_H - 1) / TILE_H;
    int across = (ow + TILE_W - 1) / TILE_W;
    int index = int(flat_group());
    if (index >= n * down * across * row_blocks) return;
    int block_row = index % row_blocks;
    index /= row_blocks;
    int ox0 = index % across * TILE_W;
    index /= across;
    int oy0 = index % down * TILE_H;
    int image = index / down;
    int iy0 = oy0 * SH - pt;
    int ix0 = ox0 * SW - pl;
    int steps = (c_between + BK - 1) / BK;

    vec4 acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);
    for (int step = 0; step < steps; step++) {
        int first = step * BK;
        int a_at = (block_row * steps + step) * A_VECS;
        [[unroll]] for (int i = 0; i < A_LOADS; i++) {
            int vec = lane + i * LANES;
            if (A_VECS % LANES == 0 || vec < A_VECS) a_tile[vec] = LOAD4(weight, a_at + vec);
        }
        for (int i = lane; i < BK * TAPS; i += LANES) {
            bool ok = first + i / TAPS < c_between;
            taps[i] = ok ? LOAD(depthwise, ok ? first * TAPS + i : 0) : 0.0;
        }
#ifdef EXPAND
        for (int i = lane; i < BK / (4 * VECS) * WINDOW; i += LANES) {
            int at = i % WINDOW;
            int vec = i / WINDOW * VECS;
            int iy = iy0 + at / WINDOW_W;
            int ix = ix0 + at % WINDOW_W;
            vec4 sum[VECS];
            [[unroll]] for (int v = 0; v < VECS; v++) sum[v] = vec4(0.0);
            bool inside = iy >= 0 && iy < h && ix >= 0 && ix < w;
            if (inside) {
                int from = (image * c_in * h + iy) * w + ix;
                int of_weights[VECS];
                [[unroll]] for (int v = 0; v < VECS; v++) {
                    of_weights[v] = min(first / 4 + vec + v, (c_between - 1) / 4) * c_in;
                }
                for (int c = 0; c < c_in; c++) {
                    float value = LOAD(x, from + c * h * w);
                    [[unroll]] for (int v = 0; v < VECS; v++) sum[v] += value * LOAD4(expand, of_weights[v] + c);
                }
            }
            [[unroll]] for (int v = 0; v < VECS; v++) {
                [[unroll]] for (int q = 0; q < 4; q++) {
                    int k = (vec + v) * 4 + q;
                    bool ok = inside && first + k < c_between;
                    float bias = HAS_EXPAND_BIAS && ok ? LOAD(biases, ok ? first + k : 0) : 0.0;
                    window[k * WINDOW + at] = ok ? activate(EXPAND_ACT, sum[v][q] + bias, expand_a, expand_b) : 0.0;
                }
            }
        }
#else
        int of_each = c_between / c_in;
        for (int i = lane; i < BK * WINDOW; i += LANES) {
            int k = first + i / WINDOW;
            int iy = iy0 + i % WINDOW / WINDOW_W;
            int ix = ix0 + i % WINDOW % WINDOW_W;
            bool ok = k < c_between && iy >= 0 && iy < h && ix >= 0 && ix < w;
            window[i] = ok ? LOAD(x, ok ? ((image * c_in + k / of_each) * h + iy) * w + ix : 0) : 0.0;
        }
#endif
        barrier();
        for (int i = lane; i < BK * BN / COLUMN; i += LANES) {
            int k = i / (BN / COLUMN);
            int column = i % TILE_W;
            int row = i % (BN / COLUMN) / TILE_W * COLUMN;
            int from = k * WINDOW + row * SH * WINDOW_W + column * SW;
            float sum[COLUMN];
            [[unroll]] for (int o = 0; o < COLUMN; o++) sum[o] = 0.0;
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                [[unroll]] for (int kx = 0; kx < KW; kx++) {
                    float value = window[from + r * WINDOW_W + kx * DW];
                    [[unroll]] for (int o = 0; o < COLUMN; o++) {
                        int reach = r - o * SH;
                        if (reach >= 0 && reach % DH == 0 && reach / DH < KH) {
                            sum[o] += taps[k * TAPS + reach / DH * KW + kx] * value;
                        }
                    }
                }
            }
            bool ok = first + k < c_between;
            float bias = HAS_BETWEEN_BIAS && ok ? LOAD(biases, ok ? BIASES_BEFORE + first + k : 0) : 0.0;
            [[unroll]] for (int o = 0; o < COLUMN; o++) {
                int to = k * BN + (row + o) * TILE_W + column;
                b_tile[to / 4][to % 4] = ok ? activate(BETWEEN, sum[o] + bias, between_a, between_b) : 0.0;
            }
        }
        barrier();
        MULTIPLY_K_TILE(lane, 0)
        barrier();
    }

    int plane = oh * ow;
    int out_at[TN];
    [[unroll]] for (int j = 0; j < TN; j++) {
        int p = tile_column(lane, j);
        int oy = oy0 + p / TILE_W;
        int ox = ox0 + p % TILE_W;
        out_at[j] = oy < oh && ox < ow ? image * c_out * plane + oy * ow + ox : -1;
    }
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = block_row * BM + tile_row(lane, i);
        if (row < c_out) {
            Channel channel = channel_of(row);
            [[unroll]] for (int j = 0; j < TN; j++) {
                int to = out_at[j] + row * plane;
                if (out_at[j] >= 0) STORE_Y(y, to, finish(acc[i * TN4 + j / 4][j % 4], channel, residual_at(to)));
            }
        }
    }
}
