// Scalar functions by id: one line per row of the table in vkconv/ops/core/activation.py. The id is a specialization
// constant at the call site, so that one line is left after compilation. Comparisons, not min and max, so that
// NaN goes through: GLSL leaves min and max of NaN open. Epilogues leave out what no network has behind a convolution:
// drivers compile every line, and with all of them took twice the time.
#include "math.glsl"

// relu and clip: a zero at a bound is the bound.
float relu(float x) {
    float y = x <= 0.0 ? 0.0 : x;
    return isnan(x) ? x : y;
}
float clip(float x, float lo, float hi) {
    float least = lo > hi ? hi : lo;
    float above = x <= least ? least : x;
    float y = above >= hi ? hi : above;
    return isnan(x) ? x : y;
}
float sigmoid(float x) {
    float e = exp_f32(-abs(x));
    float numerator = x < 0.0 ? e : 1.0;
    return numerator / (1.0 + e);
}
float leaky_relu(float x, float slope) {
    float below = slope * x;
    return x < 0.0 ? below : x;
}
float softplus(float x) { return isnan(x) ? x : (x > 0.0 ? x : 0.0) + log1p_f32(exp_f32(-abs(x))); }
// x e^x where e^x is near the smallest normal number.
float mish(float x) { return x < -80.0 ? exp_times(x, x) : x * tanh_f32(softplus(x)); }
float elu(float x, float alpha) {
    float below = alpha * expm1_f32(x);
    return x < 0.0 ? below : x;
}
// x / alpha may be subnormal, and e^(x / alpha) infinite where alpha times that is not.
float celu(float x, float alpha) {
    float u = x / alpha;
    float root = exp_f32(0.5 * u);
    float far = u > 80.0 ? alpha * root * root : alpha * expm1_f32(u);
    float below = abs(u) < 1e-4 ? x + 0.5 * x * u : far;
    return x < 0.0 ? below : x;
}
float hard_sigmoid(float x, float alpha, float beta) { return clip(alpha * x + beta, 0.0, 1.0); }
float shrink(float x, float lambda, float bias) { return x > lambda ? x - bias : x < -lambda ? x + bias : isnan(x) ? x : 0.0; }

// What is rounded to 16 bits needs fewer operations: behind a product of few terms there were as many as in the product
// (H200, f16, 100352x96 by 96x384: 66 us without an activation, 134 with gelu).
#ifdef DTYPE_f16
// x / (1 + e^-u) where u is x, or x is 1. Below e^-87 nothing is left of it; -inf gives NaN, as -inf times 0 does.
float gated_16(float x, float u) {
    float e = exp_below(-abs(u));
    float y = x / (1.0 + e);
    return u < 0.0 ? y * e : y;
}
float sigmoid_of(float x) { return gated_16(1.0, x); }
float silu_of(float x) { return gated_16(x, x); }
#else
float sigmoid_of(float x) { return sigmoid(x); }
float silu_of(float x) { return silu_f32(x); }
#endif
#if defined(DTYPE_f16) || defined(DTYPE_bf16)
// erfc(|x|/sqrt(2))/2 as t P(t) exp(-x^2/2), t = 1/(1 + 0.31 |x|): least squares of the relative error on [0, 14],
// weighted until it was even there, 5e-6. What is off in it is off in the part of x that the result is less than x.
float gelu_of(float x) {
    float t = 1.0 / (1.0 + 0.31 * abs(x));
    float p = t * (0.12386061 + t * (0.12044232 + t * (0.1334254 + t * (0.01575338 + t * (0.18044223
              + t * -0.07392625)))));
    float below = p * exp2(x * x * -0.72134752);
    return x * (x < 0.0 ? below : 1.0 - below);
}
// (1 + tanh(u))/2 is 1/(1 + e^-2u).
float gelu_tanh_of(float x) {
    float u = 2.30220816 * (x + 0.044715 * x * x * x);
    float e = exp2(-abs(u));
    float y = x / (1.0 + e);
    return u < 0.0 ? y * e : y;
}
#else
// x (1/2 + x Q(x^2)) for |x| < 1.4, Q interpolating to 5e-10; else the same as in 16 bits with t = 1/(1 + 0.34 |x|), to
// 3e-7 of what is at most 0.08. A quarter fewer cycles than by erf_f32, as GA102's compiler counts them.
float gelu_of(float x) {
    float q = x * x;
    float near = 0.5 + x * (0.398942292 + q * (-0.0664903596 + q * (0.00997337885 + q * (-0.00118678913
                 + q * (0.000114651841 + q * (-8.85146983e-06 + q * 4.33966306e-07))))));
    float t = 1.0 / (1.0 + 0.34 * abs(x));
    float p = t * (0.135671094 + t * (0.134961724 + t * (0.125953928 + t * (0.0615031831 + t * (0.112723231
              + t * -0.0714939684)))));
    EXP_BELOW(-0.5 * q, e)
    float below = p * e;
    float far = x < 0.0 ? below : 1.0 - below;
    return x * (abs(x) < 1.4 ? near : far);
}
float gelu_tanh_of(float x) { return 0.5 * x * (1.0 + tanh_f32(0.79788456 * (x + 0.044715 * x * x * x))); }
#endif

float activate(uint id, float x, float a, float b) {
    switch (id) {
    case 0: return x;  // none
    case 1: return relu(x);  // relu
    case 2: return clip(x, 0.0, 6.0);  // relu6
    case 3: return clip(x, a, b);  // clip
    case 4: return x * hard_sigmoid(x, 1.0 / 6.0, 0.5);  // hard_swish
    case 5: return hard_sigmoid(x, a, b);  // hard_sigmoid
    case 6: return sigmoid_of(x);  // sigmoid
    case 7: return silu_of(x);  // silu
    case 8: return leaky_relu(x, a);  // leaky_relu
    case 9: return gelu_of(x);  // gelu
    case 10: return gelu_tanh_of(x);  // gelu_tanh
    case 11: return tanh_f32(x);  // tanh
    case 12: return elu(x, a);  // elu
    case 13: return b * elu(x, a);  // selu
    case 14: return celu(x, a);  // celu
    case 15: return softplus(x);  // softplus
    case 16: return x / (1.0 + abs(x));  // softsign
    case 17: return mish(x);  // mish
    case 18: return isnan(x) || x > a ? x : 0.0;  // thresholded_relu
    case 19: return exp_f32(x);  // exp
    case 20: return log_f32(x);  // log
    case 21: return sqrt(x);  // sqrt
    case 22: return 1.0 / x;  // reciprocal
    case 23: return abs(x);  // abs
    case 24: return -x;  // neg
    case 25: return floor(x);  // floor
    case 26: return ceil(x);  // ceil
    case 27: return roundEven(x);  // round
    case 28: return isnan(x) ? x : float(x > 0.0) - float(x < 0.0);  // sign
    case 29: return erf_f32(x);  // erf
    case 30: return sin_f32(x);  // sin
    case 31: return cos_f32(x);  // cos
#ifdef EVERY_FUNCTION
    case 32: return tan_f32(x);  // tan
    case 33: return asin_f32(x);  // asin
    case 34: return acos_f32(x);  // acos
    case 35: return atan_f32(x);  // atan
    case 36: return sinh_f32(x);  // sinh
    case 37: return cosh_f32(x);  // cosh
    case 38: return asinh_f32(x);  // asinh
    case 39: return acosh_f32(x);  // acosh
    case 40: return atanh_f32(x);  // atanh
    case 41: return shrink(x, a, b);  // shrink
#endif
    }
    return x;
}
