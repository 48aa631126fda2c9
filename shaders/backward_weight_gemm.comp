#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "backward_weight.glsl"

// Implicit GEMM of each group: (output channels) x (input channels and taps), summed over images and pixels of dy. Both
// operands lie along the pixels, so that neighbouring lanes load neighbouring pixels, and slices of BK pixels are
// turned as they go to shared memory; a pixel's place is worked out once for all rows and columns that a lane loads.
// A workgroup makes BM x BN outputs of one part; each invocation holds TM x TN of them as blocks of 4 x 4 that lie
// BM / (TM / 4) rows and BN / (TN / 4) columns apart. Local size is (BM / TM) * (BN / TN), a multiple of BK.
layout(constant_id = 7) const int BM = 64;
layout(constant_id = 8) const int BN = 64;
layout(constant_id = 9) const int BK = 8;
layout(constant_id = 10) const int TM = 8;
layout(constant_id = 11) const int TN = 8;
layout(constant_id = 12) const int KD = 1;
layout(constant_id = 13) const int KH = 3;
layout(constant_id = 14) const int KW = 3;
const int TAPS = KD * KH * KW;
const int TM4 = TM / 4;
const int TN4 = TN / 4;
const int LANES_M = BM / TM;
const int LANES_N = BN / TN;
const int LANES = LANES_M * LANES_N;
const int STEP = LANES / BK;  // rows or columns between two loads of an invocation
const int A_LOADS = (BM + STEP - 1) / STEP;
const int B_LOADS = (BN + STEP - 1) / STEP;
const int ACCS = TM * TN4;
// One vec4 more than a row has: the lanes of a subgroup store to different banks.
const int A_ROW = BM / 4 + 1;
const int B_ROW = BN / 4 + 1;

shared vec4 a_tile[BK * A_ROW];
shared vec4 b_tile[BK * B_ROW];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int rows = c_out / groups;
    int in_group = c_in / groups;
    int columns = in_group * TAPS;
    int row_blocks = (rows + BM - 1) / BM;
    int col_blocks = (columns + BN - 1) / BN;
    int index = int(flat_group());
    if (index >= part_count() * groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks * BM;
    index /= row_blocks;
    int block_col = index % col_blocks * BN;
    index /= col_blocks;
    int group = index % groups;
    int part = index / groups;

    ivec4 first, size;
    int cut;
    box_of(part, first, size, cut);
    int pixels = size.x * size.y * size.z * size.w;
    int slices = (pixels + BK - 1) / BK;
    int begin = first_of(cut, slices);
    int end = first_of(cut + 1, slices);

    int load_pixel = lane % BK;
    int load_row = lane / BK;
    int plane = od * oh * ow;
    int offset[B_LOADS];
    int reach_y[B_LOADS];
    int reach_x[B_LOADS];
    int reach_z[B_LOADS];
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {
        // Columns past the end repeat the last one and are not stored.
        int column = min(block_col + load_row + i * STEP, columns - 1);
        reach_x[i] = column % KW * dw;
        reach_y[i] = column / KW % KH * dh;
        reach_z[i] = DEEP ? column / (KW * KH) % KD * dd : 0;
        offset[i] = ((column / TAPS * d + reach_z[i]) * h + reach_y[i]) * w + reach_x[i];
    }

    float a_next[A_LOADS];
    float b_next[B_LOADS];
    vec4 acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);

    for (int slice = begin; slice <= end; slice++) {
        // The slice after the one that is multiplied is on its way meanwhile.
        if (slice < end) {
            int pixel = slice * BK + load_pixel;
            bool inside = pixel < pixels;
            int at = inside ? pixel : 0;
            int ox = first.w + at % size.w;
            at /= size.w;
            int oy = first.z + at % size.z;
            at /= size.z;
            int oz = DEEP ? first.y + at % size.y : 0;
            int image = first.x + (DEEP ? at / size.y : at);
            int a_at = (image * c_out + group * rows) * plane + (oz * oh + oy) * ow + ox;
            [[unroll]] for (int i = 0; i < A_LOADS; i++) {
                int row = block_row + load_row + i * STEP;
                bool ok = inside && row < rows && (BM % STEP == 0 || load_row + i * STEP < BM);
                a_next[i] = ok ? TO_F32(dy[ok ? a_at + row * plane : 0]) : 0.0;
            }
            int ix = ox * sw - pl;
            int iy = oy * sh - pt;
            int iz = DEEP ? oz * sd - pf : 0;
            int b_at = (((image * c_in + group * in_group) * d + iz) * h + iy) * w + ix;
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {
                bool ok = inside && (BN % STEP == 0 || load_row + i * STEP < BN);
                if (PADDED) {
                    ok = ok && uint(iy + reach_y[i]) < uint(h) && uint(ix + reach_x[i]) < uint(w);
                    if (DEEP) ok = ok && uint(iz + reach_z[i]) < uint(d);
                }
                b_next[i] = ok ? TO_F32(x[ok ? b_at + offset[i] : 0]) : 0.0;
            }
        }
        if (slice > begin) {
            [[unroll]] for (int k = 0; k < BK; k++) {
                vec4 v[TN4];
                [[unroll]] for (int j = 0; j < TN4; j++) v[j] = b_tile[k * B_ROW + j * LANES_N + lane % LANES_N];
                [[unroll]] for (int i = 0; i < TM4; i++) {
                    vec4 u = a_tile[k * A_ROW + i * LANES_M + lane / LANES_N];
                    [[unroll]] for (int r = 0; r < 4; r++) {
                        [[unroll]] for (int j = 0; j < TN4; j++) acc[(i * 4 + r) * TN4 + j] += u[r] * v[j];
                    }
                }
            }
            barrier();
        }
        if (slice < end) {
            [[unroll]] for (int i = 0; i < A_LOADS; i++) {
                int row = load_row + i * STEP;
                if (BM % STEP == 0 || row < BM) a_tile[load_pixel * A_ROW + row / 4][row % 4] = a_next[i];
            }
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {
                int column = load_row + i * STEP;
                if (BN % STEP == 0 || column < BN) b_tile[load_pixel * B_ROW + column / 4][column % 4] = b_next[i];
            }
            barrier();
        }
    }

    int total = c_out * columns;
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = block_row + (i / 4 * LANES_M + lane / LANES_N) * 4 + i % 4;
        [[unroll]] for (int j = 0; j < TN; j++) {
            int column = block_col + (j / 4 * LANES_N + lane % LANES_N) * 4 + j % 4;
            if (row < rows && column < columns) {
                store(part, (group * rows + row) * columns + column, total, acc[i * TN4 + j / 4][j % 4]);
            }
        }
    }
}
