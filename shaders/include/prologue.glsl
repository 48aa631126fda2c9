// What becomes of an element of the input before it is multiplied: it is taken times the scale of its channel, or of
// its image and channel, then the shift of its channel is added, then an activation without parameters applied. Behind
// activation.glsl.
float before_product(float x, int image, int channel, int channels) {
    float scaled = x * LOAD(scale, (EACH_IMAGE ? image * channels : 0) + channel);
    return activate(BEFORE, HAS_SHIFT ? scaled + LOAD(shift, channel) : scaled, 0.0, 0.0);
}
