/* What the processor at hand has of what the kernels are compiled for. */
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)

int has_fused_operations(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#if HAS_LEVELS
const char *instructions(void) {
    if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
    return __builtin_cpu_supports("x86-64-v3") ? "x86-64-v3" : "x86-64";
}
#else
const char *instructions(void) { return "x86-64 with AVX2 and FMA"; }
#endif

#else

int has_fused_operations(void) { return 1; }

const char *instructions(void) { return "those that the compiler takes for granted"; }

#endif
