// Blocks of an image: element k of a block lies k dilation behind its first one, and blocks are stride apart, beginning
// ``before`` before the image.

// Which plane an element of images is in, and its place there, counted from the first block on.
uint plane_of(uint index, out int place[3]) {
    uint plane = index;
    for (int d = 2; d >= 0; d--) {
        uint q = plane / uint(image[d]);
        place[d] = int(plane - q * uint(image[d])) + before[d];
        plane = q;
    }
    return plane;
}

// The block whose element ``tap`` lies at a place; -1 where none does.
int block_at(int place[3], int tap) {
    int k[3] = int[3](tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]);
    bool inside = true;
    int block = 0;
    for (int d = 0; d < 3; d++) {
        int first_of = place[d] - k[d] * dilation[d];
        int b = first_of / stride[d];
        inside = inside && first_of >= 0 && b * stride[d] == first_of && b < blocks[d];
        block = block * blocks[d] + b;
    }
    return inside ? block : -1;
}
