// Winograd's minimal filtering F(M x M, 3 x 3) in one dimension, M + 2 = T points: 0, 1, -1, infinity for M = 2, and
// 2, -2 besides for M = 4 (Lavin and Gray 2015, arXiv:1509.09308, equations 8 to 15).
#extension GL_EXT_control_flow_attributes : require

const int T = M + 2;

// T inputs of a tile to the domain of products.
void transform_input(inout float d[6]) {
    if (M == 2) {
        d = float[6](d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3], 0.0, 0.0);
        return;
    }
    float even = d[4] - 4.0 * d[2], odd = d[3] - 4.0 * d[1];
    float even2 = d[4] - d[2], odd2 = 2.0 * (d[3] - d[1]);
    d = float[6](
        4.0 * d[0] - 5.0 * d[2] + d[4], even + odd, even - odd, even2 + odd2, even2 - odd2,
        4.0 * d[1] - 5.0 * d[3] + d[5]);
}

// 3 taps to the domain of products.
void transform_weight(float g0, float g1, float g2, out float u[6]) {
    if (M == 2) {
        u = float[6](g0, 0.5 * (g0 + g1 + g2), 0.5 * (g0 - g1 + g2), g2, 0.0, 0.0);
        return;
    }
    float even = -(g0 + g2) / 6.0, odd = -g1 / 6.0;
    float even2 = g0 / 24.0 + g2 / 6.0, odd2 = g1 / 12.0;
    u = float[6](0.25 * g0, even + odd, even - odd, even2 + odd2, even2 - odd2, g2);
}

// T sums of products to M outputs, in the first M elements.
void transform_output(inout float m[6]) {
    if (M == 2) {
        m = float[6](m[0] + m[1] + m[2], m[1] - m[2] - m[3], 0.0, 0.0, 0.0, 0.0);
        return;
    }
    float sum = m[1] + m[2], difference = m[1] - m[2], sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    m = float[6](
        m[0] + sum + sum2, difference + 2.0 * difference2, sum + 4.0 * sum2, difference + 8.0 * difference2 + m[5],
        0.0, 0.0);
}

// The transposes of the last two, for the gradient by the weights. M gradients of outputs to the domain of products:
void transform_output_gradient(inout float m[6]) {
    if (M == 2) {
        m = float[6](m[0], m[0] + m[1], m[0] - m[1], -m[1], 0.0, 0.0);
        return;
    }
    float even = m[0] + m[2], odd = m[1] + m[3], even2 = m[0] + 4.0 * m[2], odd2 = 2.0 * m[1] + 8.0 * m[3];
    m = float[6](m[0], even + odd, even - odd, even2 + odd2, even2 - odd2, m[3]);
}

// T sums of products to the gradients of 3 taps, in the first 3 elements.
void transform_weight_gradient(inout float u[6]) {
    if (M == 2) {
        u = float[6](u[0] + 0.5 * (u[1] + u[2]), 0.5 * (u[1] - u[2]), u[3] + 0.5 * (u[1] + u[2]), 0.0, 0.0, 0.0);
        return;
    }
    float sum = u[1] + u[2], sum2 = u[3] + u[4];
    u = float[6](
        0.25 * u[0] - sum / 6.0 + sum2 / 24.0, (u[2] - u[1]) / 6.0 + (u[3] - u[4]) / 12.0, (sum2 - sum) / 6.0 + u[5],
        0.0, 0.0, 0.0);
}
