/* Sums of outer products over positions, and how their operands are laid out. See example_gradients.c. */
#ifndef LIPCOMPILE_OUTER_PRODUCTS_H
#define LIPCOMPILE_OUTER_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

/* Vectors as gcc and clang have them. */
#if defined(__GNUC__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

/* Of a tile: its rows, its entries in all, and its vectors of LANES, at most. */
#define MOST_TILE_ROWS 3
#define MOST_TILE_ENTRIES 14
#define MOST_TILE_VECTORS 2

#define PLACES_AHEAD 3

/* Positions that lie side by side in both operands: where the first one lies, and how many they are; whether a run of
 * additions in float32 ends with them.
 */
typedef struct {
    int64_t lanes, entries, count, ends;
} segment;

/* A tile of sums over positions t of lanes[t·lanes_step + l] times entries[r][t·entries_step + w·entry_step], or, where
 * products go lane by lane, times entries[r][t·entries_step + w·entry_step + l]: for r below `rows`, w below `width` and
 * l below LANES·vectors. Where they do not go lane by lane, entry_step is 1. At every position, memory is fetched that is
 * needed later, so many bytes further on in each place.
 */
typedef struct {
    const float *lanes, *entries[MOST_TILE_ROWS];
    size_t lanes_step, entries_step, entry_step;
    const segment *segments;
    size_t segment_count, rows, width, vectors;
    int by_lane;
    const char *ahead[PLACES_AHEAD];
    size_t ahead_step[PLACES_AHEAD];
} tile;

/* What a kind of processors does with tiles of so many vectors and entries at most; of so many entries, where they are of
 * several rows of one vector.
 *
 * multiply: write a tile, its rows·width entries `pitch` numbers apart. Each sum is over runs, added in float32 in the order
 *     of the positions, each product fused with its addition; the runs are added in float32 in their order. So its bits
 *     depend neither on the tile that it is in nor on the processor.
 * add_squares: add the squares of entries [count][width] to squares [width], LANES or MOST_TILE_VECTORS times that.
 * add_multiple: add factor·entry to each of so many entries, a multiple of LANES.
 */
typedef struct {
    size_t vectors, entries, entries_alone;
    void (*multiply)(const tile *all, size_t pitch, float *found);
    void (*add_squares)(const float *entries, size_t count, size_t width, double *squares);
    void (*add_multiple)(const float *entries, size_t count, double factor, double *total);
} tile_kind;

/* That of the processor at hand. */
const tile_kind *tiles_at_hand(void);

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_WIDE_TILES 1
#else
#define HAS_WIDE_TILES 0
#endif
extern const tile_kind wide_tiles, narrow_tiles;

/* Channels source + i·source_step, for i below count, go to targets target + i. */
typedef struct {
    int64_t source, target, count;
} span;

/* Tensors [examples, channels, positions]: of each example, channels at position p are copied to places[p] + their targets,
 * in a room of so many numbers that were zero before. Entries are float32 if `extent` is 0. Else they are bfloat16, an
 * example reaches over so many of them, and it is widened first, which is exact.
 */
typedef struct {
    const void *entries;
    size_t extent, example_stride, channel_stride, position_stride, positions, source_step;
    const span *spans;
    size_t span_count;
    const int64_t *places;
    size_t room;
} operand;
void pack(const operand *given, size_t example, float *widened, float *room);

/* Where the entries of an example begin. */
static inline const char *example_at(const operand *given, size_t example) {
    return (const char *)given->entries + example * given->example_stride * (given->extent > 0 ? 2 : sizeof(float));
}

#endif
