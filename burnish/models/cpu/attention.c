/* Causal attention inside each segment of a packed stream, and its gradients, in float32 (see attention.py). The queries
of a segment are those of its last keys: fewer than its keys where the first tokens' queries belong to another segment.

Each (segment, key/value head) is computed by one thread, in token order, so results do not depend on how sequences are
packed or on the number of threads. A thread keeps the scores of a band of queries in its own buffer; the rest is matrix
products: queries x keys, probabilities x values, and their counterparts in the backward pass. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exp.h"
#include "vectors.h"

#define BAND (4 * HIGH) /* queries at a time */

typedef struct {
    long segments, heads, kv_heads, size; /* size: head size, a multiple of LANES */
    long query_row, query_head, key_row, key_head, value_row, value_head; /* strides, in floats */
    float scaling;
} Sizes;

long burnish_lanes(void) { return LANES; }

/* output [high, parts * LANES] = or += left [high, depth] x right [depth, parts * LANES], strides in floats */
static inline __attribute__((always_inline)) void tile(
    const long high, const long parts, const float *restrict left, long left_row, long left_column,
    const float *restrict right, long right_row, long depth, float *restrict output, long output_row, int adds)
{
    Vector sums[HIGH][PARTS];
    for (long i = 0; i < high; i++)
        for (long j = 0; j < parts; j++)
            sums[i][j] = adds ? *(const Vector *)(output + i * output_row + j * LANES) : (Vector){0};
    for (long k = 0; k < depth; k++) {
        Vector row[PARTS];
        for (long j = 0; j < parts; j++) row[j] = *(const Vector *)(right + k * right_row + j * LANES);
#pragma GCC unroll 12
        for (long i = 0; i < high; i++)
            for (long j = 0; j < parts; j++) sums[i][j] += left[i * left_row + k * left_column] * row[j];
    }
    for (long i = 0; i < high; i++)
        for (long j = 0; j < parts; j++) *(Vector *)(output + i * output_row + j * LANES) = sums[i][j];
}

#define HEIGHT(high) \
    case high: \
        if (wide == WIDE) tile(high, PARTS, from, left_row, left_column, right, right_row, depth, to, output_row, adds); \
        else tile(high, 1, from, left_row, left_column, right, right_row, depth, to, output_row, adds); \
        break;

/* The same for any number of rows; columns are a multiple of LANES. */
static void multiply(
    long rows, long columns, long depth, const float *left, long left_row, long left_column, const float *right,
    long right_row, float *output, long output_row, int adds)
{
    for (long column = 0, wide; column < columns; column += wide, right += wide) {
        wide = columns - column < WIDE ? LANES : WIDE;
        long tiles = (rows + HIGH - 1) / HIGH;
        for (long row = 0, high; row < rows; row += high, tiles--) {
            high = (rows - row + tiles - 1) / tiles;
            const float *from = left + row * left_row;
            float *to = output + row * output_row + column;
            switch (high) {
                HEIGHT(1) HEIGHT(2) HEIGHT(3) HEIGHT(4) HEIGHT(5) HEIGHT(6)
#if HIGH > 6
                HEIGHT(7) HEIGHT(8) HEIGHT(9) HEIGHT(10) HEIGHT(11) HEIGHT(12)
#endif
            }
        }
    }
}

static inline long padded(long count) { return (count + WIDE - 1) / WIDE * WIDE; }

/* rows [length, size] (row stride `stride`) -> output [size, width], zero-padded beyond `length` */
static void transpose(const float *restrict rows, long stride, long length, long size, float *restrict output, long width)
{
    for (long start = 0; start < length; start += LANES) {
        const long end = start + LANES < length ? start + LANES : length;
        for (long i = 0; i < size; i++)
            for (long t = start; t < end; t++) output[i * width + t] = rows[t * stride + i];
    }
    for (long i = 0; i < size; i++) memset(output + i * width + length, 0, sizeof(float) * (width - length));
}

/* One segment: where its queries and its keys begin, and how many there are. */
typedef struct {
    long start, length, key_start, key_length;
} Segment;

static Segment segment_at(const int *starts, const int *key_starts, long number)
{
    const long start = starts[number], key_start = key_starts[number];
    return (Segment){start, starts[number + 1] - start, key_start, key_starts[number + 1] - key_start};
}

static void one_forward(
    Sizes s, const float *query, const float *key, const float *value, Segment segment, long head, float *key_t,
    float *scores, float *output, float *lse)
{
    const long group = s.heads / s.kv_heads, width = padded(segment.key_length), row = s.heads * s.size;
    const long start = segment.start, length = segment.length, skipped = segment.key_length - length;
    key += segment.key_start * s.key_row + head * s.key_head;
    value += segment.key_start * s.value_row + head * s.value_head;
    transpose(key, s.key_row, segment.key_length, s.size, key_t, width);
    for (long mine = head * group; mine < (head + 1) * group; mine++)
        for (long first = 0; first < length; first += BAND) {
            const long rows = length - first < BAND ? length - first : BAND, end = skipped + first + rows;
            multiply(rows, padded(end), s.size, query + (start + first) * s.query_row + mine * s.query_head, s.query_row, 1,
                     key_t, width, scores, width, 0);
            for (long i = 0; i < rows; i++) {
                float *restrict line = scores + i * width;
                const long seen = skipped + first + i + 1;
                float largest = line[0], total = 0.0f;
                for (long t = 1; t < seen; t++) largest = line[t] > largest ? line[t] : largest;
                for (long t = 0; t < seen; t++) total += line[t] = power_of_e((line[t] - largest) * s.scaling);
                const float scale = 1.0f / total;
                for (long t = 0; t < seen; t++) line[t] *= scale;
                for (long t = seen; t < end; t++) line[t] = 0.0f;
                lse[(start + first + i) * s.heads + mine] = largest * s.scaling + logf(total);
            }
            multiply(rows, s.size, end, scores, width, 1, value, s.value_row,
                     output + (start + first) * row + mine * s.size, row, 0);
        }
}

