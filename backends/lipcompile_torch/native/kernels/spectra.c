/* Certificates of convolutions, see certify/single_precision.py: many matrices of complex numbers, one in each lane.
 *
 * No lane ever meets another: what stands here is what textbooks say of one matrix. Of a Hermitian matrix the lower
 * triangle is there, row by row.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

#define ROWS 4 /* of a tile */
#define COLUMNS 2
#define MOST_STEPS 32 /* of Lanczos */
#define BISECTIONS 20
#define NOTHING 1e-16f /* vectors so short have squares that vanish */
#define PANEL ((size_t)32) /* columns that are done with before the next ones, while they are in the cache */

/* LANES matrices; a triangle if there is no pitch. */
typedef struct {
    complex_lanes *entries;
    size_t rows, pitch;
} stack;

static complex_lanes *row_of(stack all, size_t i) { return all.entries + (all.pitch ? i * all.pitch : i * (i + 1) / 2); }

/* The products of ROWS rows with the conjugates of COLUMNS rows. */
FOR_EACH_PROCESSOR
static void products(const complex_lanes *const *left, const complex_lanes *const *right, size_t count,
                     complex_lanes (*found)[COLUMNS]) {
    float re[ROWS][COLUMNS][LANES] = {{{0}}}, im[ROWS][COLUMNS][LANES] = {{{0}}};
    for (size_t k = 0; k < count; k++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++)
                for (int l = 0; l < LANES; l++) {
                    const complex_lanes *a = left[i] + k, *b = right[j] + k;
                    re[i][j][l] = fmaf(a->im[l], b->im[l], fmaf(a->re[l], b->re[l], re[i][j][l]));
                    im[i][j][l] = fmaf(-a->re[l], b->im[l], fmaf(a->im[l], b->re[l], im[i][j][l]));
                }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            for (int l = 0; l < LANES; l++) {
                found[i][j].re[l] = re[i][j][l];
                found[i][j].im[l] = im[i][j][l];
            }
}

FOR_EACH_PROCESSOR
static void add_lanes(const complex_lanes *term, float sign, complex_lanes *sum) {
    for (int l = 0; l < LANES; l++) {
        sum->re[l] += sign * term->re[l];
        sum->im[l] += sign * term->im[l];
    }
}

/* Add to entries from (i, j) on, of a tile, those on and below the diagonal, the products of rows, over some columns. */
static void add_tile(stack rows, size_t i, size_t j, size_t begin, size_t end, float sign, stack found) {
    const complex_lanes *left[ROWS], *right[COLUMNS];
    complex_lanes tile[ROWS][COLUMNS];
    for (size_t s = 0; s < ROWS; s++) left[s] = row_of(rows, at_most(i + s, rows.rows - 1)) + begin;
    for (size_t t = 0; t < COLUMNS; t++) right[t] = row_of(rows, at_most(j + t, rows.rows - 1)) + begin;
    products(left, right, end - begin, tile);
    for (size_t s = 0; s < ROWS && i + s < rows.rows; s++)
        for (size_t t = 0; t < COLUMNS && j + t <= i + s; t++) add_lanes(&tile[s][t], sign, row_of(found, i + s) + j + t);
}

static void add_tiles(stack rows, size_t first, size_t begin, size_t end, float sign, stack found) {
    for (size_t j = first; j < rows.rows; j += COLUMNS)
        for (size_t i = j; i < rows.rows; i += ROWS) add_tile(rows, i, j, begin, end, sign, found);
}

/* --- Gram matrices --- */

/* Write the entries that a kernel [entries, positions] has at LANES frequencies. */
FOR_EACH_PROCESSOR
static void transform(const float *kernel, size_t entries, size_t positions, const float *cosines, const float *sines,
                      size_t pitch, complex_lanes *found) {
    for (size_t i = 0; i < entries; i++) {
        float re[LANES] = {0}, im[LANES] = {0};
        for (size_t p = 0; p < positions; p++)
            for (size_t l = 0; l < LANES; l++) {
                re[l] = fmaf(kernel[i * positions + p], cosines[p * pitch + l], re[l]);
                im[l] = fmaf(kernel[i * positions + p], sines[p * pitch + l], im[l]);
            }
        memcpy(found[i].re, re, sizeof re);
        memcpy(found[i].im, im, sizeof im);
    }
}

