/* Which tiles a processor takes, and how their operands come to lie as tiles read them. */
#include <string.h>

#include "outer_products.h"

#if HAS_TILES

/* --- tiles --- */

const tile_kind *tiles_at_hand(void) {
#if HAS_WIDE_TILES
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        return &wide_tiles;
#endif
    return &narrow_tiles;
}

/* --- operands --- */

#define SIDE 16 /* of the square that is transposed at once */

typedef float side_of_square __attribute__((vector_size(SIDE * sizeof(float))));
typedef int32_t side_indices __attribute__((vector_size(SIDE * sizeof(int32_t))));

#if defined(__clang__)
#define SHUFFLED(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else
#define SHUFFLED(one, other, ...) __builtin_shuffle(one, other, (side_indices){__VA_ARGS__})
#endif

/* Exchange the upper right and the lower left of all squares of 2·STEP rows on the diagonal of pairs of rows. */
#define EXCHANGE(STEP, FIRST, SECOND)                                       \
    for (int i = 0; i < SIDE; i++)                                          \
        if (!(i & STEP)) {                                                  \
            side_of_square upper = square[i], lower = square[i + STEP];     \
            square[i] = SHUFFLED(upper, lower, FIRST);                      \
            square[i + STEP] = SHUFFLED(upper, lower, SECOND);              \
        }
#define FIRST_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define SECOND_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define FIRST_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define SECOND_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define FIRST_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define SECOND_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define FIRST_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define SECOND_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31

/* Copy SIDE positions, side by side, of SIDE channels, which begin at `channels`, to places. */
FOR_EACH_PROCESSOR
static void transpose(const float *const *channels, const int64_t *places, float *found) {
    side_of_square square[SIDE];
    for (int i = 0; i < SIDE; i++) memcpy(&square[i], channels[i], sizeof square[i]);
    EXCHANGE(8, FIRST_8, SECOND_8)
    EXCHANGE(4, FIRST_4, SECOND_4)
    EXCHANGE(2, FIRST_2, SECOND_2)
    EXCHANGE(1, FIRST_1, SECOND_1)
    for (int i = 0; i < SIDE; i++) memcpy(found + places[i], &square[i], sizeof square[i]);
}

/* Copy channels `step` numbers apart whose positions lie side by side: squares, of which the last ones overlap. */
static void transpose_stretch(const operand *given, const float *entries, size_t step, size_t count, float *found) {
    for (size_t c = 0; c < count; c += SIDE) {
        size_t first = at_most(c, count - SIDE);
        for (size_t p = 0; p < given->positions; p += SIDE) {
            size_t begin = at_most(p, given->positions - SIDE);
            const float *channels[SIDE];
            for (size_t i = 0; i < SIDE; i++) channels[i] = entries + (first + i) * step + begin;
            transpose(channels, given->places + begin, found + first);
        }
    }
}

/* Copy channels, several positions at once where they lie side by side there and here. */
static void copy_stretch(const operand *given, const float *entries, size_t step, size_t count, float *found) {
    const int64_t *places = given->places;
    for (size_t c = 0; c < count; c++)
        for (size_t p = 0; p < given->positions;) {
            const float *from = entries + c * step + p * given->position_stride;
            float *to = found + places[p] + (int64_t)c;
            if (given->position_stride == 1 && p + 8 <= given->positions && places[p + 7] == places[p] + 7) {
                memcpy(to, from, 8 * sizeof *to);
                p += 8;
            } else {
                *to = *from;
                p++;
            }
        }
}

/* --- channels side by side --- */

/* What is left of a vector is copied by two copies that overlap. */
static inline void copy_few(const float *from, size_t count, float *to) {
    for (; count >= SIDE; count -= SIDE, from += SIDE, to += SIDE) memcpy(to, from, SIDE * sizeof *to);
    if (count >= 8) {
        memcpy(to, from, 8 * sizeof *to);
        memcpy(to + count - 8, from + count - 8, 8 * sizeof *to);
    } else if (count >= 4) {
        memcpy(to, from, 4 * sizeof *to);
        memcpy(to + count - 4, from + count - 4, 4 * sizeof *to);
    } else {
        for (size_t c = 0; c < count; c++) to[c] = from[c];
    }
}

FOR_EACH_PROCESSOR
static void copy_channels(const operand *given, const float *entries, float *found) {
    for (size_t p = 0; p < given->positions; p++)
        for (size_t s = 0; s < given->span_count; s++)
            copy_few(entries + p * given->position_stride + given->spans[s].source,
                     (size_t)given->spans[s].count, found + given->places[p] + given->spans[s].target);
}

/* bfloat16 is the upper half of float32. */
FOR_EACH_PROCESSOR
static void widen(const char *entries, size_t count, float *restrict found) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, entries + 2 * i, 2);
        uint32_t whole = (uint32_t)half << 16;
        memcpy(found + i, &whole, 4);
    }
}

void pack(const operand *given, size_t example, float *widened, float *found) {
    const char *own = example_at(given, example);
    if (given->extent > 0) widen(own, given->extent, widened);
    const float *entries = given->extent > 0 ? widened : (const float *)(const void *)own;
    size_t step = given->source_step * given->channel_stride;
    if (step == 1) {
        copy_channels(given, entries, found);
        return;
    }
    for (size_t s = 0; s < given->span_count; s++) {
        const span *own = given->spans + s;
        const float *begin = entries + (size_t)own->source * given->channel_stride;
        size_t count = (size_t)own->count;
        if (given->position_stride == 1 && given->positions >= SIDE && count >= SIDE)
            transpose_stretch(given, begin, step, count, found + own->target);
        else
            copy_stretch(given, begin, step, count, found + own->target);
    }
}

#endif
