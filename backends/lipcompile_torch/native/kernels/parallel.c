/* Threads: those that torch has already.
 *
 * After each operation the threads of torch's OpenMP keep their processors busy for milliseconds, waiting for the next
 * one. Threads of our own would have to share processors with them; so the work is given to them. On Linux torch's
 * libgomp is there for all to call; where it is not, the calling thread does everything.
 */
#define _GNU_SOURCE /* for RTLD_DEFAULT */
#include "kernels.h"

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>

typedef void (*openmp_parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
static openmp_parallel parallel;

/* A forked process has none of the threads, and libgomp would wait for them. */
static void forget_threads(void) { parallel = NULL; }

void prepare_threads(void) {
    *(void **)&parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    pthread_atfork(NULL, NULL, forget_threads);
}

typedef struct {
    size_t next, count, grain;
    stretch_work work;
    void *context;
} shared;

static void take_stretches(void *data) {
    shared *all = data;
    for (;;) {
        size_t begin = __atomic_fetch_add(&all->next, all->grain, __ATOMIC_RELAXED);
        if (begin >= all->count) return;
        all->work(all->context, begin, all->count - begin < all->grain ? all->count : begin + all->grain);
    }
}

void in_stretches(size_t count, size_t grain, int threads, stretch_work work, void *context) {
    shared all = {0, count, grain, work, context};
    if (parallel != NULL && threads > 1 && count > grain)
        parallel(take_stretches, &all, (unsigned)threads, 0);
    else
        take_stretches(&all);
}

#else

void prepare_threads(void) {}

void in_stretches(size_t count, size_t grain, int threads, stretch_work work, void *context) {
    (void)threads;
    for (size_t begin = 0; begin < count; begin += grain)
        work(context, begin, count - begin < grain ? count : begin + grain);
}

#endif
