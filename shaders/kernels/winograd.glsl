// Winograd's minimal filtering F(M x M, R x R) in one dimension, M + R - 1 = T points: 0, 1, -1, infinity for T = 4, 2, -2
// besides for T = 6, and 1/2, -1/2 for T = 8 (Lavin and Gray 2015, arXiv:1509.09308, equations 8 to 15). A polynomial's
// value at a point p is divided by the product of p's distances to the other points where the weights are transformed:
// for T = 6 4 for 0, -6 for 1 and -1, 24 for 2 and -2; for T = 8 -1 for 0, of which inputs take the sign, -9/2, 90, and
// 45/32 for 1/2 and -1/2. M and R are 2 and 3, 4 and 3, 2 and 5, or 4 and 5.
#extension GL_EXT_control_flow_attributes : require

const int T = M + R - 1;
const int MOST_T = 8;  // a line is as long for each T

// Inputs in 16 bits are transformed to a quarter: with T = 4 no sum of them is then beyond the largest number of f16.
// Sums of products of theirs are four times what they are.
#if defined(DTYPE_f16) || defined(DTYPE_bf16)
#ifdef Y_F32
const float INPUT_SCALE = 1.0;
#else
const float INPUT_SCALE = 0.25;
#endif
#ifdef X_F32
const float SUM_SCALE = 1.0;
#else
const float SUM_SCALE = 4.0;
#endif
#else
const float INPUT_SCALE = 1.0, SUM_SCALE = 1.0;
#endif

float[MOST_T] of_four(float a, float b, float c, float d) { return float[MOST_T](a, b, c, d, 0.0, 0.0, 0.0, 0.0); }

float[MOST_T] of_six(float a, float b, float c, float d, float e, float f) {
    return float[MOST_T](a, b, c, d, e, f, 0.0, 0.0);
}

// T inputs of a tile to the domain of products.
void transform_input(inout float d[MOST_T]) {
    if (T == 4) {
        d = of_four(d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]);
        return;
    }
    if (T == 6) {
        float even = d[4] - 4.0 * d[2], odd = d[3] - 4.0 * d[1];
        float even2 = d[4] - d[2], odd2 = 2.0 * (d[3] - d[1]);
        d = of_six(
            4.0 * d[0] - 5.0 * d[2] + d[4], even + odd, even - odd, even2 + odd2, even2 - odd2,
            4.0 * d[1] - 5.0 * d[3] + d[5]);
        return;
    }
    float even = d[2] + d[6] - 4.25 * d[4], odd = d[1] + d[5] - 4.25 * d[3];
    float even2 = 0.25 * d[2] - 1.25 * d[4] + d[6], odd2 = 0.5 * d[1] - 2.5 * d[3] + 2.0 * d[5];
    float even_half = 4.0 * d[2] - 5.0 * d[4] + d[6], odd_half = 2.0 * d[1] - 2.5 * d[3] + 0.5 * d[5];
    d = float[MOST_T](
        d[0] - d[6] + 5.25 * (d[4] - d[2]), even + odd, even - odd, even2 + odd2, even2 - odd2,
        even_half + odd_half, even_half - odd_half, d[7] - d[1] + 5.25 * (d[3] - d[5]));
}

// R taps to the domain of products.
void transform_weight(float g[R], out float u[MOST_T]) {
    if (T == 4) {
        u = of_four(g[0], 0.5 * (g[0] + g[1] + g[2]), 0.5 * (g[0] - g[1] + g[2]), g[2]);
        return;
    }
    if (T == 6) {
        float even = -(g[0] + g[2]) / 6.0, odd = -g[1] / 6.0;
        float even2 = g[0] / 24.0 + g[2] / 6.0, odd2 = g[1] / 12.0;
        if (R == 5) {
            even -= g[R - 1] / 6.0;
            odd -= g[R - 2] / 6.0;
            even2 += g[R - 1] / 1.5;
            odd2 += g[R - 2] / 3.0;
        }
        u = of_six(0.25 * g[0], even + odd, even - odd, even2 + odd2, even2 - odd2, g[R - 1]);
        return;
    }
    float g3 = g[R - 2], g4 = g[R - 1];
    float even = -(g[0] + g[2] + g4) / 4.5, odd = -(g[1] + g3) / 4.5;
    float even2 = (g[0] + 4.0 * g[2] + 16.0 * g4) / 90.0, odd2 = (g[1] + 4.0 * g3) / 45.0;
    float even_half = (16.0 * g[0] + 4.0 * g[2] + g4) / 22.5, odd_half = (4.0 * g[1] + g3) / 11.25;
    u = float[MOST_T](
        g[0], even + odd, even - odd, even2 + odd2, even2 - odd2, even_half + odd_half, even_half - odd_half, g4);
}

