/* Decode attention: new tokens against their sequences' blocks of the paged cache, in float32.

Every (token, key/value head) is computed alone and in the order of its own tokens, so its bits do not depend on the
batch or on the number of threads. GROUP (query heads per key/value head) and HEAD_DIM are compile-time constants, so that
the compiler can unroll and vectorize the inner loops. The Python side is rollout/engines/builtin/native/decode.py. */

#include <stdlib.h>

#include "exp.h"
#include "vectors.h"

typedef struct {
    long batch_size, kv_heads, block_size, table_width;
    long query_head, query_row, key_head, key_row, value_head, value_row; /* strides, in floats */
    long window;                                                          /* 0: none */
    float scaling, softcap;                                               /* softcap 0: none */
} Sizes;

static inline float capped(float score, float cap) /* cap * tanh(score / cap) */
{
    float twice = 2.0f * score / cap;
    twice = twice > 80.0f ? 80.0f : twice;
    return cap * (1.0f - 2.0f / (power_of_e(twice) + 1.0f));
}

/* The largest of `count` numbers: exact in any order, so the lanes are compared one by one at the end. */
static float largest_of(const float *restrict scores, long count)
{
    float lanes[LANES], largest = scores[0];
    for (long i = 0; i < LANES; i++) lanes[i] = largest;
    long t = 0;
    for (; t + LANES <= count; t += LANES)
        for (long i = 0; i < LANES; i++) lanes[i] = scores[t + i] > lanes[i] ? scores[t + i] : lanes[i];
    for (; t < count; t++) largest = scores[t] > largest ? scores[t] : largest;
    for (long i = 0; i < LANES; i++) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
}

static void softmax(float *restrict scores, long count, float softcap)
{
    if (softcap != 0.0f)
        for (long t = 0; t < count; t++) scores[t] = capped(scores[t], softcap);
    const float largest = largest_of(scores, count);
    float total = 0.0f;
    for (long t = 0; t < count; t++) {
        scores[t] = power_of_e(scores[t] - largest);
        total += scores[t];
    }
    const float part = 1.0f / total;
    for (long t = 0; t < count; t++) scores[t] *= part;
}

/* One sequence and one key/value head, tokens from `first` to before `end`. */
static void attend(
    const float *restrict query, long query_head, const float *restrict keys, const float *restrict values,
    const long *restrict table, long block_size, long block_stride, long first, long end, float *restrict scores,
    long width, float *restrict output, float scaling, float softcap)
{
    for (long t = first; t < end;) {
        const long block = t / block_size, offset = t % block_size;
        const long stop = (block + 1) * block_size < end ? (block + 1) * block_size : end;
        const float *restrict key = keys + table[block] * block_stride + offset * HEAD_DIM;
        for (; t < stop; t++, key += HEAD_DIM)
            for (long g = 0; g < GROUP; g++) {
                const float *restrict q = query + g * query_head;
                float sum = 0.0f;
                for (long i = 0; i < HEAD_DIM; i++) sum += q[i] * key[i];
                scores[g * width + t - first] = sum * scaling;
            }
    }
    for (long g = 0; g < GROUP; g++) softmax(scores + g * width, end - first, softcap);
    float mixed[GROUP * HEAD_DIM];
    for (long i = 0; i < GROUP * HEAD_DIM; i++) mixed[i] = 0.0f;
    for (long t = first; t < end;) {
        const long block = t / block_size, offset = t % block_size;
        const long stop = (block + 1) * block_size < end ? (block + 1) * block_size : end;
        const float *restrict value = values + table[block] * block_stride + offset * HEAD_DIM;
        for (; t < stop; t++, value += HEAD_DIM)
            for (long g = 0; g < GROUP; g++)
                for (long i = 0; i < HEAD_DIM; i++)
                    mixed[g * HEAD_DIM + i] += scores[g * width + t - first] * value[i];
    }
    for (long i = 0; i < GROUP * HEAD_DIM; i++) output[i] = mixed[i];
}

/* Writes the new keys and values into the cache and attends over them and all before. Returns 0 if out of memory. */
int burnish_decode(
    const Sizes *sizes, const float *query, const float *new_keys, const float *new_values, float *keys, float *values,
    const long *tables, const long *lengths, float *output)
{
    const Sizes s = *sizes;
    const long head_stride = s.block_size * HEAD_DIM, block_stride = s.kv_heads * head_stride;
    long longest = 0, failed = 0;
    for (long row = 0; row < s.batch_size; row++) longest = lengths[row] > longest ? lengths[row] : longest;
    const long width = (longest + 16) / 16 * 16;
#pragma omp parallel
    {
        float *scores = malloc(sizeof(float) * GROUP * width);
        if (scores == NULL)
#pragma omp atomic
            failed++;
#pragma omp for schedule(static)
        for (long job = 0; job < s.batch_size * s.kv_heads; job++) {
            const long row = job / s.kv_heads, head = job % s.kv_heads, length = lengths[row];
            const long slot = tables[row * s.table_width + length / s.block_size] * block_stride + head * head_stride
                              + length % s.block_size * HEAD_DIM;
            const float *key = new_keys + head * s.key_head + row * s.key_row;
            const float *value = new_values + head * s.value_head + row * s.value_row;
            for (long i = 0; i < HEAD_DIM; i++) keys[slot + i] = key[i];
            for (long i = 0; i < HEAD_DIM; i++) values[slot + i] = value[i];
        }
        /* All writes are done: a row may be a later token of another row's sequence. */
#pragma omp for schedule(dynamic, 4)
        for (long job = 0; job < s.batch_size * s.kv_heads; job++) {
            if (scores == NULL) continue;
            const long row = job / s.kv_heads, head = job % s.kv_heads, length = lengths[row];
            const long *table = tables + row * s.table_width;
            const long end = length + 1, first = s.window && end > s.window ? end - s.window : 0;
            attend(query + head * GROUP * s.query_head + row * s.query_row, s.query_head, keys + head * head_stride,
                   values + head * head_stride, table, s.block_size, block_stride, first, end, scores, width,
                   output + (row * s.kv_heads + head) * GROUP * HEAD_DIM, s.scaling, s.softcap);
        }
        free(scores);
    }
    return failed == 0;
}
