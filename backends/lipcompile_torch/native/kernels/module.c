/* The kernels as a module of Python. Addresses are integers, and nothing here asks what lies there: native.py does. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "example_gradients.h"
#include "kernels.h"

/* Does what needs nothing of Python, lets other threads of Python run meanwhile, and returns None. */
#define RUN(call)                \
    do {                         \
        Py_BEGIN_ALLOW_THREADS;  \
        call;                    \
        Py_END_ALLOW_THREADS;    \
        Py_RETURN_NONE;          \
    } while (0)

/* (address, entries, whether they are float64, scale) */
static int read_part(PyObject *given, noisy_part *part) {
    unsigned long long address;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(given, "Knpd", &address, &count, &part->is_double, &part->scale)) return 0;
    part->entries = (void *)(uintptr_t)address;
    part->count = (size_t)count;
    return 1;
}

static PyObject *add_normals_to(word_source source, Py_ssize_t block, PyObject *given, int threads) {
    Py_ssize_t part_count = PyList_Size(given);
    noisy_part *parts = PyMem_Malloc((size_t)(part_count ? part_count : 1) * sizeof *parts);
    size_t count = 0;
    if (parts == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < part_count; i++) {
        if (!read_part(PyList_GetItem(given, i), &parts[i])) {
            PyMem_Free(parts);
            return NULL;
        }
        count += parts[i].count;
    }
    Py_BEGIN_ALLOW_THREADS;
    add_normals(source, count, (size_t)block, parts, (size_t)part_count, threads);
    Py_END_ALLOW_THREADS;
    PyMem_Free(parts);
    Py_RETURN_NONE;
}

static PyObject *py_add_normals(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long words;
    Py_ssize_t block;
    PyObject *parts;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnO!i", &words, &block, &PyList_Type, &parts, &threads)) return NULL;
    word_source source = {(const uint64_t *)(uintptr_t)words, NULL, 0};
    return add_normals_to(source, block, parts, threads);
}

static int read_key(Py_ssize_t length) {
    if (length == 32 && has_aes()) return 1;
    PyErr_SetString(PyExc_ValueError, "16 bytes of key and 16 of counter, and a processor with AES, are needed");
    return 0;
}

static PyObject *py_add_normals_of_key(PyObject *Py_UNUSED(self), PyObject *arguments) {
    const char *key;
    unsigned long long index;
    Py_ssize_t length, block;
    PyObject *parts;
    int threads;
    if (!PyArg_ParseTuple(arguments, "y#KnO!i", &key, &length, &index, &block, &PyList_Type, &parts, &threads))
        return NULL;
    if (!read_key(length)) return NULL;
    word_source source = {NULL, (const unsigned char *)key, index};
    return add_normals_to(source, block, parts, threads);
}

static PyObject *py_key_stream(PyObject *Py_UNUSED(self), PyObject *arguments) {
    const char *key;
    unsigned long long index, words;
    Py_ssize_t length, blocks;
    if (!PyArg_ParseTuple(arguments, "y#KnK", &key, &length, &index, &blocks, &words)) return NULL;
    if (!read_key(length)) return NULL;
    RUN(key_stream((const unsigned char *)key, index, (size_t)blocks, (uint64_t *)(uintptr_t)words));
}

static PyObject *py_fingerprint(PyObject *Py_UNUSED(self), PyObject *arguments) {
    PyObject *rows;
    unsigned long long inner, outer;
    Py_ssize_t block;
    int threads;
    uint64_t sum = 0;
    if (!PyArg_ParseTuple(arguments, "O!KnKi", &PyList_Type, &rows, &inner, &block, &outer, &threads)) return NULL;
    fingerprint_key key = {(const uint64_t *)(uintptr_t)inner, (const uint64_t *)(uintptr_t)outer, (size_t)block};
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        unsigned long long bytes;
        Py_ssize_t size;
        if (!PyArg_ParseTuple(PyList_GetItem(rows, i), "Kn", &bytes, &size)) return NULL;
        Py_BEGIN_ALLOW_THREADS;
        sum += fingerprint((const unsigned char *)(uintptr_t)bytes, (size_t)size, &key, threads);
        Py_END_ALLOW_THREADS;
        key.outer += ((size_t)size + 4 * key.block - 1) / (4 * key.block);
    }
    return PyLong_FromLongLong((long long)sum);
}

