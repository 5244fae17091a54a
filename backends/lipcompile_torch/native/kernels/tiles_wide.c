/* Tiles for AVX-512: sums are in 28 of 32 registers. */
#include "outer_products.h"

#if HAS_WIDE_TILES
#include <immintrin.h>

#define REGISTER 16
#define TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma")))
#define WIDENED(entry) (doubles) _mm512_cvtps_pd((__m256)(entry))
#include "tiles.h"

#define PAIRS(DO, ...) SMALL_TILES(DO, __VA_ARGS__) LARGE_TILES(DO, __VA_ARGS__)
#define ALONE(DO, ...) PAIRS(DO, __VA_ARGS__) LONG_TILES(DO, __VA_ARGS__)
ALONE(DEFINE_TILE, 0, 1)
PAIRS(DEFINE_TILE, 0, 2)
ALONE(DEFINE_TILE, 1, 1)

static const tile_table tiles = {ALONE(NAME_TILE, 0, 1) PAIRS(NAME_TILE, 0, 2) ALONE(NAME_TILE, 1, 1)};

DEFINE_KIND(wide_tiles, MOST_TILE_VECTORS, MOST_TILE_ENTRIES, MOST_LONG_TILE)

#endif
