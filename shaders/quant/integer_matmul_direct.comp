#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define SCALES_OF_BOTH
#include "integer_matmul.glsl"

// By definition, one sum or the four bytes of a word per invocation.
void main() {
    uint word = flat_index();
    uint count = uint(batches() * m) * uint(n);
    uint each = RESULT == 0 ? 1u : 4u;
    if (word >= (count + each - 1) / each) return;
    uint result = 0u;
    for (uint e = 0; e < each; e++) {
        uint index = word * each + e;
        if (index >= count) break;
        int column = int(index % uint(n));
        int row = int(index / uint(n)) % m;
        ivec2 origin = batch_origin(int(index / uint(n)) / m);
        ivec2 of_row = row_axis(row), of_column = column_axis(column);
        int sum = 0;
        for (int i = 0; i < k; i++) {
            int a_at = origin.x + row * k + i;
            int b_at = origin.y + i * n + column;
            int u = signed_byte(a[a_at >> 2] ^ flips(A_SIGNED), uint(a_at)) - of_row.x;
            sum += u * (signed_byte(b[b_at >> 2] ^ flips(B_SIGNED), uint(b_at)) - of_column.x);
        }
        result |= finished(sum, scale_of(of_row) * scale_of(of_column), y_axis()) << (8 * e);
    }
    y[word] = result;
}
