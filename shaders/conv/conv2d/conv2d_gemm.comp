#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define F16_DEPTH_COUNTED  // k-tiles that are summed in f16, with HALF_MATH
#ifndef REDUCE
#define VEC4_RESIDUAL
#endif
#include "conv2d.glsl"
#include "gemm_tile.glsl"

// Implicit GEMM: (c_out per group) x (pixels of all images) = (c_out x K) by (K x pixels), K = taps x channels, and no
// im2col buffer: k-tiles of the input are gathered into shared memory as they are needed (gemm_tile.glsl). Weights are
// packed [group][c_out / BM][kh][kw][c_in up to BK][BM] (pack_tiles.comp), zeros beyond both ends; LINEAR leaves
// channels and taps in the order of w, [c_in][kh][kw] up to BK, which wastes nothing where channels are few but
// computes each address anew. With SPLIT_K > 1 there are that many split-K slices and y is scratch of
// [SPLIT_K][output], summed by sum_split_k.comp, which adds bias and activation. With REDUCE the tile is reduced before
// anything is stored (tile_reduce.glsl): along the pixels of each segment, an image or a row or (DOWN) column of one, to
// [tile along the pixels][slot for a segment][channel], or with ALONG_CHANNELS along the channels, to [tile along the
// channels][pixel]; PRODUCT stores the results too. Each segment then begins at a multiple of four columns. With
// PROLOGUE elements of the input are scaled, shifted and activated on their way to shared memory (prologue.glsl), zeros around it not. With SLICED_K the
// teams of a workgroup divide the depth of each k-tile (gemm_tile.glsl). VEC4_COLUMNS is for 1x1 as the matrix that it
// is, whose planes are whole vec4: four pixels are loaded at once, without a test of taps.

#ifdef REDUCE
#include "addends.glsl"
#include "tile_reduce.glsl"

// The pixel of an image that is element ``at`` of a line: of a row, or with DOWN of a column.
int pixel_of(int line, int at, int lines, int segment) { return DOWN ? at * lines + line : line * segment + at; }
#endif
#ifdef PROLOGUE
#include "prologue.glsl"
#endif

// Whether the loop counts taps and channels as one sum: with one tap that is the same sum, by fewer instructions.
#ifdef VEC4_COLUMNS
#define ONE_SUM LINEAR
#else
const bool ONE_TAP = KH * KW == 1;
const bool ONE_SUM = LINEAR || ONE_TAP;
#endif

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int plane = oh * ow;
#ifdef REDUCE
    int segment = plane / lines;
    int extent = (segment + 3) / 4 * 4;
    int pixels = n * lines * extent;
#else
    int pixels = n * plane;