static PyObject *py_sum_of_squares(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long entries;
    Py_ssize_t count;
    int threads;
    double sum;
    if (!PyArg_ParseTuple(arguments, "Kni", &entries, &count, &threads)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    sum = sum_of_squares((const float *)(uintptr_t)entries, (size_t)count, threads);
    Py_END_ALLOW_THREADS;
    return PyFloat_FromDouble(sum);
}

/* (weight, copy, whether it is float16, share) */
static int read_pair(PyObject *given, compared *pair) {
    unsigned long long weight, copy;
    double share;
    if (!PyArg_ParseTuple(given, "KKpd", &weight, &copy, &pair->copy_is_half, &share)) return 0;
    pair->weight = (const float *)(uintptr_t)weight;
    pair->copy = (const void *)(uintptr_t)copy;
    pair->share = (float)share;
    return 1;
}

static PyObject *py_squared_difference(PyObject *Py_UNUSED(self), PyObject *arguments) {
    PyObject *given;
    Py_ssize_t count;
    int threads;
    compared pair;
    double sum;
    if (!PyArg_ParseTuple(arguments, "O!ni", &PyTuple_Type, &given, &count, &threads)) return NULL;
    if (!read_pair(given, &pair)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    sum = squared_difference(&pair, (size_t)count, threads);
    Py_END_ALLOW_THREADS;
    return PyFloat_FromDouble(sum);
}

static PyObject *py_gram_moments(PyObject *Py_UNUSED(self), PyObject *arguments) {
    PyObject *given;
    unsigned long long found;
    Py_ssize_t rows, columns, row_stride, column_stride, height, moments;
    int threads;
    compared pair;
    if (!PyArg_ParseTuple(arguments, "O!(nnnn)nnKi", &PyTuple_Type, &given, &rows, &columns, &row_stride,
                          &column_stride, &height, &moments, &found, &threads))
        return NULL;
    if (!read_pair(given, &pair)) return NULL;
    RUN(gram_moments(&pair, (size_t)rows, (size_t)columns, (size_t)row_stride, (size_t)column_stride, (size_t)height,
                     (size_t)moments, (double *)(uintptr_t)found, threads));
}

static PyObject *py_gram_matrix(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long rows, found;
    Py_ssize_t count, columns, pitch;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnnnKi", &rows, &count, &columns, &pitch, &found, &threads)) return NULL;
    RUN(gram_matrix((const float *)(uintptr_t)rows, (size_t)count, (size_t)columns, (size_t)pitch,
                    (float *)(uintptr_t)found, threads));
}

static PyObject *py_spectra_grams(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long entries, cosines, sines, room, grams;
    Py_ssize_t groups, rows, columns, positions, blocks;
    int threads;
    if (!PyArg_ParseTuple(arguments, "(KnnnnnKK)KKi", &entries, &groups, &rows, &columns, &positions, &blocks, &cosines,
                          &sines, &room, &grams, &threads))
        return NULL;
    kernel_stack kernel = {(const float *)(uintptr_t)entries, (size_t)groups,    (size_t)rows,
                           (size_t)columns,                   (size_t)positions, (size_t)blocks,
                           (const float *)(uintptr_t)cosines, (const float *)(uintptr_t)sines};
    RUN(spectra_grams(&kernel, (complex_lanes *)(uintptr_t)room, (complex_lanes *)(uintptr_t)grams, threads));
}

static PyObject *py_spectra_guess(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long grams, wanted, start, room, guesses;
    Py_ssize_t blocks, rows, steps;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnnKnKKKi", &grams, &blocks, &rows, &wanted, &steps, &start, &room, &guesses,
                          &threads))
        return NULL;
    RUN(spectra_guess((const complex_lanes *)(uintptr_t)grams, (size_t)blocks, (size_t)rows,
                      (const unsigned char *)(uintptr_t)wanted, (size_t)steps, (const float *)(uintptr_t)start,
                      (complex_lanes *)(uintptr_t)room, (double *)(uintptr_t)guesses, threads));
}

static PyObject *py_spectra_prove(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long grams, room, open, traces;
    Py_ssize_t blocks, rows;
    float limit;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnnfKKKi", &grams, &blocks, &rows, &limit, &room, &open, &traces, &threads))
        return NULL;
    RUN(spectra_prove((const complex_lanes *)(uintptr_t)grams, (size_t)blocks, (size_t)rows, limit,
                      (complex_lanes *)(uintptr_t)room, (unsigned char *)(uintptr_t)open, (double *)(uintptr_t)traces,
                      threads));
}

