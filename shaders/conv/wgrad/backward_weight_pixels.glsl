// How an invocation of the kernels by pixels, backward_weight_gemm and backward_weight_cooperative, goes through a box.

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
