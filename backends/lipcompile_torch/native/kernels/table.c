/* What Python sees of the kernels, by native/library.py: one function, `lipcompile_kernels`. */
#include "example_gradients.h"
#include "kernels.h"

/* A kernel, and the kinds of its arguments: p address, n size or another word of 64 bits, i int, f float, d double;
 * after > that of what it returns.
 */
typedef struct {
    const char *name;
    void (*code)(void);
    const char *kinds;
} kernel;

#define KERNEL(name, kinds) {#name, (void (*)(void))name, kinds}

static const kernel all[] = {
    KERNEL(add_normals, "pnnpni"),
    KERNEL(key_stream, "pnnp"),
    KERNEL(fingerprint, "pnpi>n"),
    KERNEL(sum_of_squares, "pni>d"),
    KERNEL(squared_difference, "pni>d"),
    KERNEL(gram_moments, "pnnnnnnpi"),
    KERNEL(gram_matrix, "pnnnpi"),
    KERNEL(spectra_grams, "pppi"),
    KERNEL(spectra_guess, "pnnpnpppi"),
    KERNEL(spectra_prove, "pnnfpppi"),
    KERNEL(row_norms, "pnnpi"),
    KERNEL(sum_of_each, "pnnnpi"),
    KERNEL(clip_rows, "pnnddpi"),
#if HAS_TILES
    KERNEL(example_gradients_room, "pi>n"),
    KERNEL(example_gradients, "pnpnpppi"),
    KERNEL(sum_held, "pnnppi"),
#endif
};

#if defined(__clang__)
#define COMPILER __VERSION__ /* begins with its name */
#elif defined(__GNUC__)
#define COMPILER "GCC " __VERSION__
#else
#define COMPILER "unknown"
#endif

typedef struct {
    int has_aes, has_wide_aes, most_rows, lanes, tile_vectors, tile_entries;
    const char *compiler, *instructions;
    const kernel *kernels;
    size_t kernel_count;
} description;

/* Return what there is; NULL if this processor cannot run it. */
__attribute__((visibility("default"))) const description *lipcompile_kernels(void) {
    static description found = {.most_rows = MOST_ROWS, .lanes = LANES, .compiler = COMPILER, .kernels = all};
    if (!has_fused_operations()) return NULL;
    found.has_aes = has_aes(), found.has_wide_aes = has_wide_aes(), found.instructions = instructions();
    found.kernel_count = sizeof all / sizeof *all;
#if HAS_TILES
    found.tile_vectors = (int)tiles_at_hand()->vectors, found.tile_entries = (int)tiles_at_hand()->entries;
#endif
    prepare_threads();
    return &found;
}