typedef struct {
    kernel_stack kernel;
    complex_lanes *room, *grams;
} squared;

static size_t triangle_of(size_t rows) { return rows * (rows + 1) / 2; }

static void square_some(void *context, size_t begin, size_t end) {
    const squared *all = context;
    kernel_stack kernel = all->kernel;
    size_t entries = kernel.rows * kernel.columns;
    for (size_t block = begin; block < end; block++) {
        size_t group = block / kernel.blocks, lane = block % kernel.blocks * LANES;
        stack maps = {all->room + block * entries, kernel.rows, kernel.columns};
        stack gram = {all->grams + block * triangle_of(kernel.rows), kernel.rows, 0};
        transform(kernel.entries + group * entries * kernel.positions, entries, kernel.positions, kernel.cosines + lane,
                  kernel.sines + lane, kernel.blocks * LANES, maps.entries);
        memset(gram.entries, 0, triangle_of(kernel.rows) * sizeof *gram.entries);
        for (size_t left = 0; left < kernel.columns; left += PANEL)
            add_tiles(maps, 0, left, at_most(left + PANEL, kernel.columns), 1, gram);
    }
}

void spectra_grams(const kernel_stack *kernel, complex_lanes *room, complex_lanes *grams, int threads) {
    squared all = {*kernel, room, grams};
    in_stretches(kernel->groups * kernel->blocks, 1, threads, square_some, &all);
}

/* --- proofs --- */

/* Write limit - gram; return the largest trace in float64. */
FOR_EACH_PROCESSOR
static double shift(stack gram, float limit, stack found) {
    double traces[LANES] = {0}, largest = 0;
    for (size_t i = 0; i < triangle_of(gram.rows); i++)
        for (int l = 0; l < LANES; l++) {
            found.entries[i].re[l] = -gram.entries[i].re[l];
            found.entries[i].im[l] = -gram.entries[i].im[l];
        }
    for (size_t i = 0; i < gram.rows; i++) {
        float *diagonal = row_of(found, i)[i].re;
        for (int l = 0; l < LANES; l++) {
            diagonal[l] += limit;
            traces[l] += diagonal[l];
        }
    }
    for (int l = 0; l < LANES; l++) largest = traces[l] > largest ? traces[l] : largest;
    return largest;
}

/* Divide column j by the root of its pivot; lanes whose pivot is no positive number are no longer sound. */
FOR_EACH_PROCESSOR
static void divide_column(stack all, size_t j, unsigned char *sound) {
    float root[LANES], pivot[LANES];
    complex_lanes *first = row_of(all, j) + j;
    memcpy(pivot, first->re, sizeof pivot);
    for (int l = 0; l < LANES; l++) sound[l] = sound[l] && pivot[l] > 0 && pivot[l] <= FLT_MAX;
    for (int l = 0; l < LANES; l++) root[l] = sqrtf(pivot[l]);
    memcpy(first->re, root, sizeof root);
    for (size_t i = j + 1; i < all.rows; i++) {
        complex_lanes *entry = row_of(all, i) + j;
        for (int l = 0; l < LANES; l++) {
            entry->re[l] /= root[l];
            entry->im[l] /= root[l];
        }
    }
}

/* Subtract from column j + 1 what column j has to do with it. */
FOR_EACH_PROCESSOR
static void subtract_column(stack all, size_t j) {
    complex_lanes beside = row_of(all, j + 1)[j];
    for (size_t i = j + 1; i < all.rows; i++) {
        complex_lanes *entry = row_of(all, i) + j;
        for (int l = 0; l < LANES; l++) {
            float re = fmaf(entry->im[l], beside.im[l], entry->re[l] * beside.re[l]);
            float im = fmaf(-entry->re[l], beside.im[l], entry->im[l] * beside.re[l]);
            entry[1].re[l] -= re;
            entry[1].im[l] -= im;
        }
    }
}

