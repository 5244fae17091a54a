/* Passes that add up, in an order that does not depend on the number of threads, and passes beside them. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

#define STRETCHES 64 /* at most, of a long pass */
#define GRAIN ((size_t)1 << 14)

static size_t grain_of(size_t count) {
    size_t grain = (count + STRETCHES - 1) / STRETCHES;
    return grain < GRAIN ? GRAIN : grain;
}

static double total_of(const double *sums, size_t count) {
    double total = 0;
    for (size_t i = 0; i < count; i++) total += sums[i];
    return total;
}

/* --- words --- */

typedef struct {
    const unsigned char *bytes;
    size_t size;
    const fingerprint_key *key;
    size_t grain; /* blocks */
    uint64_t sums[STRETCHES];
} word_sums;

/* Bytes may lie anywhere: a word is read as memcpy does. */
FOR_EACH_PROCESSOR
static uint64_t words_added(const unsigned char *bytes, size_t count, const uint64_t *keys) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t word;
        memcpy(&word, bytes + 4 * i, 4);
        sum += keys[i] * (uint64_t)(int64_t)word;
    }
    return sum;
}

static uint64_t block_added(const unsigned char *bytes, size_t size, const uint64_t *keys) {
    size_t words = size / 4, rest = size % 4;
    unsigned char last[4] = {0};
    memcpy(last, bytes + 4 * words, rest);
    return words_added(bytes, words, keys) + (rest ? words_added(last, 1, keys + words) : 0);
}

static void add_words(void *context, size_t begin, size_t end) {
    word_sums *all = context;
    size_t bytes = 4 * all->key->block;
    uint64_t sum = 0;
    for (size_t i = begin; i < end; i++)
        sum += all->key->outer[i] *
               block_added(all->bytes + i * bytes, at_most(all->size - i * bytes, bytes), all->key->inner);
    all->sums[begin / all->grain] = sum;
}

uint64_t fingerprint(const unsigned char *bytes, size_t size, const fingerprint_key *key, int threads) {
    size_t words = (size + 3) / 4, block = key->block, grain = grain_of(words) / block + 1;
    word_sums all = {bytes, size, key, grain, {0}};
    in_stretches((words + block - 1) / block, grain, threads, add_words, &all);
    uint64_t total = 0;
    for (size_t i = 0; i < STRETCHES; i++) total += all.sums[i];
    return total;
}

/* --- squares --- */

FOR_EACH_PROCESSOR
static double squares_added(const float *entries, size_t count) {
    double sums[LANES] = {0};
    size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++) sums[j] = fma((double)entries[i + j], (double)entries[i + j], sums[j]);
    for (size_t i = whole; i < count; i++) sums[0] = fma((double)entries[i], (double)entries[i], sums[0]);
    return total_of(sums, LANES);
}

typedef struct {
    const float *entries;
    size_t grain;
    double sums[STRETCHES];
} square_sums;

static void add_squares(void *context, size_t begin, size_t end) {
    square_sums *all = context;
    all->sums[begin / all->grain] = squares_added(all->entries + begin, end - begin);
}

double sum_of_squares(const float *entries, size_t count, int threads) {
    square_sums all = {entries, grain_of(count), {0}};
    in_stretches(count, all.grain, threads, add_squares, &all);
    return total_of(all.sums, STRETCHES);
}

/* --- differences --- */

#define BLOCK ((size_t)512) /* entries of a difference that are there at a time */

typedef struct {
    const compared *pair;
    size_t grain;
    double sums[STRETCHES];
} difference_sums;

static void add_differences(void *context, size_t begin, size_t end) {
    difference_sums *all = context;
    float block[BLOCK];
    double sum = 0;
    for (size_t i = begin; i < end; i += BLOCK) {
        size_t count = end - i < BLOCK ? end - i : BLOCK;
        write_difference(all->pair, i, count, block);
        sum += squares_added(block, count);
    }
    all->sums[begin / all->grain] = sum;
}

