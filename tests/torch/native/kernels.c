/* Every kernel once, on numbers of a generator of its own: prints a hash of the bits that each gives. Linked with the
 * kernels, for every compiler, by test_compilers.py.
 */
#include <stdio.h>
#include <string.h>

#include "kernels.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static uint64_t state = 88172645463325252u;

static uint64_t word(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void fill(float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) numbers[i] = (float)((double)(int64_t)word() * 0x1p-62);
}

/* FNV-1a */
static void report(const char *name, const void *found, size_t bytes) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)found)[i]) * 1099511628211u;
    printf("%s %016llx\n", name, (unsigned long long)hash);
}

enum { COUNT = 100003, ROWS = 200, COLUMNS = 523 };

static void noise(void) {
    static uint64_t words[COUNT + 1];
    static float singles[COUNT / 3];
    static double doubles[COUNT - COUNT / 3];
    noisy_part parts[2] = {{singles, COUNT_OF(singles), 0, 0.3}, {doubles, COUNT_OF(doubles), 1, 1.7}};
    word_source source = {words, NULL, 0};
    for (size_t i = 0; i <= COUNT; i++) words[i] = i % 3 ? word() : word() >> word() % 64;
    fill(singles, COUNT_OF(singles));
    add_normals(&source, COUNT, 131072, parts, 2, 1);
    report("noise on floats", singles, sizeof singles);
    report("noise on doubles", doubles, sizeof doubles);
    fingerprint_key key = {words, words + 1024, 1024};
    uint64_t hash = fingerprint((const unsigned char *)doubles, sizeof doubles - 3, &key, 1);
    report("fingerprint", &hash, sizeof hash);
}

static void matrices(void) {
    static float weight[ROWS * COLUMNS], single[ROWS * COLUMNS], gram[ROWS * ROWS], rows[ROWS * COLUMNS];
    static uint16_t half[ROWS * COLUMNS];
    double moments[16] = {0}, sum;
    fill(weight, COUNT_OF(weight));
    fill(single, COUNT_OF(single));
    for (size_t i = 0; i < COUNT_OF(half); i++) half[i] = (uint16_t)(word() & 0xbfff); /* finite */
    for (int is_half = 0; is_half < 2; is_half++) {
        compared pair = {weight, is_half ? (const void *)half : single, is_half, 0.75f};
        sum = squared_difference(&pair, ROWS * COLUMNS, 1);
        report("difference", &sum, sizeof sum);
        gram_moments(&pair, ROWS, COLUMNS, COLUMNS, 1, 64, 4, moments, 1);
        report("moments", moments, sizeof moments);
        gram_moments(&pair, COLUMNS, ROWS, 1, COLUMNS, 128, 3, moments, 1);
        report("moments of the transpose", moments, sizeof moments);
    }
    sum = sum_of_squares(weight, ROWS * COLUMNS, 1);
    report("squares", &sum, sizeof sum);
    gram_matrix(weight, ROWS, COLUMNS, COLUMNS, gram, 1);
    report("Gram matrix", gram, sizeof gram);
    clip_rows(weight, ROWS, COLUMNS, 26.5, 26, rows, 1); /* some are longer */
    report("rows", rows, sizeof rows);
}

enum { GROUPS = 2, SIDE = 21, OTHER = 30, POSITIONS = 9, FEW = 2, TRIANGLE = SIDE * (SIDE + 1) / 2 };

static void convolutions(void) {
    static float entries[GROUPS * SIDE * OTHER * POSITIONS], cosines[POSITIONS * FEW * LANES], sines[COUNT_OF(cosines)];
    static complex_lanes room[GROUPS * FEW * SIDE * OTHER], grams[GROUPS * FEW * TRIANGLE];
    float start[2 * SIDE];
    unsigned char open[GROUPS * FEW * LANES], wanted[GROUPS * FEW];
    double guesses[GROUPS * FEW], traces[GROUPS * FEW];
    kernel_stack kernel = {entries, GROUPS, SIDE, OTHER, POSITIONS, FEW, cosines, sines};
    fill(entries, COUNT_OF(entries));
    fill(cosines, COUNT_OF(cosines));
    fill(sines, COUNT_OF(sines));
    fill(start, COUNT_OF(start));
    memset(wanted, 1, sizeof wanted);
    memset(open, 1, sizeof open);
    spectra_grams(&kernel, room, grams, 1);
    report("Gram matrices of frequencies", grams, sizeof grams);
    spectra_guess(grams, GROUPS * FEW, SIDE, wanted, 24, start, room, guesses, 1);
    report("guesses", guesses, sizeof guesses);
    spectra_prove(grams, GROUPS * FEW, SIDE, (float)guesses[0] * 0.9f, room, open, traces, 1);
    report("open", open, sizeof open);
    report("traces", traces, sizeof traces);
    report("factors", room, GROUPS * FEW * TRIANGLE * sizeof *room);
}

int main(void) {
    if (!has_fused_operations()) return 1;
    prepare_threads();
    noise();
    matrices();
    convolutions();
    return 0;
}
