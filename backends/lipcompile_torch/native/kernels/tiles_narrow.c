/* Tiles for registers of 8 lanes, of which there are 16, and for those of 4, of which there are 32. */
#include "outer_products.h"

#if HAS_TILES

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define REGISTER 8
#define TARGET __attribute__((target("avx,fma")))
#define WIDENED(entry) (doubles) _mm256_cvtps_pd((__m128)(entry))
#else
#define REGISTER 4
#define TARGET
#define WIDENED(entry) __builtin_convertvector(entry, doubles)
#endif
#include "tiles.h"

SMALL_TILES(DEFINE_TILE, 0, 1)
SMALL_TILES(DEFINE_TILE, 1, 1)

static const tile_table tiles = {SMALL_TILES(NAME_TILE, 0, 1) SMALL_TILES(NAME_TILE, 1, 1)};

DEFINE_KIND(narrow_tiles, 1, MOST_SMALL_TILE, MOST_SMALL_TILE)

#endif
