#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef HALF_MATH
#define WIDE 2
#endif
#include "products.glsl"
#include "conv2d.glsl"

// One input channel per group: each invocation makes RY x PX neighbouring outputs of one output channel, so that
// an input row is loaded once for all taps and output rows it serves. The weight address is the same in every lane.
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int ROWS = (RY - 1) * SH + (KH - 1) * DH + 1;
const int TAPS = KH * KW;
const int WIDES = PX / WIDE;
const int ACCS = RY * WIDES;

void main() {
    int columns = (ow + PX - 1) / PX;
    int rows = (oh + RY - 1) / RY;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (rows * columns + local - 1) / local;
    int group = int(flat_group());
    if (group >= n * c_out * blocks) return;
    int block = group % blocks;
    int co = group / blocks % c_out;
    int image = group / blocks / c_out;

    int item = block * local + int(gl_LocalInvocationID.x);
    bool inside = item < rows * columns;
    int oy0 = item / columns * RY;
    int ox0 = item % columns * PX;
    int iy0 = oy0 * SH - pt;
    int ix0 = ox0 * SW - pl;
    int plane = (image * c_in + co / (c_out / c_in)) * h;

    REAL k[TAPS];
    [[unroll]] for (int i = 0; i < TAPS; i++) k[i] = LOAD_REAL(weight, co * TAPS + i);
    REALS acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = REALS(0.0);
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        int iy = iy0 + r;
        bool row_inside = inside && iy >= 0 && iy < h;
        int row = (plane + iy) * w + ix0;
        REAL v[SPAN];
        [[unroll]] for (int i = 0; i < SPAN; i++) {
            bool ok = row_inside && ix0 + i >= 0 && ix0 + i < w;
            v[i] = ok ? LOAD_REAL(x, ok ? row + i : 0) : REAL(0.0);
        }
        [[unroll]] for (int o = 0; o < RY; o++) {
            int reach = r - o * SH;
            if (reach >= 0 && reach % DH == 0 && reach / DH < KH) {
                int ky = reach / DH;
                [[unroll]] for (int kx = 0; kx < KW; kx++) {
                    [[unroll]] for (int p = 0; p < WIDES; p++) {
                        int at = p * WIDE * SW + kx * DW;
                        acc[o * WIDES + p] += k[ky * KW + kx] * TWO(v[at], v[at + SW]);
                    }
                }
            }
        }
    }
    if (!inside) return;
    Channel channel = channel_of(co);
    [[unroll]] for (int o = 0; o < RY; o++) {
        int out_row = ((image * c_out + co) * oh + oy0 + o) * ow + ox0;
        [[unroll]] for (int p = 0; p < PX; p++) {
            int to = out_row + p;
            float sum = float(ONE_OF(acc[o * WIDES + p / WIDE], p % WIDE));
            if (oy0 + o < oh && ox0 + p < ow) STORE_Y(y, to, finish(sum, channel, residual_at(to)));
        }
    }
}
