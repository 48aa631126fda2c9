#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer_matmul.glsl"
#include "dot.glsl"

// A workgroup makes ROWS x COLUMNS outputs from k-tiles of DEPTH words, of four bytes along k, in shared memory, an
// invocation TR rows x 4 neighbouring columns, which are one word of bytes.
const int LOCAL = ROWS / TR * (COLUMNS / 4);

shared uint row_words[DEPTH * ROWS];
shared uint column_words[DEPTH * COLUMNS];

uint bytes4_of_row(int origin, int row, int k0) {
    if (row >= m || k0 >= k) return 0u;
    int at = origin + row * k + k0;
    if (WHOLE_ROWS) return a[at >> 2] ^ flips(A_SIGNED);
    uint bytes4 = 0u;
    [[unroll]] for (int i = 0; i < 4; i++) {
        if (k0 + i < k) bytes4 |= byte_of(a[(at + i) >> 2] ^ flips(A_SIGNED), uint(at + i)) << (8 * i);
    }
    return bytes4;
}

uint bytes4_of_column(int origin, int column, int k0) {
    uint bytes4 = 0u;
    [[unroll]] for (int i = 0; i < 4; i++) {
        int at = origin + (k0 + i) * n + column;
        if (column < n && k0 + i < k) bytes4 |= byte_of(b[at >> 2] ^ flips(B_SIGNED), uint(at)) << (8 * i);
    }
    return bytes4;
}

void main() {
    int row_tiles = (m + ROWS - 1) / ROWS;
    int column_tiles = (n + COLUMNS - 1) / COLUMNS;
    int index = int(flat_group());
    if (index >= batches() * row_tiles * column_tiles) return;
    int of_batch = index / (row_tiles * column_tiles);
    ivec2 origin = batch_origin(of_batch);
    int row0 = index / column_tiles % row_tiles * ROWS;
    int column0 = index % column_tiles * COLUMNS;
    int lane = int(gl_LocalInvocationID.x);

    int acc[TR * 4];
    int a_sum[TR];
    int b_sum[4];
    [[unroll]] for (int i = 0; i < TR * 4; i++) acc[i] = 0;
    [[unroll]] for (int i = 0; i < TR; i++) a_sum[i] = 0;
    [[unroll]] for (int j = 0; j < 4; j++) b_sum[j] = 0;
    int my_row = lane / (COLUMNS / 4) * TR;
    int my_column = lane % (COLUMNS / 4) * 4;
    for (int k0 = 0; k0 < k; k0 += 4 * DEPTH) {
        for (int i = lane; i < DEPTH * ROWS; i += LOCAL) {  // neighbours read neighbouring words
            row_words[i % DEPTH * ROWS + i / DEPTH] = bytes4_of_row(origin.x, row0 + i / DEPTH, k0 + 4 * (i % DEPTH));
        }
        for (int i = lane; i < DEPTH * COLUMNS; i += LOCAL) {
            column_words[i] = bytes4_of_column(origin.y, column0 + i % COLUMNS, k0 + 4 * (i / COLUMNS));
        }
        barrier();
        for (int d = 0; d < DEPTH; d++) {
            uint u[TR];
            uint v[4];
            [[unroll]] for (int i = 0; i < TR; i++) u[i] = row_words[d * ROWS + my_row + i];
            [[unroll]] for (int j = 0; j < 4; j++) v[j] = column_words[d * COLUMNS + my_column + j];
            ADD_PRODUCTS(TR, u, v, acc)
            [[unroll]] for (int i = 0; i < TR; i++) a_sum[i] += sum_of_bytes(u[i]);
            [[unroll]] for (int j = 0; j < 4; j++) b_sum[j] += sum_of_bytes(v[j]);
        }
        barrier();
    }
    ivec2 of_column[4];
    [[unroll]] for (int j = 0; j < 4; j++) of_column[j] = column_axis(min(column0 + my_column + j, n - 1));
    ivec2 of_y = y_axis();
    [[unroll]] for (int i = 0; i < TR; i++) {
        int row = row0 + my_row + i;
        if (row < m) {
            ivec2 of_row = row_axis(row);
            uint result = 0u;
            [[unroll]] for (int j = 0; j < 4; j++) {
                int column = column0 + my_column + j;
                int sum = acc[4 * i + j] - of_column[j].x * a_sum[i] - of_row.x * b_sum[j];
                sum += k * of_row.x * of_column[j].x;
                uint value = finished(sum, scale_of(of_row) * scale_of(of_column[j]), of_y);
                result |= value << (8 * j);
                int at = (of_batch * m + row) * n + column;
                if (RESULT == 0 && column < n) y[at] = value;
                if (RESULT != 0 && j == 3 && column < n) y[at >> 2] = result;
            }
        }
    }
}