static PyObject *py_row_norms(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long rows, found;
    Py_ssize_t count, entries;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnnKi", &rows, &count, &entries, &found, &threads)) return NULL;
    RUN(row_norms((const float *)(uintptr_t)rows, (size_t)count, (size_t)entries, (double *)(uintptr_t)found, threads));
}

static PyObject *py_sum_of_each(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long terms, found;
    Py_ssize_t examples, count, entries;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnnnKi", &terms, &examples, &count, &entries, &found, &threads)) return NULL;
    RUN(sum_of_each((const float *)(uintptr_t)terms, (size_t)examples, (size_t)count, (size_t)entries,
                    (double *)(uintptr_t)found, threads));
}

static PyObject *py_clip_rows(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long rows, found;
    Py_ssize_t count, entries;
    double limit, room;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnnddKi", &rows, &count, &entries, &limit, &room, &found, &threads)) return NULL;
    RUN(clip_rows((const float *)(uintptr_t)rows, (size_t)count, (size_t)entries, limit, room,
                  (float *)(uintptr_t)found, threads));
}

#if HAS_TILES

/* (entries, extent, (example_stride, channel_stride, position_stride), positions, source_step, (spans, their number), places,
 * room)
 */
static int read_operand(PyObject *given, operand *found) {
    unsigned long long entries, spans, places;
    Py_ssize_t extent, example, channel, position, positions, step, count, room;
    if (!PyArg_ParseTuple(given, "Kn(nnn)nn(Kn)Kn", &entries, &extent, &example, &channel, &position, &positions, &step,
                          &spans, &count, &places, &room))
        return 0;
    found->entries = (const void *)(uintptr_t)entries;
    found->extent = (size_t)extent;
    found->example_stride = (size_t)example, found->channel_stride = (size_t)channel;
    found->position_stride = (size_t)position, found->positions = (size_t)positions;
    found->source_step = (size_t)step;
    found->spans = (const span *)(uintptr_t)spans, found->span_count = (size_t)count;
    found->places = (const int64_t *)(uintptr_t)places, found->room = (size_t)room;
    return 1;
}

/* (lanes, entries, (lanes_step, entries_step, entry_step, width, by_lane), (segments, their number), (units, their
 * number), (rows, their number, row_width))
 */
static int read_plan(PyObject *given, gradient_plan *found) {
    PyObject *lanes, *entries;
    unsigned long long segments, units, rows;
    Py_ssize_t lanes_step, entries_step, entry_step, width, segment_count, unit_count, row_count, row_width;
    if (!PyArg_ParseTuple(given, "O!O!(nnnnp)(Kn)(Kn)(Knn)", &PyTuple_Type, &lanes, &PyTuple_Type, &entries, &lanes_step,
                          &entries_step, &entry_step, &width, &found->by_lane, &segments, &segment_count, &units,
                          &unit_count, &rows, &row_count, &row_width))
        return 0;
    found->lanes_step = (size_t)lanes_step, found->entries_step = (size_t)entries_step;
    found->entry_step = (size_t)entry_step, found->width = (size_t)width;
    found->segments = (const segment *)(uintptr_t)segments, found->segment_count = (size_t)segment_count;
    found->units = (const unit *)(uintptr_t)units, found->unit_count = (size_t)unit_count;
    found->rows = (const int64_t *)(uintptr_t)rows;
    found->row_count = (size_t)row_count, found->row_width = (size_t)row_width;
    return read_operand(lanes, &found->lanes) && read_operand(entries, &found->entries);
}

static PyObject *py_example_gradients_room(PyObject *Py_UNUSED(self), PyObject *arguments) {
    PyObject *given;
    gradient_plan plan;
    int are_kept;
    if (!PyArg_ParseTuple(arguments, "O!p", &PyTuple_Type, &given, &are_kept)) return NULL;
    if (!read_plan(given, &plan)) return NULL;
    return PyLong_FromSize_t(example_gradients_room(&plan, are_kept));
}

static PyObject *py_example_gradients(PyObject *Py_UNUSED(self), PyObject *arguments) {
    PyObject *given;
    unsigned long long factors, norms, beside, totals, rooms, held;
    Py_ssize_t examples, parts;
    int threads;
    gradient_plan plan;
    gradient_scales scales;
    if (!PyArg_ParseTuple(arguments, "O!n(KKKdddp)nKKKi", &PyTuple_Type, &given, &examples, &factors, &norms, &beside,
                          &scales.limit, &scales.room, &scales.regulariser, &scales.are_given, &parts, &totals, &rooms,
                          &held, &threads))
        return NULL;
    if (!read_plan(given, &plan)) return NULL;
    scales.factors = (double *)(uintptr_t)factors, scales.norms = (double *)(uintptr_t)norms;
    scales.beside = (const double *)(uintptr_t)beside;
    RUN(example_gradients(&plan, (size_t)examples, &scales, (size_t)parts, (double *)(uintptr_t)totals,
                          (double *)(uintptr_t)rooms, (float *)(uintptr_t)held, threads));
}

