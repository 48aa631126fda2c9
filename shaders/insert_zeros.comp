#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "divided.glsl"
#extension GL_EXT_control_flow_attributes : require

// Planes of to_h x to_w that have the elements of planes of h x w a stride apart, the first one pt rows and pl columns before
// the corner, and zeros else. An invocation writes a word of eight elements, which mostly are of one row (scatter_strided.comp
// takes any rank and any strides, an element at a time).
layout(constant_id = 3) const int SH = 2;
layout(constant_id = 4) const int SW = 2;

layout(push_constant) uniform Push {
    int planes, h, w, to_h, to_w, pt, pl;
    uint plane_factor, plane_shift, row_factor, row_shift;
};

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) WRITEONLY restrict buffer Y { ELEM y[]; };
layout(set = 0, binding = 1) WRITEONLY restrict buffer Y8 { uvec4 y8[]; };

// Of the element of that plane, row and column of y.
uint bits_of(int plane, int row, int column) {
    int i = row + pt;
    int j = column + pl;
    if (i % SH != 0 || j % SW != 0 || i / SH >= h || j / SW >= w) return 0u;
    return BITS_AT(x, (plane * h + i / SH) * w + j / SW);
}

void main() {
    int total = planes * to_h * to_w;
    if (flat_index() >= uint(total + 7) / 8u) return;
    int first = int(flat_index()) * 8;
    ivec2 of_plane = divided(first, to_h * to_w, plane_factor, plane_shift);
    ivec2 at = divided(of_plane.y, to_w, row_factor, row_shift);
    uint bits[8];
    if (at.y + 8 <= to_w) {
        [[unroll]] for (int q = 0; q < 8; q++) bits[q] = bits_of(of_plane.x, at.x, at.y + q);
    } else {
        int plane = of_plane.x;
        [[unroll]] for (int q = 0; q < 8; q++) {
            bits[q] = plane < planes ? bits_of(plane, at.x, at.y) : 0u;
            if (++at.y == to_w) {
                at.y = 0;
                if (++at.x == to_h) {
                    at.x = 0;
                    plane++;
                }
            }
        }
    }
    if (first + 8 <= total) {
        y8[first / 8] = uvec4(bits[0], bits[2], bits[4], bits[6]) | uvec4(bits[1], bits[3], bits[5], bits[7]) << 16;
    } else {
        [[unroll]] for (int q = 0; q < 8; q++) {
            if (first + q < total) STORE_BITS(y, first + q, bits[q]);
        }
    }
}
