/* Tiles of outer_products.h that fit into the registers of a kind of processors. Included once for each kind, with
 *
 * REGISTER: lanes of a register.
 * TARGET: the attribute of a function that uses such registers.
 * WIDENED(entry): half as many floats in float64; gcc would convert them in two pieces.
 */
#include <string.h>

#include "outer_products.h"

/* Here alone multiplications and additions are fused. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 28")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define PIECES (LANES / REGISTER) /* registers of a vector */
#define MOST_SMALL_TILE 6
#define MOST_LONG_TILE 24
#define MOST_REGISTERS (MOST_TILE_ENTRIES * MOST_TILE_VECTORS * PIECES)

typedef float lanes_of_register __attribute__((vector_size(REGISTER * sizeof(float))));

ALWAYS_INLINE void load(lanes_of_register *found, const float *entries) { memcpy(found, entries, sizeof *found); }

/* Add sums of a run to those of the runs before, if there are any, and set them to zero. */
ALWAYS_INLINE void end_run(lanes_of_register *sums, const int entries, const int registers, int first, size_t pitch,
                           float *found) {
    UNROLLED
    for (int i = 0; i < entries; i++)
        UNROLLED
        for (int v = 0; v < registers; v++) {
            lanes_of_register *sum = &sums[i * registers + v], before;
            float *place = found + (size_t)i * pitch + v * REGISTER;
            if (!first) {
                load(&before, place);
                *sum = before + *sum;
            }
            memcpy(place, sum, sizeof *sum);
            *sum = (lanes_of_register){0};
        }
}

/* A tile whose sizes are known when it is compiled. */
ALWAYS_INLINE void multiply(const tile *all, size_t pitch, float *restrict found, const int registers, const int rows,
                            const int width, const int by_lane) {
    const size_t lanes_step = all->lanes_step, entries_step = all->entries_step, entry_step = all->entry_step;
    const char *ahead[PLACES_AHEAD];
    memcpy(ahead, all->ahead, sizeof ahead);
    lanes_of_register sums[MOST_REGISTERS] = {{0}};
    int first = 1;
    for (size_t i = 0; i < all->segment_count; i++) {
        const segment *part = all->segments + i;
        const float *lanes = all->lanes + part->lanes, *entries[MOST_TILE_ROWS];
        UNROLLED
        for (int r = 0; r < rows; r++) entries[r] = all->entries[r] + part->entries;
        for (int64_t t = part->count; t > 0; t--) {
            lanes_of_register left[MOST_TILE_VECTORS * PIECES], right;
            UNROLLED
            for (int v = 0; v < registers; v++) load(&left[v], lanes + v * REGISTER);
            UNROLLED
            for (int e = 0; e < rows * width; e++)
                UNROLLED
                for (int v = 0; v < registers; v++) {
                    const float *row = entries[e / width];
                    if (by_lane)
                        load(&right, row + (size_t)(e % width) * entry_step + v * REGISTER);
                    else
                        right = row[e % width] - (lanes_of_register){0};
                    sums[e * registers + v] += left[v] * right;
                }
            UNROLLED
            for (int i = 0; i < PLACES_AHEAD; i++) {
                __builtin_prefetch(ahead[i], 0, 2);
                ahead[i] += all->ahead_step[i];
            }
            lanes += lanes_step;
            UNROLLED
            for (int r = 0; r < rows; r++) entries[r] += entries_step;
        }
        if (!part->ends) continue;
        end_run(sums, rows * width, registers, first, pitch, found);
        first = 0;
    }
}

/* --- in float64 --- */

#define HALF (REGISTER / 2)

typedef float floats __attribute__((vector_size(HALF * sizeof(float))));
typedef double doubles __attribute__((vector_size(HALF * sizeof(double))));

TARGET ALWAYS_INLINE void widen(const float *entries, doubles *found) {
    floats entry;
    memcpy(&entry, entries, sizeof entry);
    *found = WIDENED(entry);
}

TARGET static void add_multiple(const float *entries, size_t count, double factor, double *total) {
    for (size_t i = 0; i < count; i += HALF) {
        doubles entry, sum;
        widen(entries + i, &entry);
        memcpy(&sum, total + i, sizeof sum);
        sum += factor * entry;
        memcpy(total + i, &sum, sizeof sum);
    }
}