static PyObject *py_sum_held(PyObject *Py_UNUSED(self), PyObject *arguments) {
    unsigned long long held, factors, total;
    Py_ssize_t examples, size;
    int threads;
    if (!PyArg_ParseTuple(arguments, "KnnKKi", &held, &examples, &size, &factors, &total, &threads)) return NULL;
    RUN(sum_held((const float *)(uintptr_t)held, (size_t)examples, (size_t)size, (const double *)(uintptr_t)factors,
                 (double *)(uintptr_t)total, threads));
}

#endif

#define METHOD(name, text) {#name, py_##name, METH_VARARGS, #name text}

static PyMethodDef methods[] = {
    METHOD(add_normals, "(words, block, parts, threads): see kernels.h"),
    METHOD(add_normals_of_key, "(key_and_counter, index, block, parts, threads): see kernels.h"),
    METHOD(key_stream, "(key_and_counter, index, blocks, words): see kernels.h"),
    METHOD(fingerprint, "([(bytes, size)], inner, block, outer, threads)"),
    METHOD(sum_of_squares, "(entries, count, threads): see kernels.h"),
    METHOD(squared_difference, "((weight, copy, copy_is_half, share), count, threads): see kernels.h"),
    METHOD(gram_moments, "((weight, copy, copy_is_half, share), (rows, columns, row_stride, column_stride), height, "
           "moments, found, threads): see kernels.h"),
    METHOD(gram_matrix, "(rows, count, columns, pitch, found, threads): see kernels.h"),
    METHOD(spectra_grams, "((entries, groups, rows, columns, positions, blocks, cosines, sines), room, grams, "
           "threads): see kernels.h"),
    METHOD(spectra_guess, "(grams, blocks, rows, wanted, steps, start, room, guesses, threads): see kernels.h"),
    METHOD(spectra_prove, "(grams, blocks, rows, limit, room, open, traces, threads): see kernels.h"),
    METHOD(sum_of_each, "(terms, examples, count, entries, found, threads): see kernels.h"),
    METHOD(row_norms, "(rows, count, entries, found, threads): see kernels.h"),
    METHOD(clip_rows, "(rows, count, entries, limit, room, found, threads): see kernels.h"),
#if HAS_TILES
    METHOD(example_gradients_room, "(plan, are_kept): see example_gradients.h"),
    METHOD(example_gradients, "(plan, examples, (factors, norms, beside, limit, room, regulariser, are_given), parts, "
           "totals, rooms, held, threads): see example_gradients.h"),
    METHOD(sum_held, "(held, examples, size, factors, total, threads): see example_gradients.h"),
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernels",
    .m_doc = "Passes over memory in native code, see native.py",
    .m_size = -1,
    .m_methods = methods,
};

#if defined(__clang__)
#define COMPILER __VERSION__ /* begins with its name */
#elif defined(__GNUC__)
#define COMPILER "GCC " __VERSION__
#else
#define COMPILER "unknown"
#endif

PyMODINIT_FUNC PyInit__kernels(void) {
    if (!has_fused_operations()) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2, or no fused multiplication and addition");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddIntConstant(module, "HAS_AES", has_aes()) != 0) return NULL;
    if (PyModule_AddIntConstant(module, "HAS_WIDE_AES", has_wide_aes()) != 0) return NULL;
    if (PyModule_AddIntConstant(module, "MOST_ROWS", MOST_ROWS) != 0) return NULL;
    if (PyModule_AddIntConstant(module, "LANES", LANES) != 0) return NULL;
#if HAS_TILES
    if (PyModule_AddIntConstant(module, "TILE_VECTORS", (long)tiles_at_hand()->vectors) != 0) return NULL;
    if (PyModule_AddIntConstant(module, "TILE_ENTRIES", (long)tiles_at_hand()->entries) != 0) return NULL;
#endif
    if (PyModule_AddStringConstant(module, "COMPILER", COMPILER) != 0) return NULL;
    if (PyModule_AddStringConstant(module, "INSTRUCTIONS", instructions()) != 0) return NULL;
    prepare_threads();
    return module;
}
