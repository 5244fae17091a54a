/* What a step does to every entry of a gradient, a weight or an input, in one pass over memory.
 *
 * Kernels compute what the Python beside them computes with torch's operations, which is what there is without a
 * compiler. They know nothing of Python, which finds them by table.c.
 */
#ifndef LIPCOMPILE_KERNELS_H
#define LIPCOMPILE_KERNELS_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>

/* Then NaN would pass for a number, sums be reordered, and each processor round in its own way. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || FLT_EVAL_METHOD == 1 || \
    FLT_EVAL_METHOD == 2
#error "kernels need arithmetic as IEEE 754 has it: compile without -ffast-math"
#endif

/* A function that is compiled for several levels of x86-64, of which that of the processor is chosen when it is loaded.
 * All give the same bits: nothing is contracted (see pyproject.toml), and sums are not reordered.
 *
 * gcc before 12 has no such levels. clang before 18 takes their names, and then chooses by the processor's vendor. They,
 * and systems without GNU's loader, have one version, for what `has_fused_operations` asks for. gcc would inline the
 * version for all processors if it might; clang inlines none, and refuses the word.
 */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__clang__) && __clang_major__ >= 18
#define HAS_LEVELS 1
#define INLINED_NOWHERE
#elif defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12
#define HAS_LEVELS 1
#define INLINED_NOWHERE __attribute__((noinline))
#else
#define HAS_LEVELS 0
#endif

#if defined(FOR_EACH_PROCESSOR) /* chosen by who compiles */
#elif HAS_LEVELS
#define FOR_EACH_PROCESSOR INLINED_NOWHERE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GNUC__)
#define FOR_EACH_PROCESSOR __attribute__((target("avx2,fma")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* Whether the processor has what a kernel without levels is compiled for. Without, fma() is a function, and slow. */
int has_fused_operations(void);

/* The instructions that are used on this processor, but for those of AES. */
const char *instructions(void);

static inline size_t at_most(size_t count, size_t limit) { return count < limit ? count : limit; }

/* Call work(context, begin, end) for pieces of [0, count) of `grain` each, the last one shorter, in so many threads
 * at most. Pieces must not touch what others write. Which thread takes which is not known.
 */
typedef void (*stretch_work)(void *context, size_t begin, size_t end);
void in_stretches(size_t count, size_t grain, int threads, stretch_work work, void *context);

/* Once, before anything else. */
void prepare_threads(void);

/* Entries of a gradient that lie side by side, in float32 or in float64, and the scale of the noise on each. */
typedef struct {
    void *entries;
    size_t count;
    int is_double;
    double scale;
} noisy_part;

/* Whether the processor has instructions for AES, and those for several blocks at once that this compiler knows. */
int has_aes(void);
int has_wide_aes(void);

/* Random words: those that are there, or, where there are none, those of a key, from block `index` of its stream on. */
typedef struct {
    const uint64_t *words;
    const unsigned char *key_and_counter;
    uint64_t index;
} word_source;

/* Write blocks `index` to index + count, of two words each, of the stream of AES-128 in counter mode.
 *
 * key_and_counter: 16 bytes each, the counter that of block 0. To be called only if `has_aes`.
 */
void key_stream(const unsigned char *key_and_counter, uint64_t index, size_t count, uint64_t *words);

/* Add scale·normal to the entries of parts, each sum computed in float64 and rounded once. The normals are those of
 * noise/processor.py: of each block of entries, counted over all parts, entries i and half + i get the pair that its words i
 * and half + i give, half being half of its entries, rounded up.
 *
 * source: of as many words as there are entries, rounded up to an even number.
 * count: of entries.
 * block: so many entries, an even number, the last one fewer.
 */
void add_normals(const word_source *source, size_t count, size_t block, const noisy_part *parts, size_t part_count,
                 int threads);

/* Of bytes, as signed words of 32 bits, `block` of them to a block: the sum of inner·word over each block, times its
 * outer, over all blocks, modulo 2^64. Zeros fill the last word.
 *
 * inner: [block].
 * outer: one for each block.
 */