// T sums of products to M outputs, in the first M elements.
void transform_output(inout float m[MOST_T]) {
    if (T == 4) {
        m = of_four(m[0] + m[1] + m[2], m[1] - m[2] - m[3], 0.0, 0.0);
        return;
    }
    float sum = m[1] + m[2], difference = m[1] - m[2], sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    if (M == 2) {
        m = of_four(m[0] + sum + sum2, difference + 2.0 * difference2 + m[5], 0.0, 0.0);
        return;
    }
    if (T == 6) {
        m = of_four(
            m[0] + sum + sum2, difference + 2.0 * difference2, sum + 4.0 * sum2,
            difference + 8.0 * difference2 + m[5]);
        return;
    }
    float sum_half = m[5] + m[6], difference_half = m[5] - m[6];
    m = of_four(
        m[0] + sum + sum2 + sum_half, difference + 2.0 * difference2 + 0.5 * difference_half,
        sum + 4.0 * sum2 + 0.25 * sum_half, difference + 8.0 * difference2 + 0.125 * difference_half + m[7]);
}

// The transposes of the last two, for the gradient by the weights. M gradients of outputs to the domain of products:
void transform_output_gradient(inout float m[MOST_T]) {
    if (T == 4) {
        m = of_four(m[0], m[0] + m[1], m[0] - m[1], -m[1]);
        return;
    }
    if (M == 2) {
        float twice = 2.0 * m[1];
        m = of_six(m[0], m[0] + m[1], m[0] - m[1], m[0] + twice, m[0] - twice, m[1]);
        return;
    }
    float even = m[0] + m[2], odd = m[1] + m[3], even2 = m[0] + 4.0 * m[2], odd2 = 2.0 * m[1] + 8.0 * m[3];
    if (T == 6) {
        m = of_six(m[0], even + odd, even - odd, even2 + odd2, even2 - odd2, m[3]);
        return;
    }
    float even_half = m[0] + 0.25 * m[2], odd_half = 0.5 * m[1] + 0.125 * m[3];
    m = float[MOST_T](
        m[0], even + odd, even - odd, even2 + odd2, even2 - odd2, even_half + odd_half, even_half - odd_half, m[3]);
}

// T sums of products to the gradients of R taps, in the first R elements.
void transform_weight_gradient(inout float u[MOST_T]) {
    if (T == 4) {
        u = of_four(u[0] + 0.5 * (u[1] + u[2]), 0.5 * (u[1] - u[2]), u[3] + 0.5 * (u[1] + u[2]), 0.0);
        return;
    }
    float sum = u[1] + u[2], difference = u[1] - u[2], sum2 = u[3] + u[4], difference2 = u[3] - u[4];
    if (T == 6) {
        float g0 = 0.25 * u[0] - sum / 6.0 + sum2 / 24.0, g1 = difference2 / 12.0 - difference / 6.0;
        float g2 = (sum2 - sum) / 6.0;
        if (R == 3) {
            u = of_four(g0, g1, g2 + u[5], 0.0);
            return;
        }
        u = of_six(g0, g1, g2, difference2 / 3.0 - difference / 6.0, sum2 / 1.5 - sum / 6.0 + u[5], 0.0);
        return;
    }
    float sum_half = (u[5] + u[6]) / 22.5, difference_half = (u[5] - u[6]) / 22.5;
    sum /= -4.5;
    difference /= -4.5;
    sum2 /= 90.0;
    difference2 /= 90.0;
    u = of_six(
        u[0] + sum + sum2 + 16.0 * sum_half, difference + 2.0 * difference2 + 8.0 * difference_half,
        sum + 4.0 * (sum2 + sum_half), difference + 8.0 * difference2 + 2.0 * difference_half,
        sum + 16.0 * sum2 + sum_half + u[7], 0.0);
}