TARGET ALWAYS_INLINE void add_squares_of(const float *entries, size_t count, const int vectors, double *squares) {
    doubles sums[MOST_TILE_VECTORS * LANES / HALF];
    memcpy(sums, squares, (size_t)vectors * LANES * sizeof *squares);
    for (size_t i = 0; i < count; i++)
        UNROLLED
        for (int l = 0; l < vectors * LANES / HALF; l++) {
            doubles entry;
            widen(entries + i * (size_t)vectors * LANES + l * HALF, &entry);
            sums[l] += entry * entry;
        }
    memcpy(squares, sums, (size_t)vectors * LANES * sizeof *squares);
}

TARGET static void add_squares(const float *entries, size_t count, size_t width, double *squares) {
    if (width == LANES)
        add_squares_of(entries, count, 1, squares);
    else
        add_squares_of(entries, count, MOST_TILE_VECTORS, squares);
}

/* --- all tiles --- */

typedef void (*tile_function)(const tile *all, size_t pitch, float *found);

/* DO(by_lane, vectors, rows, width) for tiles of up to MOST_SMALL_TILE entries, and for those of more, up to MOST_TILE_ENTRIES. */
#define SMALL_TILES(DO, ...)                                                                            \
    DO(__VA_ARGS__, 1, 1) DO(__VA_ARGS__, 1, 2) DO(__VA_ARGS__, 1, 3) DO(__VA_ARGS__, 1, 4) DO(__VA_ARGS__, 1, 5) \
    DO(__VA_ARGS__, 1, 6) DO(__VA_ARGS__, 2, 1) DO(__VA_ARGS__, 2, 2) DO(__VA_ARGS__, 2, 3) DO(__VA_ARGS__, 3, 1) \
    DO(__VA_ARGS__, 3, 2)
#define LARGE_TILES(DO, ...)                                                                                  \
    DO(__VA_ARGS__, 1, 7) DO(__VA_ARGS__, 1, 8) DO(__VA_ARGS__, 1, 9) DO(__VA_ARGS__, 1, 10) DO(__VA_ARGS__, 1, 11)     \
    DO(__VA_ARGS__, 1, 12) DO(__VA_ARGS__, 1, 13) DO(__VA_ARGS__, 1, 14) DO(__VA_ARGS__, 2, 4) DO(__VA_ARGS__, 2, 5)    \
    DO(__VA_ARGS__, 2, 6) DO(__VA_ARGS__, 2, 7) DO(__VA_ARGS__, 3, 3) DO(__VA_ARGS__, 3, 4)
/* And those of several rows of one vector, up to MOST_LONG_TILE. */
#define LONG_TILES(DO, ...)                                                                                    \
    DO(__VA_ARGS__, 2, 8) DO(__VA_ARGS__, 2, 9) DO(__VA_ARGS__, 2, 10) DO(__VA_ARGS__, 2, 11) DO(__VA_ARGS__, 2, 12)     \
    DO(__VA_ARGS__, 3, 5) DO(__VA_ARGS__, 3, 6) DO(__VA_ARGS__, 3, 7) DO(__VA_ARGS__, 3, 8)

#define DEFINE_TILE(BY_LANE, VECTORS, ROWS, WIDTH)                                         \
    TARGET static void tile_##BY_LANE##_##VECTORS##_##ROWS##_##WIDTH(const tile *all, size_t pitch, float *found) { \
        multiply(all, pitch, found, VECTORS *PIECES, ROWS, WIDTH, BY_LANE);                \
    }
#define NAME_TILE(BY_LANE, VECTORS, ROWS, WIDTH) \
    [BY_LANE][VECTORS - 1][ROWS - 1][WIDTH - 1] = tile_##BY_LANE##_##VECTORS##_##ROWS##_##WIDTH,

typedef tile_function tile_table[2][MOST_TILE_VECTORS][MOST_TILE_ROWS][MOST_TILE_ENTRIES];

#define DEFINE_KIND(NAME, VECTORS, ENTRIES, ALONE)                                                                          \
    TARGET static void multiply_tile(const tile *all, size_t pitch, float *found) {                                  \
        tiles[all->by_lane][all->vectors - 1][all->rows - 1][all->width - 1](all, pitch, found);                     \
    }                                                                                                                \
    const tile_kind NAME = {VECTORS, ENTRIES, ALONE, multiply_tile, add_squares, add_multiple};
