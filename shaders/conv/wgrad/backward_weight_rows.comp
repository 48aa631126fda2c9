#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "backward_weight.glsl"

// Without shared memory or barriers. A run is TAPS_X neighbouring taps of a row of the kernel, of an input channel; a
// lane has RUNS of them that follow each other, and holds ROWS output channels by their taps. It walks PX neighbouring
// pixels of dy at a time, whose address is the same in every lane; the SPAN inputs of x that they meet in a run are
// loaded once for all taps and channels. Pixels of a row beyond the last whole PX come one by one. With SUBGROUPS the
// lanes of a subgroup load dy for each other and shuffle it: a driver may load lane by lane also where addresses agree.
// With ACROSS_GROUPS the lanes go on over the groups, where those are too narrow to fill a workgroup, and each loads dy
// of its own: its runs are of one group.
const int SPAN = (PX - 1) * SW + (TAPS_X - 1) * DW + 1;
const int ACCS = ROWS * RUNS * TAPS_X;

#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
// dy of ROWS output channels x PIXELS neighbours lies in this order in the lanes; AT is where those of a lane are.
#define LANE_LOADS(PIXELS) ((ROWS * PIXELS + SUBGROUP - 1) / SUBGROUP)
#define PLACE(PIXELS, AT)                                                                       \
    int AT[LANE_LOADS(PIXELS)];                                                                 \
    [[unroll]] for (int i = 0; i < LANE_LOADS(PIXELS); i++) {                                   \
        int which = min(i * SUBGROUP + int(gl_SubgroupInvocationID), ROWS * PIXELS - 1);        \
        AT[i] = (group * rows + min(row0 + which / PIXELS, rows - 1)) * plane + which % PIXELS; \
    }
#define LOAD_DY(PIXELS, AT)            \
    float lane_dy[LANE_LOADS(PIXELS)]; \
    [[unroll]] for (int i = 0; i < LANE_LOADS(PIXELS); i++) lane_dy[i] = LOAD(dy, dy_at + AT[i]);
#define DY(PIXELS, AT, m, q) subgroupShuffle(lane_dy[((m) * PIXELS + (q)) / SUBGROUP], ((m) * PIXELS + (q)) % SUBGROUP)
#else
// Output channels past the end repeat the last one and are not stored.
#define PLACE(PIXELS, AT) \
    int AT[ROWS];         \
    [[unroll]] for (int m = 0; m < ROWS; m++) AT[m] = (group * rows + min(row0 + m, rows - 1)) * plane;