double squared_difference(const compared *pair, size_t count, int threads) {
    difference_sums all = {pair, grain_of(count), {0}};
    in_stretches(count, all.grain, threads, add_differences, &all);
    return total_of(all.sums, STRETCHES);
}

/* --- rows --- */

FOR_EACH_PROCESSOR
static void scale_row(const float *restrict row, size_t entries, float factor, float *restrict found) {
    for (size_t i = 0; i < entries; i++) {
        float scaled = row[i] * factor;
        found[i] = scaled == scaled ? scaled : 0.0f; /* zero times infinity, or NaN */
    }
}

typedef struct {
    const float *rows;
    size_t entries;
    double limit, room;
    float *found;
} clipped_rows;

/* What a row of that norm is scaled by, rounded down: where numbers are subnormal, rounding is absolute. */
static float factor_of(double norm, double limit, double room) {
    double quotient = norm <= limit ? 1.0 : room / norm; /* of NaN, NaN; of infinity, zero */
    if (quotient < FLT_MIN) quotient = fmax(quotient - 0x1p-150, 0.0);
    return (float)quotient;
}

static void clip_some(void *context, size_t begin, size_t end) {
    const clipped_rows *all = context;
    for (size_t i = begin; i < end; i++) {
        const float *row = all->rows + i * all->entries;
        double norm = sqrt(squares_added(row, all->entries));
        scale_row(row, all->entries, factor_of(norm, all->limit, all->room), all->found + i * all->entries);
    }
}

static size_t rows_at_once(size_t entries) { return entries < GRAIN ? GRAIN / (entries + 1) + 1 : 1; }

void clip_rows(const float *rows, size_t count, size_t entries, double limit, double room, float *found, int threads) {
    clipped_rows all = {rows, entries, limit, room, found};
    in_stretches(count, rows_at_once(entries), threads, clip_some, &all);
}

typedef struct {
    const float *rows;
    size_t entries;
    double *found;
} measured_rows;

static void measure_some(void *context, size_t begin, size_t end) {
    const measured_rows *all = context;
    for (size_t i = begin; i < end; i++) all->found[i] = sqrt(squares_added(all->rows + i * all->entries, all->entries));
}

void row_norms(const float *rows, size_t count, size_t entries, double *found, int threads) {
    measured_rows all = {rows, entries, found};
    in_stretches(count, rows_at_once(entries), threads, measure_some, &all);
}

/* --- sums of each --- */

typedef struct {
    const float *terms;
    size_t count, entries;
    double *found;
} summed_terms;

FOR_EACH_PROCESSOR
static void add_term(const float *restrict term, size_t entries, double *restrict sums) {
    for (size_t i = 0; i < entries; i++) sums[i] += (double)term[i];
}

FOR_EACH_PROCESSOR
static double terms_added(const float *terms, size_t count) {
    double sums[LANES] = {0};
    size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++) sums[j] += (double)terms[i + j];
    for (size_t i = whole; i < count; i++) sums[0] += (double)terms[i];
    return total_of(sums, LANES);
}

static void sum_some(void *context, size_t begin, size_t end) {
    const summed_terms *all = context;
    for (size_t i = begin; i < end; i++) {
        const float *terms = all->terms + i * all->count * all->entries;
        double *sums = all->found + i * all->entries;
        if (all->entries == 1) {
            *sums = terms_added(terms, all->count);
            continue;
        }
        for (size_t j = 0; j < all->entries; j++) sums[j] = 0;
        for (size_t j = 0; j < all->count; j++) add_term(terms + j * all->entries, all->entries, sums);
    }
}

void sum_of_each(const float *terms, size_t examples, size_t count, size_t entries, double *found, int threads) {
    summed_terms all = {terms, count, entries, found};
    in_stretches(examples, rows_at_once(count * entries), threads, sum_some, &all);
}
