/* Normals, and adding them: Box-Muller, see noise/processor.py. */
#include <math.h>
#include <string.h>

#include "kernels.h"

#define PAIRS 512 /* that are computed together: what they give stays in the processor's first cache */
#define GRAIN (8 * PAIRS)

static inline uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const uint64_t SIGN = 0x8000000000000000;

static inline double with_sign(double value, uint64_t bits) { return of_bits(bits_of(value) ^ (bits & SIGN)); }

/* A signed word as a number, rounded once: two numbers of 32 bits by what they do to the bits of 2^84 and of 2^52. (Not
 * all processors have an instruction for it that takes several at once.)
 */
static inline double number_of(uint64_t word) {
    double high = of_bits((word >> 32 ^ 0x80000000) | 0x4530000000000000) - (0x1p84 + 0x1p63);
    double low = of_bits((word & 0xffffffff) | 0x4330000000000000) - 0x1p52;
    return high + low;
}

/* -2·ln u for 0 < u < 1: u = 2^k·m with m within √½ and √2, and ln m = 2·artanh(s), s = (m-1)/(m+1).
 *
 * |s| <= 0.172, so the series is cut below 1e-18 of its first term.
 */
static inline double twice_negative_logarithm(double u) {
    uint64_t exponent = (bits_of(u) + 0x00095f619980c433) >> 52; /* 1023 + k: from √½ on the next one */
    double k = of_bits(exponent | 0x4330000000000000) - (0x1p52 + 1023);
    double m = of_bits(bits_of(u) - ((exponent - 1023) << 52));
    double s = (m - 1) / (m + 1), p = s * s, sum = 4.0 / 21;
    sum = fma(p, sum, 4.0 / 19);
    sum = fma(p, sum, 4.0 / 17);
    sum = fma(p, sum, 4.0 / 15);
    sum = fma(p, sum, 4.0 / 13);
    sum = fma(p, sum, 4.0 / 11);
    sum = fma(p, sum, 4.0 / 9);
    sum = fma(p, sum, 4.0 / 7);
    sum = fma(p, sum, 4.0 / 5);
    sum = fma(p, sum, 4.0 / 3);
    sum = fma(p, sum, 4.0);
    return fma(k, -1.3862943611198906, -s * sum); /* 2·ln 2 */
}

/* cos πy for 0 <= y <= 1/4, z = y²: Taylor's series, cut below (π/4)^18/18! = 2.1e-18. */
static inline double cosine(double z) {
    double sum = 4.303069587032947e-06;
    sum = fma(z, sum, -0.0001046381049248457);
    sum = fma(z, sum, 0.0019295743094039231);
    sum = fma(z, sum, -0.02580689139001406);
    sum = fma(z, sum, 0.2353306303588932);
    sum = fma(z, sum, -1.3352627688545895);
    sum = fma(z, sum, 4.0587121264167685);
    sum = fma(z, sum, -4.934802200544679);
    return fma(z, sum, 1.0);
}

/* sin(πy)/y for 0 <= y <= 1/4, z = y²: cut below 4·(π/4)^19/19! = 3.4e-19. */
static inline double sine_by(double z) {
    double sum = 7.952054001475513e-07;
    sum = fma(z, sum, -2.1915353447830217e-05);
    sum = fma(z, sum, 0.00046630280576761255);
    sum = fma(z, sum, -0.0073704309457143504);
    sum = fma(z, sum, 0.08214588661112823);
    sum = fma(z, sum, -0.5992645293207921);
    sum = fma(z, sum, 2.5501640398773455);
    sum = fma(z, sum, -5.16771278004997);
    return fma(z, sum, 3.141592653589793);
}

/* The pairs of normals that pairs of words give; nothing overlaps. */
FOR_EACH_PROCESSOR
static void normals_of(const uint64_t *restrict first, const uint64_t *restrict second, size_t count,
                       double *restrict left, double *restrict right) {
    for (size_t i = 0; i < count; i++) {
        double turn = number_of(second[i]) * 0x1p-64; /* φ/π, within ±1/2 */
        double far = fabs(turn);
        int beyond = far > 0.25;
        double y = beyond ? 0.5 - far : far; /* exact */
        double one = cosine(y * y), other = y * sine_by(y * y);
        double u = fabs(number_of(first[i] | 1)) * (0x1p-63 * (1 - 0x1p-53)); /* never 0, and below 1 */
        double radius = sqrt(twice_negative_logarithm(u));
        left[i] = with_sign(radius * (beyond ? other : one), first[i]);
        right[i] = with_sign(radius * (beyond ? one : other), first[i] ^ bits_of(turn));
    }
}

FOR_EACH_PROCESSOR
static void add_to_single(float *restrict entries, const double *restrict normals, double scale, size_t count) {
    for (size_t i = 0; i < count; i++) entries[i] = (float)fma(scale, normals[i], (double)entries[i]);
}

FOR_EACH_PROCESSOR
static void add_to_double(double *restrict entries, const double *restrict normals, double scale, size_t count) {
    for (size_t i = 0; i < count; i++) entries[i] = fma(scale, normals[i], entries[i]);
}

typedef struct {
    word_source source;
    size_t count, half_block;
    const noisy_part *parts;
    size_t part_count;
} noise;

/* Add normals to the entries from `start` on, counted over all parts; those beyond the last are for nobody. */
static void add_from(const noise *all, size_t start, const double *normals, size_t count) {
    for (size_t p = 0; p < all->part_count && count > 0; p++) {
        const noisy_part *part = &all->parts[p];
        if (start >= part->count) {
            start -= part->count;
            continue;
        }
        size_t here = part->count - start < count ? part->count - start : count;
        if (part->is_double)
            add_to_double((double *)part->entries + start, normals, part->scale, here);
        else
            add_to_single((float *)part->entries + start, normals, part->scale, here);
        normals += here;
        count -= here;
        start = 0;
    }
}

/* Return where words `start` to start + count are; room is for two more, since blocks have two. */
static const uint64_t *words_from(const word_source *source, size_t start, size_t count, uint64_t *room) {
    if (source->words != NULL) return source->words + start;
    size_t block = start / 2;
    key_stream(source->key_and_counter, source->index + block, (start + count + 1) / 2 - block, room);
    return room + start % 2;
}

/* Add the normals of pairs i to i + count of a block that begins at entry, and at word, `start`. */
static void add_some(const noise *all, size_t start, size_t half, size_t i, size_t count) {
    double left[PAIRS], right[PAIRS];
    uint64_t room[2][PAIRS + 2];
    const uint64_t *first = words_from(&all->source, start + i, count, room[0]);
    const uint64_t *second = words_from(&all->source, start + half + i, count, room[1]);
    normals_of(first, second, count, left, right);
    add_from(all, start + i, left, count);
    add_from(all, start + half + i, right, count);
}

static void add_pairs(void *context, size_t begin, size_t end) {
    const noise *all = context;
    while (begin < end) {
        size_t i = begin % all->half_block, start = 2 * (begin - i);
        size_t rest = (all->count - start + 1) / 2, half = rest < all->half_block ? rest : all->half_block;
        size_t count = half - i < end - begin ? half - i : end - begin;
        if (count > PAIRS) count = PAIRS;
        add_some(all, start, half, i, count);
        begin += count;
    }
}

void add_normals(const word_source *source, size_t count, size_t block, const noisy_part *parts, size_t part_count,
                 int threads) {
    noise all = {*source, count, block / 2, parts, part_count};
    in_stretches((count + 1) / 2, GRAIN, threads, add_pairs, &all);
}
