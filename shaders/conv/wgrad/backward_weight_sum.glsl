// A convolution's gradient by its weights as a sum in parts: the push block of vkconv/ops/conv/wgrad/kernels.py,
// which part of the sum an invocation works on, and how it goes through the pixels of dy.

// At least one, also where there is nothing to sum: dw is written then, too.
int boxes_along(int extent, int tile) { return max((extent + tile - 1) / tile, 1); }

int part_count() {
    return boxes_along(n, tile_n) * boxes_along(od, tile_d) * boxes_along(oh, tile_h) * boxes_along(ow, tile_w) * cuts;
}

// The box of a part: its first image and pixel of dy, its size, and which of its cuts the part is.
void box_of(int part, out ivec4 first, out ivec4 size, out int cut) {
    cut = part % cuts;
    int index = part / cuts;
    int boxes = boxes_along(ow, tile_w);
    first.w = index % boxes * tile_w;
    index /= boxes;
    boxes = boxes_along(oh, tile_h);
    first.z = index % boxes * tile_h;
    index /= boxes;
    boxes = boxes_along(od, tile_d);
    first.y = index % boxes * tile_d;
    first.x = index / boxes * tile_n;
    size = min(ivec4(tile_n, tile_d, tile_h, tile_w), ivec4(n, od, oh, ow) - first);
}

// The first of ``count`` that a cut has; the next cut's first is one past its last.
int first_of(int cut, int count) { return min(cut * ((count + cuts - 1) / cuts), count); }

// A pixel of a box by its number, as (image, d, h, w).
ivec4 place_of(int pixel, ivec4 box) {
    ivec4 place;
    place.w = pixel % box.w;
    place.z = pixel / box.w;
    place.y = place.z / box.z;
    place.z %= box.z;
    place.x = DEEP ? place.y / box.y : place.y;
    place.y = DEEP ? place.y % box.y : 0;
    return place;
}

// The place of the pixel that is so many further as ``by`` is the place of.
ivec4 moved(ivec4 place, ivec4 by, ivec4 box) {
    place += by;
    if (place.w >= box.w) place += ivec4(0, 0, 1, -box.w);
    if (place.z >= box.z) place += DEEP ? ivec4(0, 1, -box.z, 0) : ivec4(1, 0, -box.z, 0);
    if (DEEP && place.y >= box.y) place += ivec4(1, -box.y, 0, 0);
    return place;
}