#endif
    int row_blocks = (out_group + BM - 1) / BM;
    int col_blocks = (pixels + BN - 1) / BN;
    int depth = ONE_SUM ? in_group * KH * KW : in_group;
    int chunks = (depth + BK - 1) / BK;
    int steps = ONE_SUM ? chunks : KH * KW * chunks;

    int index = int(flat_group());
    if (index >= SPLIT_K * groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks;
    index /= row_blocks;
    int block_col = index % col_blocks;
    index /= col_blocks;
    int group = index % groups;
    int slice = index / groups;
    int first = slice * steps / SPLIT_K;
    int last = (slice + 1) * steps / SPLIT_K;

    // The column, or the first of four, of b that this invocation loads, and where its window begins.
    int load_col = lane % B_ROW * (BN / B_ROW);
    int load_row = lane / B_ROW;
    int pixel = block_col * BN + load_col;
#ifdef REDUCE
    int image = pixel / extent / lines;
    int place = pixel_of(pixel / extent % lines, pixel % extent, lines, segment);
    bool inside = pixel < pixels && pixel % extent < segment;
#else
    int image = pixel / plane;
    int place = pixel % plane;
    bool inside = pixel < pixels;
#endif
    int iy0 = place / ow * sh - pt;
    int ix0 = place % ow * sw - pl;
    int origin = (image * c_in + group * in_group) * h * w + iy0 * w + ix0;

    int ky = ONE_SUM ? 0 : first / (KW * chunks);
    int kx = ONE_SUM ? 0 : first / chunks % KW;
    int k0 = first % chunks * BK + load_row;
    int a_at = ((group * row_blocks + block_row) * steps + first) * A_VECS;

    REAL4 a_next[A_LOADS];
    B_LOAD b_next[B_LOADS];
#ifdef PROLOGUE
    vec2 factors[B_LOADS];
#endif
    vec4 acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);
    BEGIN_F16_SUMS(REAL4, ACCS)
    BEGIN_F16_DEPTH

    for (int step = first; step <= last; step++) {
        // The k-tile after the one that is multiplied is on its way meanwhile.
        if (step < last) {
            [[unroll]] for (int i = 0; i < A_LOADS; i++) {
                int vec = lane + i * LANES;
                if (A_VECS % LANES == 0 || vec < A_VECS) a_next[i] = LOAD_REAL4(weight, a_at + vec);
            }
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {
                int k = k0 + i * B_STEP;
                int c = ONE_SUM ? k / (KH * KW) : k;
                int y_tap = (ONE_SUM ? k / KW % KH : ky) * dh;
                int x_tap = (ONE_SUM ? k % KW : kx) * dw;
#ifdef VEC4_COLUMNS
                bool ok = inside && k < depth;
                b_next[i] = ok ? LOAD_REAL4(x, (origin + (c * h + y_tap) * w + x_tap) / 4) : REAL4(0.0);
#else
                bool row_ok = inside && iy0 + y_tap >= 0 && iy0 + y_tap < h && k < depth;
                bool ok = row_ok && ix0 + x_tap >= 0 && ix0 + x_tap < w;
                int at = ok ? origin + (c * h + y_tap) * w + x_tap : 0;
                b_next[i] = ok ? LOAD_REAL(x, at) : REAL(0.0);
#endif
#ifdef PROLOGUE
                factors[i] = ok ? factors_of(image, group * in_group + c, c_in) : vec2(0.0);
#endif
            }
            a_at += A_VECS;
            k0 += BK;
            if (!ONE_SUM && k0 - load_row >= depth) {
                k0 = load_row;
                if (++kx == KW) {
                    kx = 0;
                    ky++;
                }
            }
        }
        if (step > first) {
            MULTIPLY_K_TILE(lane, step - 1)
            COUNT_F16_DEPTH(ACCS)
            if (BUFFERS == 1) barrier();
        }
        if (step < last) {
#ifdef PROLOGUE
            // Not where they are loaded: that would wait for them before the product of the last k-tile.
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {
#ifdef VEC4_COLUMNS
                [[unroll]] for (int q = 0; q < 4; q++) b_next[i][q] = REAL(before_product(float(b_next[i][q]), factors[i]));
#else
                b_next[i] = REAL(before_product(float(b_next[i]), factors[i]));
#endif
            }
#endif
            STORE_K_TILE(a_next, b_next, lane, step)
            barrier();
        }
    }
    FLUSH_F16_SUMS(REAL4, vec4, ACCS)
#ifdef SLICED_K
    if (BUFFERS == 2) barrier();
    ADD_TEAMS(lane)
    if (lane >= TEAM) return;
#endif