typedef struct {
    const uint64_t *inner, *outer;
    size_t block;
} fingerprint_key;
uint64_t fingerprint(const unsigned char *bytes, size_t size, const fingerprint_key *key, int threads);

/* The sum of squares, in float64: of n entries it is off by a relative (n + 2)·2^-53 at most. */
double sum_of_squares(const float *entries, size_t count, int threads);

/* A weight, and a copy that it is compared with, in float16 or in float32. */
typedef struct {
    const float *weight;
    const void *copy;
    int copy_is_half;
    float share;
} compared;

/* Write entries `start` to start + count of weight - share·copy, computed in float32 with one rounding. */
void write_difference(const compared *pair, size_t start, size_t count, float *restrict found);

/* The sum of squares, in float64, of weight - share·copy, computed in float32 with one rounding. */
double squared_difference(const compared *pair, size_t count, int threads);

/* Of the matrix D = weight - share·copy, computed in float32 with one rounding, cut into blocks of `height` rows, at most
 * MOST_ROWS: the moments that drift.py asks for of the Gram matrix of each, at least two. See gram.c for what products
 * are off.
 *
 * Entry (i, k) lies at i·row_stride + k·column_stride in both, and one of the strides is 1.
 * found: [blocks, moments].
 */
#define MOST_ROWS 128
void gram_moments(const compared *pair, size_t rows, size_t columns, size_t row_stride, size_t column_stride,
                  size_t height, size_t moments, double *found, int threads);

/* The Gram matrix [count, count] of rows, `pitch` entries apart, each entry rounded to float32 at the end. See gram.c. */
void gram_matrix(const float *rows, size_t count, size_t columns, size_t pitch, float *found, int threads);

/* An entry of LANES matrices of complex numbers. */
#define LANES 16
typedef struct {
    float re[LANES], im[LANES];
} complex_lanes;

/* Kernels [groups, rows, columns, positions], and the cosines and sines [positions, blocks·LANES] of frequencies. */
typedef struct {
    const float *entries;
    size_t groups, rows, columns, positions, blocks;
    const float *cosines, *sines;
} kernel_stack;

/* Write the Gram matrices of rows of the matrices that kernels have at frequencies, of each the lower triangle, row by
 * row: [groups·blocks][rows·(rows + 1)/2].
 *
 * room: [groups·blocks][rows·columns].
 */
void spectra_grams(const kernel_stack *kernel, complex_lanes *room, complex_lanes *grams, int threads);

/* Guess the largest eigenvalue of each block that is wanted, by so many steps of Lanczos, at most 32; 0 of the others.
 *
 * wanted: [blocks].
 * start: a unit vector [rows], of complex numbers.
 * room: [blocks][3·rows].
 */
void spectra_guess(const complex_lanes *grams, size_t blocks, size_t rows, const unsigned char *wanted, size_t steps,
                   const float *start, complex_lanes *room, double *guesses, int threads);

/* Factorise limit - gram by Cholesky, of each block with a matrix that is open; those that have a factor no longer are.
 * Write the largest trace of each block, 0 of those left out.
 *
 * room: [blocks][rows·(rows + 1)/2].
 * open: [blocks][LANES].
 */
void spectra_prove(const complex_lanes *grams, size_t blocks, size_t rows, float limit, complex_lanes *room,
                   unsigned char *open, double *traces, int threads);

/* The norm of each row, in float64: of n entries it is off by a relative (n/2 + 1)·2^-53 at most, up to terms of second
 * order. A square goes through n roundings at most, of which the root keeps half, and adds its own.
 */
void row_norms(const float *rows, size_t count, size_t entries, double *found, int threads);

/* The sum of the terms [examples, count, entries] of each example, in float64: [examples, entries]. */
void sum_of_each(const float *terms, size_t examples, size_t count, size_t entries, double *found, int threads);

/* Project rows on a ball as functional.py does. Rows in it keep their bits; a row that is not finite becomes zero.
 *
 * limit: up to what norm a row is in it.
 * room: what a longer one is scaled to.
 */
void clip_rows(const float *rows, size_t count, size_t entries, double limit, double room, float *found, int threads);

#endif
