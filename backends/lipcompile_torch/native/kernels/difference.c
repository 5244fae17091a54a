/* What a weight has moved from a copy of it. */
#include <math.h>
#include <string.h>

#include "kernels.h"

static inline float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A number of float16, exactly, whatever the processor makes of subnormal numbers. */
static inline float widened(uint16_t half) {
    uint32_t rest = half & 0x7fffu, special = (rest & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    uint32_t normal = ((rest << 13) + 0x38000000u) | special;
    uint32_t small = bits_of((float)(int32_t)rest * 0x1p-24f);
    return of_bits((rest < 0x400u ? small : normal) | (uint32_t)(half & 0x8000u) << 16);
}

FOR_EACH_PROCESSOR
void write_difference(const compared *pair, size_t start, size_t count, float *restrict found) {
    const float *weight = pair->weight + start;
    if (pair->copy_is_half) {
        const uint16_t *copy = (const uint16_t *)pair->copy + start;
        for (size_t i = 0; i < count; i++) found[i] = fmaf(-pair->share, widened(copy[i]), weight[i]);
    } else {
        const float *copy = (const float *)pair->copy + start;
        for (size_t i = 0; i < count; i++) found[i] = fmaf(-pair->share, copy[i], weight[i]);
    }
}