#define LOAD_DY(PIXELS, AT)
#define DY(PIXELS, AT, m, q) LOAD(dy, dy_at + AT[m] + (q))
#endif

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
    int blocks = (across + local * RUNS - 1) / (local * RUNS);
    int row_tiles = (rows + ROWS - 1) / ROWS;
    int outer = ACROSS_GROUPS ? 1 : groups;
    int index = int(flat_group());
    if (index >= slice_count() * outer * row_tiles * blocks) return;
    int block = index % blocks;
    index /= blocks;
    int row0 = index % row_tiles * ROWS;
    index /= row_tiles;
    int slice = index / outer;
    int run0 = (block * local + int(gl_LocalInvocationID.x)) * RUNS;
    int group = ACROSS_GROUPS ? min(run0, across - 1) / (in_group * in_kernel) : index % outer;

    // Of each run: where its first tap lies in x and in dw from the pixel's place and the row's, and where its windows
    // begin. Runs past the end repeat the last one and are not stored.
    int x_of[RUNS], z_of[RUNS], y_of[RUNS], c_of[RUNS], in_w[RUNS];
    [[unroll]] for (int b = 0; b < RUNS; b++) {
        int run = min(run0 + b, across - 1);
        int kx = run % blocks_x * TAPS_X;
        run /= blocks_x;
        int ky = run % kh;
        run /= kh;
        int kz = run % kd;
        int channel = run / kd + (ACROSS_GROUPS ? 0 : group * in_group);
        z_of[b] = kz * dd - pf;
        y_of[b] = ky * dh - pt;
        c_of[b] = kx * DW - pl;
        x_of[b] = ((channel * d + z_of[b]) * h + y_of[b]) * w + c_of[b];
        in_w[b] = (((channel - group * in_group) * kd + kz) * kh + ky) * kw + kx;
    }

    ivec4 first, size;
    int in_box;
    box_of(slice, first, size, in_box);
    int lines = size.x * size.y * size.z;
    int whole = size.w / PX;
    int rest = size.w - whole * PX;
    int plane = od * oh * ow;
    PLACE(PX, dy_of)
    PLACE(1, dy_of_one)
    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;

    int end = first_of(in_box + 1, lines * whole);
    int at = first_of(in_box, lines * whole);
    ivec4 p = at < end ? place(at, size, whole) : ivec4(0);
    for (; at < end; at++) {
        int image = first.x + p.x;
        int oz = first.y + p.y;
        int oy = first.z + p.z;
        int ox = first.w + p.w * PX;
        int x_at = ((image * c_in * d + oz * sd) * h + oy * sh) * w + ox * SW;
        int dy_at = image * c_out * plane + (oz * oh + oy) * ow + ox;
        float v[RUNS * SPAN];
        [[unroll]] for (int b = 0; b < RUNS; b++) {
            bool line_ok = !PADDED || (uint(oy * sh + y_of[b]) < uint(h) && uint(oz * sd + z_of[b]) < uint(d));
            [[unroll]] for (int i = 0; i < SPAN; i++) {
                bool ok = line_ok && (uint(ox * SW + c_of[b] + i) < uint(w) || (!PADDED && kw % TAPS_X == 0));
                v[b * SPAN + i] = ok ? LOAD(x, ok ? x_at + x_of[b] + i : 0) : 0.0;
            }
        }
        LOAD_DY(PX, dy_of)
        [[unroll]] for (int m = 0; m < ROWS; m++) {
            [[unroll]] for (int q = 0; q < PX; q++) {
                float u = DY(PX, dy_of, m, q);
                [[unroll]] for (int b = 0; b < RUNS; b++) {
                    [[unroll]] for (int t = 0; t < TAPS_X; t++) {
                        acc[(m * RUNS + b) * TAPS_X + t] += u * v[b * SPAN + q * SW + t * DW];
                    }
                }
            }
        }
        advance(p, size, whole);
    }

    end = first_of(in_box + 1, lines * rest);
    at = first_of(in_box, lines * rest);
    p = at < end ? place(at, size, rest) : ivec4(0);
    for (; at < end; at++) {
        int image = first.x + p.x;
        int oz = first.y + p.y;
        int oy = first.z + p.z;
        int ox = first.w + whole * PX + p.w;
        int x_at = ((image * c_in * d + oz * sd) * h + oy * sh) * w + ox * SW;
        int dy_at = image * c_out * plane + (oz * oh + oy) * ow + ox;
        float v[RUNS * TAPS_X];
        [[unroll]] for (int b = 0; b < RUNS; b++) {
            bool line_ok = !PADDED || (uint(oy * sh + y_of[b]) < uint(h) && uint(oz * sd + z_of[b]) < uint(d));
            [[unroll]] for (int t = 0; t < TAPS_X; t++) {
                bool ok = line_ok && uint(ox * SW + c_of[b] + t * DW) < uint(w);
                v[b * TAPS_X + t] = ok ? LOAD(x, ok ? x_at + x_of[b] + t * DW : 0) : 0.0;
            }
        }
        LOAD_DY(1, dy_of_one)
        [[unroll]] for (int m = 0; m < ROWS; m++) {
            float u = DY(1, dy_of_one, m, 0);
            [[unroll]] for (int i = 0; i < RUNS * TAPS_X; i++) acc[m * RUNS * TAPS_X + i] += u * v[i];
        }
        advance(p, size, rest);
    }

    int columns = in_group * kd * kh * kw;
    int total = c_out * columns;
#ifdef ATOMIC_CAS
    // Again all that are left, until none is: with a loop for each, lavapipe compiles 160 sums in 40 s.
    bool left = true;
    for (; left;) {
        left = false;
#endif
        [[unroll]] for (int b = 0; b < RUNS; b++) {
            [[unroll]] for (int m = 0; m < ROWS; m++) {
                [[unroll]] for (int t = 0; t < TAPS_X; t++) {
                    int i = (m * RUNS + b) * TAPS_X + t;
                    if (run0 + b < across && row0 + m < rows && in_w[b] % kw + t < kw) {
                        int at_w = (group * rows + row0 + m) * columns + in_w[b] + t;
#ifdef ATOMIC_CAS
                        if (acc[i] != 0.0 && added(at_w, scale * acc[i])) acc[i] = 0.0;
                        left = left || acc[i] != 0.0;
#else
                        store(slice, at_w, total, acc[i]);
#endif
                    }
                }
            }
        }
#ifdef ATOMIC_CAS
    }
#endif
}
