/* The key stream of AES-128 in counter mode (FIPS 197, NIST SP 800-38A), by the processor's instructions for it. */
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define WITH_AES __attribute__((target("aes,ssse3")))
#define AT_ONCE 8 /* blocks whose rounds are under way together */

int has_aes(void) { return __builtin_cpu_supports("aes") && __builtin_cpu_supports("ssse3"); }

#if defined(__clang__) && __clang_major__ < 19 /* does not know the name */
int has_wide_aes(void) { return 0; }
#else
int has_wide_aes(void) { return __builtin_cpu_supports("vaes") && __builtin_cpu_supports("avx512bw"); }
#endif

WITH_AES
static inline __m128i next_round_key(__m128i key, __m128i assisted) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, _mm_shuffle_epi32(assisted, 0xff));
}

WITH_AES
static void expand(const unsigned char *key, __m128i *rounds) {
    rounds[0] = _mm_loadu_si128((const __m128i *)key);
#define NEXT(i, constant) rounds[i] = next_round_key(rounds[i - 1], _mm_aeskeygenassist_si128(rounds[i - 1], constant))
    NEXT(1, 0x01);
    NEXT(2, 0x02);
    NEXT(3, 0x04);
    NEXT(4, 0x08);
    NEXT(5, 0x10);
    NEXT(6, 0x20);
    NEXT(7, 0x40);
    NEXT(8, 0x80);
    NEXT(9, 0x1b);
    NEXT(10, 0x36);
#undef NEXT
}

static uint64_t big_endian(const unsigned char *bytes) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | bytes[i];
    return value;
}

/* Blocks of counters high:low to high:low + count, modulo 2^128, encrypted. */
WITH_AES
static void encrypt_counters(const __m128i *rounds, uint64_t high, uint64_t low, size_t count, __m128i *found) {
    const __m128i reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (size_t i = 0; i < count; i += AT_ONCE) {
        __m128i blocks[AT_ONCE];
        for (int j = 0; j < AT_ONCE; j++) {
            uint64_t sum = low + i + j;
            __m128i counter = _mm_set_epi64x((long long)(high + (sum < low)), (long long)sum);
            blocks[j] = _mm_xor_si128(_mm_shuffle_epi8(counter, reversed), rounds[0]);
        }
        for (int r = 1; r < 10; r++)
            for (int j = 0; j < AT_ONCE; j++) blocks[j] = _mm_aesenc_si128(blocks[j], rounds[r]);
        for (int j = 0; j < AT_ONCE && i + j < count; j++)
            _mm_storeu_si128(found + i + j, _mm_aesenclast_si128(blocks[j], rounds[10]));
    }
}

#define WITH_WIDE_AES __attribute__((target("vaes,avx512f,avx512bw")))
#define WIDE 4 /* blocks that an instruction takes */

/* The same, four blocks at a time, where low + count does not come to 2^64; returns how many are done. */
WITH_WIDE_AES
static size_t encrypt_wide(const __m128i *rounds, uint64_t high, uint64_t low, size_t count, __m128i *found) {
    const __m512i reversed =
        _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m512i next = _mm512_set_epi64(0, WIDE, 0, WIDE, 0, WIDE, 0, WIDE);
    const long long h = (long long)high, l = (long long)low;
    __m512i counters = _mm512_set_epi64(h, l + 3, h, l + 2, h, l + 1, h, l), keys[11];
    for (int r = 0; r <= 10; r++) keys[r] = _mm512_broadcast_i32x4(rounds[r]);
    size_t done = 0;
    for (; done + AT_ONCE * WIDE <= count; done += AT_ONCE * WIDE) {
        __m512i blocks[AT_ONCE];
        for (int j = 0; j < AT_ONCE; j++) {
            blocks[j] = _mm512_xor_si512(_mm512_shuffle_epi8(counters, reversed), keys[0]);
            counters = _mm512_add_epi64(counters, next);
        }
        for (int r = 1; r < 10; r++)
            for (int j = 0; j < AT_ONCE; j++) blocks[j] = _mm512_aesenc_epi128(blocks[j], keys[r]);
        for (int j = 0; j < AT_ONCE; j++)
            _mm512_storeu_si512(found + done + j * WIDE, _mm512_aesenclast_epi128(blocks[j], keys[10]));
    }
    return done;
}

WITH_AES
void key_stream(const unsigned char *key_and_counter, uint64_t index, size_t count, uint64_t *words) {
    uint64_t start = big_endian(key_and_counter + 24), low = start + index;
    uint64_t high = big_endian(key_and_counter + 16) + (low < start);
    __m128i rounds[11];
    size_t done = 0;
    expand(key_and_counter, rounds);
    if (has_wide_aes() && low + count >= low) done = encrypt_wide(rounds, high, low, count, (__m128i *)words);
    encrypt_counters(rounds, high, low + done, count - done, (__m128i *)words + done);
}

#else

int has_aes(void) { return 0; }

int has_wide_aes(void) { return 0; }

void key_stream(const unsigned char *key_and_counter, uint64_t index, size_t count, uint64_t *words) {
    (void)key_and_counter, (void)index, (void)count, (void)words; /* nobody calls it */
}

#endif