/* Factorise by Cholesky, in place. */
static void factorise(stack all, unsigned char *sound) {
    for (size_t start = 0; start < all.rows; start += PANEL) {
        size_t end = at_most(start + PANEL, all.rows);
        for (size_t j = start; j < end; j += COLUMNS) {
            for (size_t i = j; i < all.rows && j > start; i += ROWS) add_tile(all, i, j, start, j, -1, all);
            divide_column(all, j, sound);
            if (j + 1 == end) continue;
            subtract_column(all, j);
            divide_column(all, j + 1, sound);
        }
        add_tiles(all, end, start, end, -1, all);
    }
}

typedef struct {
    const complex_lanes *grams;
    size_t rows;
    float limit;
    complex_lanes *room;
    unsigned char *open;
    double *traces;
} proved;

static void prove_some(void *context, size_t begin, size_t end) {
    const proved *all = context;
    for (size_t block = begin; block < end; block++) {
        unsigned char sound[LANES], *open = all->open + block * LANES;
        stack gram = {(complex_lanes *)all->grams + block * triangle_of(all->rows), all->rows, 0};
        stack shifted = {all->room + block * triangle_of(all->rows), all->rows, 0};
        all->traces[block] = 0;
        if (memchr(open, 1, LANES) == NULL) continue;
        memset(sound, 1, sizeof sound);
        all->traces[block] = shift(gram, all->limit, shifted);
        factorise(shifted, sound);
        for (int l = 0; l < LANES; l++) open[l] = open[l] && !sound[l];
    }
}

void spectra_prove(const complex_lanes *grams, size_t blocks, size_t rows, float limit, complex_lanes *room,
                   unsigned char *open, double *traces, int threads) {
    proved all = {grams, rows, limit, room, open, traces};
    in_stretches(blocks, 1, threads, prove_some, &all);
}

/* --- guesses --- */

FOR_EACH_PROCESSOR
static void multiply(stack gram, const complex_lanes *vector, complex_lanes *restrict image) {
    memset(image, 0, gram.rows * sizeof *image);
    for (size_t i = 0; i < gram.rows; i++) {
        const complex_lanes *row = row_of(gram, i);
        float re[LANES], im[LANES];
        for (int l = 0; l < LANES; l++) {
            re[l] = row[i].re[l] * vector[i].re[l];
            im[l] = row[i].re[l] * vector[i].im[l];
        }
        for (size_t j = 0; j < i; j++)
            for (int l = 0; l < LANES; l++) {
                float a = row[j].re[l], b = row[j].im[l];
                re[l] = fmaf(a, vector[j].re[l], fmaf(-b, vector[j].im[l], re[l]));
                im[l] = fmaf(a, vector[j].im[l], fmaf(b, vector[j].re[l], im[l]));
                image[j].re[l] = fmaf(a, vector[i].re[l], fmaf(b, vector[i].im[l], image[j].re[l]));
                image[j].im[l] = fmaf(a, vector[i].im[l], fmaf(-b, vector[i].re[l], image[j].im[l]));
            }
        for (int l = 0; l < LANES; l++) {
            image[i].re[l] += re[l];
            image[i].im[l] += im[l];
        }
    }
}

/* Write the real parts of products of vectors. */
FOR_EACH_PROCESSOR
static void inner(const complex_lanes *one, const complex_lanes *other, size_t size, float *found) {
    float sums[LANES] = {0};
    for (size_t i = 0; i < size; i++)
        for (int l = 0; l < LANES; l++)
            sums[l] = fmaf(one[i].re[l], other[i].re[l], fmaf(one[i].im[l], other[i].im[l], sums[l]));
    memcpy(found, sums, sizeof sums);
}

FOR_EACH_PROCESSOR
static void add_multiple(complex_lanes *sum, const complex_lanes *vector, const float *factor, size_t size) {
    for (size_t i = 0; i < size; i++)
        for (int l = 0; l < LANES; l++) {
            sum[i].re[l] = fmaf(factor[l], vector[i].re[l], sum[i].re[l]);
            sum[i].im[l] = fmaf(factor[l], vector[i].im[l], sum[i].im[l]);
        }
}