static void one_backward(
    Sizes s, const float *query, const float *key, const float *value, const float *output, const float *lse,
    const float *grad, Segment segment, long head, float *key_t, float *value_t, float *probabilities,
    float *score_grads, float *grad_query, float *grad_key, float *grad_value)
{
    const long group = s.heads / s.kv_heads, row = s.heads * s.size, kv_row = s.kv_heads * s.size;
    const long start = segment.start, length = segment.length, key_start = segment.key_start;
    const long key_length = segment.key_length, width = padded(key_length), skipped = key_length - length;
    key += key_start * s.key_row + head * s.key_head;
    value += key_start * s.value_row + head * s.value_head;
    grad_key += key_start * kv_row + head * s.size;
    grad_value += key_start * kv_row + head * s.size;
    transpose(key, s.key_row, key_length, s.size, key_t, width);
    transpose(value, s.value_row, key_length, s.size, value_t, width);
    for (long mine = head * group; mine < (head + 1) * group; mine++)
        for (long first = 0; first < length; first += BAND) {
            const long rows = length - first < BAND ? length - first : BAND, end = skipped + first + rows;
            const float *band_query = query + (start + first) * s.query_row + mine * s.query_head;
            const long offset = (start + first) * row + mine * s.size;
            multiply(rows, padded(end), s.size, band_query, s.query_row, 1, key_t, width, probabilities, width, 0);
            multiply(rows, padded(end), s.size, grad + offset, row, 1, value_t, width, score_grads, width, 0);
            for (long i = 0; i < rows; i++) {
                float *restrict p = probabilities + i * width, *restrict g = score_grads + i * width;
                const long seen = skipped + first + i + 1;
                const float row_lse = lse[(start + first + i) * s.heads + mine];
                float mean = 0.0f;
                for (long c = 0; c < s.size; c++) mean += grad[offset + i * row + c] * output[offset + i * row + c];
                for (long t = 0; t < seen; t++) {
                    p[t] = power_of_e(p[t] * s.scaling - row_lse);
                    g[t] = p[t] * (g[t] - mean) * s.scaling;
                }
                for (long t = seen; t < end; t++) p[t] = g[t] = 0.0f;
            }
            multiply(rows, s.size, end, score_grads, width, 1, key, s.key_row, grad_query + offset, row, 0);
            multiply(end, s.size, rows, score_grads, 1, width, band_query, s.query_row, grad_key, kv_row, 1);
            multiply(end, s.size, rows, probabilities, 1, width, grad + offset, row, grad_value, kv_row, 1);
        }
}

/* A buffer for `matrices` transposed matrices and as many bands of scores. */
static float *allocate(long longest, long size, long matrices)
{
    return malloc(sizeof(float) * padded(longest) * (size + BAND) * matrices);
}

/* output [tokens, heads, size]; lse [tokens, heads]: log-sum-exp of the scores. `starts` are the offsets of the segments'
queries, `key_starts` of their keys, each with the end; `longest` counts keys. Returns 0 if memory ran out. */
int burnish_attend(
    const Sizes *sizes, const float *query, const float *key, const float *value, const int *starts,
    const int *key_starts, long longest, float *output, float *lse)
{
    const Sizes s = *sizes;
    int failed = 0;
#pragma omp parallel
    {
        float *buffer = allocate(longest, s.size, 1);
        if (buffer == NULL)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long job = 0; job < s.segments * s.kv_heads; job++) {
            const Segment segment = segment_at(starts, key_starts, job / s.kv_heads);
            if (buffer != NULL)
                one_forward(s, query, key, value, segment, job % s.kv_heads, buffer, buffer + padded(longest) * s.size,
                            output, lse);
        }
        free(buffer);
    }
    return !failed;
}

/* Gradients of query [tokens, heads, size], key and value [keys, kv_heads, size]. The caller zeroes the last two. */
int burnish_attend_backward(
    const Sizes *sizes, const float *query, const float *key, const float *value, const int *starts,
    const int *key_starts, long longest, const float *output, const float *lse, const float *grad, float *grad_query,
    float *grad_key, float *grad_value)
{
    const Sizes s = *sizes;
    const long matrix = padded(longest) * s.size, band = padded(longest) * BAND;
    int failed = 0;
#pragma omp parallel
    {
        float *buffer = allocate(longest, s.size, 2);
        if (buffer == NULL)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long job = 0; job < s.segments * s.kv_heads; job++) {
            const Segment segment = segment_at(starts, key_starts, job / s.kv_heads);
            if (buffer != NULL)
                one_backward(s, query, key, value, output, lse, grad, segment, job % s.kv_heads, buffer,
                             buffer + matrix, buffer + 2 * matrix, buffer + 2 * matrix + band, grad_query, grad_key,
                             grad_value);
        }
        free(buffer);
    }
    return !failed;
}
