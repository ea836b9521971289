/* exp() in plain arithmetic, so that the compiler can vectorize loops that call it. */
static inline float power_of_e(float x) /* within 2 ulp; 0 below exp(-87) */
{
    const float low = x < -87.0f ? -87.0f : x;
    const float whole = __builtin_rintf(low * 1.44269504088896341f);
    const float rest = (low - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = (sum * rest * rest + rest) + 1.0f;
    union { int bits; float value; } scale;
    scale.bits = ((int)whole + 127) << 23;
    return x < -87.0f ? 0.0f : sum * scale.value;
}