/* Divide vectors by their lengths; those that are as good as nothing become zero, not whatever is left of them. */
FOR_EACH_PROCESSOR
static void divide(complex_lanes *vector, const float *length, size_t size) {
    for (size_t i = 0; i < size; i++)
        for (int l = 0; l < LANES; l++) {
            vector[i].re[l] = length[l] < NOTHING ? 0 : vector[i].re[l] / length[l];
            vector[i].im[l] = length[l] < NOTHING ? 0 : vector[i].im[l] / length[l];
        }
}

/* Whether a symmetric matrix of three diagonals has an eigenvalue above x. */
static int reaches_above(float (*diagonal)[LANES], float (*side)[LANES], size_t steps, int lane, double x) {
    double pivot = diagonal[0][lane] - x;
    for (size_t k = 1; k < steps && pivot < 0; k++)
        pivot = diagonal[k][lane] - x - (double)side[k - 1][lane] * side[k - 1][lane] / pivot;
    return !(pivot < 0);
}

/* That of a lane, which is positive: by bisection, below the largest row of moduli. */
static double largest_eigenvalue(float (*diagonal)[LANES], float (*side)[LANES], size_t steps, int lane) {
    double low = 0, high = 0;
    for (size_t k = 0; k < steps; k++) {
        double reach = (double)diagonal[k][lane] + (k > 0 ? side[k - 1][lane] : 0) + side[k][lane];
        if (!(reach <= high)) high = reach; /* or NaN */
    }
    for (int i = 0; i < BISECTIONS; i++) {
        double middle = low + (high - low) / 2;
        if (reaches_above(diagonal, side, steps, lane, middle))
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* Lanczos, without orthogonalising anew: that repeats Ritz values, but does not move the largest one (Paige 1980). */
static double guess_block(stack gram, const float *start, size_t steps, complex_lanes *vector) {
    complex_lanes *image = vector + gram.rows, *before = image + gram.rows, *spare;
    float diagonal[MOST_STEPS][LANES], side[MOST_STEPS][LANES], minus[LANES], last[LANES] = {0};
    double largest = 0;
    steps = at_most(at_most(steps, MOST_STEPS), gram.rows);
    memset(before, 0, gram.rows * sizeof *before);
    for (size_t i = 0; i < gram.rows; i++)
        for (int l = 0; l < LANES; l++) {
            vector[i].re[l] = start[2 * i];
            vector[i].im[l] = start[2 * i + 1];
        }
    for (size_t k = 0; k < steps; k++) {
        multiply(gram, vector, image);
        add_multiple(image, before, last, gram.rows);
        inner(image, vector, gram.rows, diagonal[k]);
        for (int l = 0; l < LANES; l++) minus[l] = -diagonal[k][l];
        add_multiple(image, vector, minus, gram.rows);
        inner(image, image, gram.rows, side[k]);
        for (int l = 0; l < LANES; l++) {
            side[k][l] = sqrtf(side[k][l]);
            last[l] = -side[k][l];
        }
        divide(image, side[k], gram.rows);
        spare = before, before = vector, vector = image, image = spare;
    }
    for (int l = 0; l < LANES; l++) {
        double found = largest_eigenvalue(diagonal, side, steps, l);
        if (!(found <= largest)) largest = found;
    }
    return largest;
}

typedef struct {
    const complex_lanes *grams;
    size_t rows;
    const unsigned char *wanted;
    size_t steps;
    const float *start;
    complex_lanes *room;
    double *guesses;
} guessed;

static void guess_some(void *context, size_t begin, size_t end) {
    const guessed *all = context;
    for (size_t block = begin; block < end; block++) {
        stack gram = {(complex_lanes *)all->grams + block * triangle_of(all->rows), all->rows, 0};
        complex_lanes *room = all->room + block * 3 * all->rows;
        all->guesses[block] = all->wanted[block] ? guess_block(gram, all->start, all->steps, room) : 0;
    }
}

void spectra_guess(const complex_lanes *grams, size_t blocks, size_t rows, const unsigned char *wanted, size_t steps,
                   const float *start, complex_lanes *room, double *guesses, int threads) {
    guessed all = {grams, rows, wanted, steps, start, room, guesses};
    in_stretches(blocks, 1, threads, guess_some, &all);
}
