// Inputs and weights of conv2d as textures, four channels a texel (vkconv/ops/conv/conv2d/textures.py says how they
// lie). What is fetched outside of a texture is undefined: a kernel asks for what is there.
#ifdef TEXTURE_2D
vec4 input_at(int column, int row, int slice) { return texelFetch(x, ivec2(column, slice * slice_rows + row), 0); }
#else
vec4 input_at(int column, int row, int slice) { return texelFetch(x, ivec3(column, row, slice), 0); }
#endif

vec4 weights_at(int column, int row) { return texelFetch(weight, ivec2(column, row), 0); }

// Four output channels from ``co`` on of the output ``pixel`` of an image.
void store_texel(vec4 sums, int image, int co, int pixel) {
    for (int i = 0; i < 4 && co + i < c_out; i++) {
        int to = (image * c_out + co + i) * oh * ow + pixel;
        STORE_Y(y, to, finish(sums[i], channel_of(co + i), residual_at(to)));
    }
}
