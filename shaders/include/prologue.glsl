// What becomes of an element of the input before it is multiplied: it is taken times the scale of its channel, or of
// its image and channel, then the shift of its channel is added, then an activation without parameters applied, which
// keeps 0. Behind activation.glsl.
vec2 factors_of(int image, int channel, int channels) {
    float scaling = LOAD(scale, (EACH_IMAGE ? image * channels : 0) + channel);
    return vec2(scaling, HAS_SHIFT ? LOAD(shift, channel) : 0.0);
}

// Of an element that is none, with factors of zero: zero.
float before_product(float x, vec2 factors) {
    float scaled = x * factors.x;
    return activate(BEFORE, HAS_SHIFT ? scaled + factors.y : scaled, 0.0, 0.0);
}
