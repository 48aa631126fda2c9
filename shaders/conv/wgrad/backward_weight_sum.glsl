// A convolution's gradient by its weights as a sum in split-K slices: the push block of vkconv/shaders/wgrad.py and
// which slice of the sum an invocation works on.

// At least one, also where there is nothing to sum: dw is written then, too.
int boxes_along(int extent, int tile) { return max((extent + tile - 1) / tile, 1); }

int slice_count() {
    return boxes_along(n, tile_n) * boxes_along(od, tile_d) * boxes_along(oh, tile_h) * boxes_along(ow, tile_w) * per_box;
}

// The box of a slice: its first image and pixel of dy, its size, and which of the box's slices it is.
void box_of(int slice, out ivec4 first, out ivec4 size, out int in_box) {
    in_box = slice % per_box;
    int index = slice / per_box;
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

// The first of ``count`` that a slice of a box has; the next one's first is one past its last.
int first_of(int in_box, int count) { return min(in_box * ((count + per_box - 1) / per_box), count); }
