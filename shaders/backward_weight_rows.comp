#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "backward_weight.glsl"

// Without shared memory or barriers: a lane is an input channel, a row of the kernel and TAPS_X neighbouring taps of
// it, and holds ROWS output channels by those taps. It walks PX neighbouring pixels of dy at a time, whose address is
// the same in every lane; the SPAN inputs of x that they meet are loaded once for all taps and channels. Pixels of a
// row beyond the last whole PX come one by one. With ACROSS_GROUPS the lanes go on over the groups, where those are too
// narrow to fill a workgroup, and each loads dy of its own.
layout(constant_id = 7) const int ROWS = 8;
layout(constant_id = 8) const int PX = 8;
layout(constant_id = 9) const int TAPS_X = 3;
layout(constant_id = 10) const int SW = 1;
layout(constant_id = 11) const int DW = 1;
layout(constant_id = 12) const bool ACROSS_GROUPS = false;
const int SPAN = (PX - 1) * SW + (TAPS_X - 1) * DW + 1;
const int ACCS = ROWS * TAPS_X;

// A place in a box: image, depth and row of dy, and columns from the box's first.
ivec4 place(int at, ivec4 size, int columns) {
    ivec4 p;
    p.w = at % columns;
    at /= columns;
    p.z = at % size.z;
    at /= size.z;
    p.y = at % size.y;
    p.x = at / size.y;
    return p;
}

// One column on; a row, a depth or an image where that was the last.
void advance(inout ivec4 p, ivec4 size, int columns) {
    bool end_w = p.w + 1 == columns;
    p.w = end_w ? 0 : p.w + 1;
    bool end_z = end_w && p.z + 1 == size.z;
    p.z = end_z ? 0 : end_w ? p.z + 1 : p.z;
    bool end_y = end_z && p.y + 1 == size.y;
    p.y = end_y ? 0 : end_z ? p.y + 1 : p.y;
    p.x = end_y ? p.x + 1 : p.x;
}

void main() {
    int rows = c_out / groups;
    int in_group = c_in / groups;
    int local = int(gl_WorkGroupSize.x);
    int blocks_x = (kw + TAPS_X - 1) / TAPS_X;
    int in_kernel = kd * kh * blocks_x;
    int across = (ACROSS_GROUPS ? groups : 1) * in_group * in_kernel;
    int blocks = (across + local - 1) / local;
    int row_tiles = (rows + ROWS - 1) / ROWS;
    int outer = ACROSS_GROUPS ? 1 : groups;
    int index = int(flat_group());
    if (index >= part_count() * outer * row_tiles * blocks) return;
    int block = index % blocks;
    index /= blocks;
    int row0 = index % row_tiles * ROWS;
    index /= row_tiles;
    int part = index / outer;

    int unit = block * local + int(gl_LocalInvocationID.x);
    bool inside = unit < across;
    int column = inside ? unit : 0;
    int kx = column % blocks_x * TAPS_X;
    column /= blocks_x;
    int ky = column % kh;
    column /= kh;
    int kz = column % kd;
    int channel = column / kd;  // of the group, or of all
    int group = ACROSS_GROUPS ? channel / in_group : index % outer;
    channel = ACROSS_GROUPS ? channel : group * in_group + channel;

    ivec4 first, size;
    int cut;
    box_of(part, first, size, cut);
    int lines = size.x * size.y * size.z;
    int whole = size.w / PX;
    int rest = size.w - whole * PX;
    int plane = od * oh * ow;
    // Output channels past the end repeat the last one and are not stored.
    int row_at[ROWS];
    [[unroll]] for (int m = 0; m < ROWS; m++) row_at[m] = (group * rows + min(row0 + m, rows - 1)) * plane;

    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;

    int end = first_of(cut + 1, lines * whole);
    int at = first_of(cut, lines * whole);
    ivec4 p = at < end ? place(at, size, whole) : ivec4(0);
    for (; at < end; at++) {
        int image = first.x + p.x;
        int oz = first.y + p.y;
        int oy = first.z + p.z;
        int ox = first.w + p.w * PX;
        int iz = oz * sd + kz * dd - pf;
        int iy = oy * sh + ky * dh - pt;
        int ix = ox * SW + kx * DW - pl;
        bool line_ok = !PADDED || (uint(iy) < uint(h) && uint(iz) < uint(d));
        int x_at = (((image * c_in + channel) * d + iz) * h + iy) * w + ix;
        float v[SPAN];
        [[unroll]] for (int i = 0; i < SPAN; i++) {
            bool ok = line_ok && (uint(ix + i) < uint(w) || (!PADDED && kw % TAPS_X == 0));
            v[i] = ok ? TO_F32(x[ok ? x_at + i : 0]) : 0.0;
        }
        int dy_at = image * c_out * plane + (oz * oh + oy) * ow + ox;
        [[unroll]] for (int m = 0; m < ROWS; m++) {
            [[unroll]] for (int q = 0; q < PX; q++) {
                float u = TO_F32(dy[dy_at + row_at[m] + q]);
                [[unroll]] for (int t = 0; t < TAPS_X; t++) acc[m * TAPS_X + t] += u * v[q * SW + t * DW];
            }
        }
        advance(p, size, whole);
    }

    end = first_of(cut + 1, lines * rest);
    at = first_of(cut, lines * rest);
    p = at < end ? place(at, size, rest) : ivec4(0);
    for (; at < end; at++) {
        int image = first.x + p.x;
        int oz = first.y + p.y;
        int oy = first.z + p.z;
        int ox = first.w + whole * PX + p.w;
        int iz = oz * sd + kz * dd - pf;
        int iy = oy * sh + ky * dh - pt;
        int ix = ox * SW + kx * DW - pl;
        bool line_ok = !PADDED || (uint(iy) < uint(h) && uint(iz) < uint(d));
        int x_at = (((image * c_in + channel) * d + iz) * h + iy) * w + ix;
        float v[TAPS_X];
        [[unroll]] for (int t = 0; t < TAPS_X; t++) {
            bool ok = line_ok && uint(ix + t * DW) < uint(w);
            v[t] = ok ? TO_F32(x[ok ? x_at + t * DW : 0]) : 0.0;
        }
        int dy_at = image * c_out * plane + (oz * oh + oy) * ow + ox;
        [[unroll]] for (int m = 0; m < ROWS; m++) {
            float u = TO_F32(dy[dy_at + row_at[m]]);
            [[unroll]] for (int t = 0; t < TAPS_X; t++) acc[m * TAPS_X + t] += u * v[t];
        }
        advance(p, size, rest);
    }

    if (!inside) return;
    int columns = in_group * kd * kh * kw;
    int total = c_out * columns;
    int in_w = ((channel - group * in_group) * kd + kz) * kh * kw + ky * kw + kx;
    [[unroll]] for (int m = 0; m < ROWS; m++) {
        [[unroll]] for (int t = 0; t < TAPS_X; t++) {
            if (row0 + m < rows && kx + t < kw) {
                store(part, (group * rows + row0 + m) * columns + in_w + t, total, acc[m * TAPS_X + t]);
            }
        }
    }
}
