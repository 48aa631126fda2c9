// Products of matrices of signed bytes (integer.glsl): what their shaders share. Sums are of 32 bits, and wrap.

#include "integer.glsl"

// Zero point and bits of the factor of each row and of each column, then the zero point and bits of the scale of y. One
// of the two factors is 1, but where rows and columns have scales of their own: then the factors are these.

int batches() { return batch[0] * batch[1] * batch[2] * batch[3]; }

// First elements of the matrices of one batch in a and b.
ivec2 batch_origin(int index) {
    ivec2 origin = ivec2(0);
    for (int i = 3; i >= 0; i--) {
        int at = index % batch[i];
        index /= batch[i];
        origin += at * ivec2(a_batch[i], b_batch[i]);
    }
    return origin;
}

ivec2 row_axis(int row) { return axes[row % own_rows]; }

ivec2 y_axis() { return axes[own_rows + n]; }

ivec2 column_axis(int column) { return axes[own_rows + column]; }

// What is stored for a sum of products: itself, or the byte that it becomes.
uint finished(int sum, float scale, ivec2 y_axis) {
    if (RESULT == 0) return uint(sum);
#ifdef SCALES_OF_BOTH
    float v = BOTH ? scale_to_round(float(sum), scale, intBitsToFloat(y_axis.y)) : float(sum) * scale;
#else
    float v = float(sum) * scale;
#endif
    return uint(saturated(v, y_axis.x, RESULT == 2)) & 0xFFu;
}

float scale_of(ivec2 axis) { return intBitsToFloat(axis.y); }
