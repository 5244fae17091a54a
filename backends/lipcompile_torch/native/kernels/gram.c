/* Gram matrices: of weights, see single.py, and of what they have moved, see drift.py.
 *
 * An entry is added up in float32 over CHUNK columns at most, in LANES sums of CHUNK/LANES products each, and over
 * the chunks in float64. With fused operations that is off by a relative γ_36 of the sum of moduli, u = 2^-24, at most.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

#define CHUNK 512
#define PITCH (CHUNK + 16) /* rows a power of two apart would fall on each other in the cache */
#define TILE 4
#define HEIGHT 64 /* rows of a block of a matrix */

/* LANES sums, and how the next products are added to them, fused. clang would keep an array in memory, which takes twenty
 * times as long; gcc has no such operation of vectors, and none that it keeps in registers behind a call.
 */
#if defined(__clang__) && __clang_major__ >= 16
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static inline void add_product(lanes *sum, const float *one, const float *other) {
    lanes left, right;
    memcpy(&left, one, sizeof left);
    memcpy(&right, other, sizeof right);
    *sum = __builtin_elementwise_fma(left, right, *sum);
}
#define ADD_PRODUCT(sum, one, other) add_product(&(sum), one, other)
#else
typedef float lanes[LANES];
#define ADD_PRODUCT(sum, one, other) \
    for (int l = 0; l < LANES; l++) (sum)[l] = fmaf((one)[l], (other)[l], (sum)[l])
#endif

/* The products of TILE rows with TILE rows, over `count` columns, a multiple of LANES. */
FOR_EACH_PROCESSOR
static void products(const float *const *left, const float *const *right, size_t count, float *restrict found) {
    lanes sums[TILE][TILE] = {{{0}}};
    float eight[TILE * TILE][8], four[TILE * TILE][4];
    for (size_t k = 0; k < count; k += LANES)
        for (int i = 0; i < TILE; i++)
            for (int j = 0; j < TILE; j++) ADD_PRODUCT(sums[i][j], left[i] + k, right[j] + k);
    for (int t = 0; t < TILE * TILE; t++)
        for (int l = 0; l < 8; l++) eight[t][l] = sums[t / TILE][t % TILE][l] + sums[t / TILE][t % TILE][l + 8];
    for (int t = 0; t < TILE * TILE; t++)
        for (int l = 0; l < 4; l++) four[t][l] = eight[t][l] + eight[t][l + 4];
    for (int t = 0; t < TILE * TILE; t++) found[t] = (four[t][0] + four[t][1]) + (four[t][2] + four[t][3]);
}

/* Rows of a matrix, `pitch` entries apart. */
typedef struct {
    const float *entries;
    size_t rows, pitch;
} block;

/* Where TILE rows from `top` on begin; the last one again in place of those that there are not. */
static void tile_of(block rows, size_t top, size_t left, const float **found) {
    for (size_t i = 0; i < TILE; i++)
        found[i] = rows.entries + (top + i < rows.rows ? top + i : rows.rows - 1) * rows.pitch + left;
}

/* Add the products of left rows i with right rows j, over columns from `start` on, to gram [MOST_ROWS, MOST_ROWS].
 *
 * same: whether they are the same rows: above the diagonal there is anything, then.
 */
static void add_products(block left, block right, int same, size_t start, size_t columns, double *gram) {
    const float *one[TILE], *other[TILE];
    float found[TILE * TILE];
    for (size_t i = 0; i < left.rows; i += TILE) {
        tile_of(left, i, start, one);
        for (size_t j = 0; j < right.rows && (!same || j <= i); j += TILE) {
            tile_of(right, j, start, other);
            products(one, other, columns, found);
            for (int t = 0; t < TILE * TILE; t++) gram[(i + t / TILE) * MOST_ROWS + j + t % TILE] += found[t];
        }
    }
}

/* --- of a difference --- */

typedef struct {
    const compared *pair;
    size_t rows, columns, row_stride, column_stride, height, moments;
    double *found;
} measured;

/* Write columns `left` to left + count of a block of rows; whatever is beyond, up to whole tiles and lanes, is 0. */
static void write_rows(const measured *all, size_t top, size_t rows, size_t left, size_t count, float *found) {
    memset(found, 0, MOST_ROWS * PITCH * sizeof *found);
    if (all->column_stride == 1) {
        for (size_t i = 0; i < rows; i++)
            write_difference(all->pair, (top + i) * all->row_stride + left, count, found + i * PITCH);
        return;
    }
    for (size_t k = 0; k < count; k++) {
        float column[MOST_ROWS];
        write_difference(all->pair, top + (left + k) * all->column_stride, rows, column);
        for (size_t i = 0; i < rows; i++) found[i * PITCH + k] = column[i];
    }
}

/* The Frobenius norm of a symmetric matrix, of which there is what lies on the diagonal and below. */
static double length_of(const double *gram, size_t rows) {
    double beside = 0, diagonal = 0;
    for (size_t i = 0; i < rows; i++) {
        const double *row = gram + i * MOST_ROWS;
        for (size_t j = 0; j < i; j++) beside = fma(row[j], row[j], beside);
        diagonal = fma(row[i], row[i], diagonal);
    }
    return sqrt(diagonal + 2 * beside);
}