#ifdef REDUCE
    int column = block_col * BN;
    // Whether a lane's columns are pixels, and where these lie in channel 0 of a result.
    bool is_pixel[TN];
    int result_at[TN];
    [[unroll]] for (int j = 0; j < TN; j++) {
        int p = column + tile_column(lane, j);
        int line = p / extent;
        is_pixel[j] = p < pixels && p % extent < segment;
        int place = pixel_of(line % lines, p % extent, lines, segment);
        result_at[j] = is_pixel[j] ? line / lines * c_out * plane + place : 0;
    }
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = block_row * BM + tile_row(lane, i);
        int co = group * out_group + min(row, out_group - 1);
        Channel channel = channel_of(co);
        [[unroll]] for (int j = 0; j < TN; j++) {
            int to = result_at[j] + co * plane;
            float added = added_at(to, result_at[j] / (c_out * plane), co, result_at[j] % plane);
            float value = finished(acc[i * TN4 + j / 4][j % 4], channel, act_a, act_b, added);
            acc[i * TN4 + j / 4][j % 4] = value;
#ifdef PRODUCT
            if (row < out_group && is_pixel[j]) STORE(product, to, value);
#endif
        }
    }
    [[dont_unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        if (ALONG_CHANNELS) {
            if (reduction > 0) barrier();
            [[unroll]] for (int j = 0; j < TN; j++) {
                float total = nothing(reduction);
                [[unroll]] for (int i = 0; i < TM; i++) {
                    float term = term_of(reduction, acc[i * TN4 + j / 4][j % 4]);
                    if (block_row * BM + tile_row(lane, i) < out_group) total = combined(reduction, total, term);
                }
                partials[lane / LANES_N * BN + tile_column(lane, j)] = total;
            }
            barrier();
            int first_pixel = TO_PARTS ? (group * row_blocks + block_row) * n * plane : 0;
            for (int j = lane; j < BN; j += LANES) {
                float total = nothing(reduction);
                for (int i = 0; i < LANES_M; i++) total = combined(reduction, total, partials[i * BN + j]);
                int p = column + j;
                int pixel_at = first_pixel + p / extent * segment + p % extent;
                if (p < pixels && p % extent < segment) put(reduction, pixel_at, total, divisor);
            }
        } else {
            int first_output = (TO_PARTS ? block_col * slots * c_out : 0) + group * out_group;
            // Only constants index acc: NVIDIA's compiler does not unroll a loop with barriers, and with its index acc
            // would lie in local memory.
            [[dont_unroll]] for (int chunk = 0; chunk < TM4; chunk++) {
                [[unroll]] for (int i = 0; i < TM4; i++) {
                    if (i == chunk) {
                        [[unroll]] for (int r = 0; r < 4; r++) {
                            [[unroll]] for (int j = 0; j < TN4; j++) {
                                float partial = nothing(reduction);
                                [[unroll]] for (int c = 0; c < 4; c++) {
                                    float term = term_of(reduction, acc[(i * 4 + r) * TN4 + j][c]);
                                    if (is_pixel[j * 4 + c]) partial = combined(reduction, partial, term);
                                }
                                partials[partial_at(lane, r, j)] = partial;
                            }
                        }
                    }
                }
                int row = block_row * BM + chunk * CHUNK_ROWS;
                int at = first_output + row;
                reduce_chunk(reduction, lane, column, extent, n * lines, row, out_group, at, c_out, lines, divisor);
            }
        }
    }
#else
    int total = n * c_out * plane;
    // With Y_VEC4 planes are whole vec4, so that four neighbours are of one plane.
    int out_at[TN];
    [[unroll]] for (int j = 0; j < TN; j++) {
        int p = block_col * BN + tile_column(lane, j);
        out_at[j] = p < pixels ? slice * total + (p / plane * c_out + group * out_group) * plane + p % plane : -1;
    }
    // Four rows at a time: what is added to all of them is on its way before the first goes out.
    [[unroll]] for (int i4 = 0; i4 < TM4; i4++) {
        int first_row = block_row * BM + tile_row(lane, i4 * 4);
        vec4 results[4 * TN4];
        [[unroll]] for (int i = 0; i < 4 * TN4; i++) {
            int row = first_row + i / TN4;
            results[i] = vec4(0.0);
            if (SPLIT_K == 1 && Y_VEC4) {
                int at = out_at[i % TN4 * 4];
                if (row < out_group && at >= 0) results[i] = residual4_at((at + row * plane) / 4);
            } else if (SPLIT_K == 1) {
                [[unroll]] for (int c = 0; c < 4; c++) {
                    int at = out_at[i % TN4 * 4 + c];
                    if (row < out_group && at >= 0) results[i][c] = residual_at(at + row * plane);
                }
            }
        }
        [[unroll]] for (int i = 0; i < 4 * TN4; i++) {
            int row = first_row + i / TN4;
            int column = i % TN4 * 4;
            Channel channel = channel_of(group * out_group + min(row, out_group - 1));
            [[unroll]] for (int c = 0; c < 4; c++) {
                float sum = acc[i4 * 4 * TN4 + i][c];
                results[i][c] = SPLIT_K == 1 ? finish(sum, channel, results[i][c]) : sum;
            }
            if (Y_VEC4) {
                int at = out_at[column];
                if (row < out_group && at >= 0) STORE_Y4(y4, (at + row * plane) / 4, results[i]);
            } else {
                [[unroll]] for (int c = 0; c < 4; c++) {
                    int at = out_at[column + c];
                    if (row < out_group && at >= 0) STORE_Y(y, at + row * plane, results[i][c]);
                }
            }
        }
    }
#endif
}
