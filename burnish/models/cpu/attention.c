/* Causal attention inside each segment of a packed stream, and its gradients, in float32 (see attention.py).

A segment's (key/value head) is computed alone, in the order of its tokens: how rows are packed and how many threads there
are changes no bit. Scores of a band of queries are a matrix in a thread's own memory, and everything is a product of two
matrices: band x keys, shares x values, and their likes backwards. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exp.h"
#include "vectors.h"

#define BAND (4 * HIGH) /* queries at a time */

typedef struct {
    long segments, heads, kv_heads, size; /* size: of a head, a multiple of LANES */
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

/* The same of any size; columns are a multiple of LANES. */
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

static inline long whole(long count) { return (count + WIDE - 1) / WIDE * WIDE; }

/* given [length, size], rows `stride` apart -> turned [size, room], zeros behind the length */
static void turn(const float *restrict given, long stride, long length, long size, float *restrict turned, long room)
{
    for (long start = 0; start < length; start += LANES) {
        const long end = start + LANES < length ? start + LANES : length;
        for (long i = 0; i < size; i++)
            for (long t = start; t < end; t++) turned[i * room + t] = given[t * stride + i];
    }
    for (long i = 0; i < size; i++) memset(turned + i * room + length, 0, sizeof(float) * (room - length));
}

static void one_forward(
    Sizes s, const float *query, const float *key, const float *value, long start, long length, long head,
    float *turned, float *scores, float *output, float *weight)
{
    const long group = s.heads / s.kv_heads, room = whole(length), row = s.heads * s.size;
    key += start * s.key_row + head * s.key_head;
    value += start * s.value_row + head * s.value_head;
    turn(key, s.key_row, length, s.size, turned, room);
    for (long mine = head * group; mine < (head + 1) * group; mine++)
        for (long first = 0; first < length; first += BAND) {
            const long rows = length - first < BAND ? length - first : BAND, end = first + rows;
            multiply(rows, whole(end), s.size, query + (start + first) * s.query_row + mine * s.query_head, s.query_row, 1,
                     turned, room, scores, room, 0);
            for (long i = 0; i < rows; i++) {
                float *restrict line = scores + i * room;
                const long seen = first + i + 1;
                float largest = line[0], total = 0.0f;
                for (long t = 1; t < seen; t++) largest = line[t] > largest ? line[t] : largest;
                for (long t = 0; t < seen; t++) total += line[t] = power_of_e((line[t] - largest) * s.scaling);
                const float part = 1.0f / total;
                for (long t = 0; t < seen; t++) line[t] *= part;
                for (long t = seen; t < end; t++) line[t] = 0.0f;
                weight[(start + first + i) * s.heads + mine] = largest * s.scaling + logf(total);
            }
            multiply(rows, s.size, end, scores, room, 1, value, s.value_row,
                     output + (start + first) * row + mine * s.size, row, 0);
        }
}

static void one_backward(
    Sizes s, const float *query, const float *key, const float *value, const float *output, const float *weight,
    const float *given, long start, long length, long head, float *turned_key, float *turned_value, float *shares,
    float *slopes, float *to_query, float *to_key, float *to_value)
{
    const long group = s.heads / s.kv_heads, room = whole(length), row = s.heads * s.size, kv_row = s.kv_heads * s.size;
    key += start * s.key_row + head * s.key_head;
    value += start * s.value_row + head * s.value_head;
    to_key += start * kv_row + head * s.size;
    to_value += start * kv_row + head * s.size;
    turn(key, s.key_row, length, s.size, turned_key, room);
    turn(value, s.value_row, length, s.size, turned_value, room);
    for (long mine = head * group; mine < (head + 1) * group; mine++)
        for (long first = 0; first < length; first += BAND) {
            const long rows = length - first < BAND ? length - first : BAND, end = first + rows;
            const float *asked = query + (start + first) * s.query_row + mine * s.query_head;
            const long place = (start + first) * row + mine * s.size;
            multiply(rows, whole(end), s.size, asked, s.query_row, 1, turned_key, room, shares, room, 0);
            multiply(rows, whole(end), s.size, given + place, row, 1, turned_value, room, slopes, room, 0);
            for (long i = 0; i < rows; i++) {
                float *restrict share = shares + i * room, *restrict slope = slopes + i * room;
                const long seen = first + i + 1;
                const float total = weight[(start + first + i) * s.heads + mine];
                float mean = 0.0f;
                for (long c = 0; c < s.size; c++) mean += given[place + i * row + c] * output[place + i * row + c];
                for (long t = 0; t < seen; t++) {
                    share[t] = power_of_e(share[t] * s.scaling - total);
                    slope[t] = share[t] * (slope[t] - mean) * s.scaling;
                }
                for (long t = seen; t < end; t++) share[t] = slope[t] = 0.0f;
            }
            multiply(rows, s.size, end, slopes, room, 1, key, s.key_row, to_query + place, row, 0);
            multiply(end, s.size, rows, slopes, 1, room, asked, s.query_row, to_key, kv_row, 1);
            multiply(end, s.size, rows, shares, 1, room, given + place, row, to_value, kv_row, 1);
        }
}

static float *memory(long longest, long size, long matrices) /* so many turned matrices and as many bands of scores */
{
    return malloc(sizeof(float) * whole(longest) * (size + BAND) * matrices);
}

/* output [tokens, heads, size]; weight [tokens, heads]: the log of what the shares were divided by. 0 if memory ran out */
int burnish_attend(
    const Sizes *sizes, const float *query, const float *key, const float *value, const int *starts, long longest,
    float *output, float *weight)
{
    const Sizes s = *sizes;
    int failed = 0;
#pragma omp parallel
    {
        float *room = memory(longest, s.size, 1);
        if (room == NULL)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long job = 0; job < s.segments * s.kv_heads; job++) {
            const long start = starts[job / s.kv_heads], length = starts[job / s.kv_heads + 1] - start;
            if (room != NULL)
                one_forward(s, query, key, value, start, length, job % s.kv_heads, room, room + whole(longest) * s.size,
                            output, weight);
        }
        free(room);
    }
    return !failed;
}

/* The gradients of query [tokens, heads, size], key and value [tokens, kv_heads, size]; the last two come as zeros. */
int burnish_attend_backward(
    const Sizes *sizes, const float *query, const float *key, const float *value, const int *starts, long longest,
    const float *output, const float *weight, const float *given, float *to_query, float *to_key, float *to_value)
{
    const Sizes s = *sizes;
    const long turned = whole(longest) * s.size, band = whole(longest) * BAND;
    int failed = 0;
#pragma omp parallel
    {
        float *room = memory(longest, s.size, 2);
        if (room == NULL)
#pragma omp atomic write
            failed = 1;
#pragma omp for schedule(dynamic)
        for (long job = 0; job < s.segments * s.kv_heads; job++) {
            const long start = starts[job / s.kv_heads], length = starts[job / s.kv_heads + 1] - start;
            if (room != NULL)
                one_backward(s, query, key, value, output, weight, given, start, length, job % s.kv_heads, room,
                             room + turned, room + 2 * turned, room + 2 * turned + band, to_query, to_key, to_value);
        }
        free(room);
    }
    return !failed;
}