/* Replace a symmetric matrix of Frobenius norm `length` by the square of what it is divided by that, in float32. */
static void square(double *gram, size_t rows, double length, float *scaled) {
    block these = {scaled, rows, PITCH};
    memset(scaled, 0, MOST_ROWS * PITCH * sizeof *scaled);
    for (size_t i = 0; length > 0 && i < rows; i++)
        for (size_t j = 0; j <= i; j++)
            scaled[i * PITCH + j] = scaled[j * PITCH + i] = (float)(gram[i * MOST_ROWS + j] / length);
    memset(gram, 0, MOST_ROWS * MOST_ROWS * sizeof *gram);
    add_products(these, these, 1, 0, (rows + LANES - 1) / LANES * LANES, gram);
}

static void measure_block(const measured *all, size_t number) {
    size_t top = number * all->height, rows = at_most(all->rows - top, all->height);
    float room[MOST_ROWS * PITCH];
    double gram[MOST_ROWS * MOST_ROWS] = {0}, trace = 0, *found = all->found + number * all->moments;
    for (size_t left = 0; left < all->columns; left += CHUNK) {
        size_t count = at_most(all->columns - left, CHUNK);
        block these = {room, rows, PITCH};
        write_rows(all, top, rows, left, count, room);
        add_products(these, these, 1, 0, (count + LANES - 1) / LANES * LANES, gram);
    }
    for (size_t i = 0; i < rows; i++) trace += gram[i * MOST_ROWS + i];
    for (size_t i = 0; i < rows; i++) gram[i * MOST_ROWS + i] -= trace / (double)rows;
    found[0] = trace;
    found[1] = length_of(gram, rows);
    for (size_t i = 2; i < all->moments; i++) {
        square(gram, rows, found[i - 1], room);
        found[i] = length_of(gram, rows);
    }
}

static void measure_some(void *context, size_t begin, size_t end) {
    for (size_t number = begin; number < end; number++) measure_block(context, number);
}

void gram_moments(const compared *pair, size_t rows, size_t columns, size_t row_stride, size_t column_stride,
                  size_t height, size_t moments, double *found, int threads) {
    measured all = {pair, rows, columns, row_stride, column_stride, height, moments, found};
    in_stretches((rows + height - 1) / height, 1, threads, measure_some, &all);
}

/* --- of a matrix --- */

typedef struct {
    const float *rows;
    size_t count, columns, pitch;
    float *found;
} squared;

/* Add the products over the last columns, fewer than LANES, as if there were zeros beside them. */
static void add_rest(block left, block right, int same, size_t start, size_t columns, double *gram) {
    float rest[2][HEIGHT * LANES] = {{0}};
    block one = {rest[0], left.rows, LANES}, other = {rest[1], right.rows, LANES};
    for (size_t i = 0; i < left.rows; i++)
        memcpy(rest[0] + i * LANES, left.entries + i * left.pitch + start, columns * sizeof(float));
    for (size_t i = 0; i < right.rows; i++)
        memcpy(rest[1] + i * LANES, right.entries + i * right.pitch + start, columns * sizeof(float));
    add_products(one, other, same, 0, LANES, gram);
}

static void multiply_blocks(const squared *all, size_t upper, size_t lower) {
    size_t top = upper * HEIGHT, side = lower * HEIGHT, rest = all->columns % LANES, whole = all->columns - rest;
    block left = {all->rows + top * all->pitch, at_most(all->count - top, HEIGHT), all->pitch};
    block right = {all->rows + side * all->pitch, at_most(all->count - side, HEIGHT), all->pitch};
    double gram[MOST_ROWS * MOST_ROWS] = {0};
    for (size_t start = 0; start < whole; start += CHUNK)
        add_products(left, right, upper == lower, start, at_most(whole - start, CHUNK), gram);
    if (rest > 0) add_rest(left, right, upper == lower, whole, rest, gram);
    for (size_t i = 0; i < left.rows; i++)
        for (size_t j = 0; j < right.rows && side + j <= top + i; j++) {
            float product = (float)gram[i * MOST_ROWS + j];
            all->found[(top + i) * all->count + side + j] = product;
            all->found[(side + j) * all->count + top + i] = product;
        }
}

/* Pairs of blocks, the second no later than the first, are numbered row by row. */
static void multiply_some(void *context, size_t begin, size_t end) {
    for (size_t number = begin; number < end; number++) {
        size_t upper = 0;
        while ((upper + 1) * (upper + 2) / 2 <= number) upper++;
        multiply_blocks(context, upper, number - upper * (upper + 1) / 2);
    }
}

void gram_matrix(const float *rows, size_t count, size_t columns, size_t pitch, float *found, int threads) {
    size_t blocks = (count + HEIGHT - 1) / HEIGHT;
    squared all = {rows, count, columns, pitch, found};
    in_stretches(blocks * (blocks + 1) / 2, 1, threads, multiply_some, &all);
}
