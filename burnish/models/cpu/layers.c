/* Parts of a decoder layer over the rows of a batch, in float32 (see layers.py).

Every element of a row is computed in the same order of operations wherever the row stands and whatever stands beside it,
so its bits depend on nothing else in the batch, nor on the number of threads. */

#include <math.h>
#include <string.h>

#include "exp.h"
#include "vectors.h"

#define BAND (8 * HIGH) /* rows that one thread takes at a time */
#define SMALL 200000    /* multiplications that are not worth a second thread */

long burnish_width(void) { return WIDE; }

/* weight [width, depth] -> panels of WIDE columns [panels, depth, WIDE], the last filled up with zeros */
void burnish_pack(const float *weight, long width, long depth, float *packed)
{
#pragma omp parallel for if (width * depth > SMALL)
    for (long first = 0; first < width; first += WIDE) {
        const long wide = width - first < WIDE ? width - first : WIDE;
        float *panel = packed + first * depth;
        if (wide < WIDE) memset(panel, 0, sizeof(float) * WIDE * depth);
        for (long start = 0; start < depth; start += LANES) {
            const long end = start + LANES < depth ? start + LANES : depth;
            for (long j = 0; j < wide; j++)
                for (long k = start; k < end; k++) panel[k * WIDE + j] = weight[(first + j) * depth + k];
        }
    }
}

static inline __attribute__((always_inline)) void tile(
    const long high, const float *restrict rows, long stride, const float *restrict panel, long depth,
    const float *restrict bias, float *restrict output, long width, long wide)
{
    Vector sums[HIGH][PARTS];
    for (long i = 0; i < high; i++)
        for (long j = 0; j < PARTS; j++) sums[i][j] = *(const Vector *)(bias + j * LANES);
    for (long k = 0; k < depth; k++) {
        Vector column[PARTS];
        for (long j = 0; j < PARTS; j++) column[j] = *(const Vector *)(panel + k * WIDE + j * LANES);
#pragma GCC unroll 12
        for (long i = 0; i < high; i++)
            for (long j = 0; j < PARTS; j++) sums[i][j] += rows[i * stride + k] * column[j];
    }
    if (wide == WIDE)
        for (long i = 0; i < high; i++)
            for (long j = 0; j < PARTS; j++) *(Vector *)(output + i * width + j * LANES) = sums[i][j];
    else
        for (long i = 0; i < high; i++) memcpy(output + i * width, sums[i], sizeof(float) * wide);
}

#define HEIGHT(high) case high: tile(high, rows, stride, panel, depth, bias, output, width, wide); break;

static void any_tile(
    long high, const float *rows, long stride, const float *panel, long depth, const float *bias, float *output,
    long width, long wide)
{
    switch (high) {
        HEIGHT(1) HEIGHT(2) HEIGHT(3) HEIGHT(4) HEIGHT(5) HEIGHT(6)
#if HIGH > 6
        HEIGHT(7) HEIGHT(8) HEIGHT(9) HEIGHT(10) HEIGHT(11) HEIGHT(12)
#endif
    }
}

/* rows [count, depth], `stride` apart, times a packed weight, plus a bias or NULL -> output [count, width] */
void burnish_product(
    const float *rows, long count, long stride, const float *packed, long depth, const float *bias, long width,
    float *output)
{
    const long panels = (width + WIDE - 1) / WIDE, bands = (count + BAND - 1) / BAND;
#pragma omp parallel for if (count * width * depth > SMALL)
    for (long job = 0; job < panels * bands; job++) {
        const long first = job / bands * WIDE, wide = width - first < WIDE ? width - first : WIDE;
        const long start = job % bands * BAND, end = start + BAND < count ? start + BAND : count;
        float added[WIDE] = {0};
        if (bias != NULL) memcpy(added, bias + first, sizeof(float) * wide);
        long tiles = (end - start + HIGH - 1) / HIGH;
        for (long row = start; row < end; tiles--) {
            const long high = (end - row + tiles - 1) / tiles; /* tiles of about one height: a flat one is slow */
            any_tile(high, rows + row * stride, stride, packed + first * depth, depth, added,
                     output + row * width + first, width, wide);
            row += high;
        }
    }
}

/* rows [count, size] -> each divided by its root mean square, times (offset + weight) */
void burnish_norm(
    const float *restrict rows, long count, long stride, long size, const float *restrict weight, float offset,
    float epsilon, float *restrict output)
{
#pragma omp parallel for if (count * size > SMALL)
    for (long row = 0; row < count; row++) {
        const float *restrict given = rows + row * stride;
        float *restrict place = output + row * size;
        Vector sums = {0};
        long i = 0;
        for (; i + LANES <= size; i += LANES) sums += *(const Vector *)(given + i) * *(const Vector *)(given + i);
        float sum = 0.0f;
        for (; i < size; i++) sum += given[i] * given[i];
        for (long lane = 0; lane < LANES; lane++) sum += sums[lane];
        const float scale = 1.0f / sqrtf(sum / size + epsilon);
        for (i = 0; i < size; i++) place[i] = given[i] * scale * (offset + weight[i]);
    }
}

/* gate and up [count, size] -> silu(gate) * up */
void burnish_gate(
    const float *restrict gate, long gate_stride, const float *restrict up, long up_stride, long count, long size,
    float *restrict output)
{
#pragma omp parallel for if (count * size > SMALL / 8)
    for (long row = 0; row < count; row++)
        for (long i = 0; i < size; i++) {
            const float x = gate[row * gate_stride + i];
            const float falling = power_of_e(x > 0.0f ? -x : x); /* never overflows */
            const float share = (x > 0.0f ? 1.0f : falling) / (1.0f + falling);
            output[row * size + i] = x * share * up[row * up_stride + i];
        }
}

/* given [heads, count, size], by its strides -> output [count, heads, size]: the two halves of each turned by an angle,
   or, `back`, what the slope of such an output does to what was given */
static void turn(
    int back, const float *restrict given, long heads, long head_stride, long count, long stride, long size,
    const float *restrict cosine, const float *restrict sine, float *restrict output)
{
    const long half = size / 2;
    const float sign = back ? 1.0f : -1.0f;
#pragma omp parallel for if (count * heads * size > SMALL / 4)
    for (long row = 0; row < count; row++)
        for (long head = 0; head < heads; head++) {
            const float *restrict x = given + head * head_stride + row * stride;
            const float *restrict c = cosine + row * size, *restrict s = sine + row * size;
            const float *restrict early = back ? s + half : s, *restrict late = back ? s : s + half;
            float *restrict place = output + (row * heads + head) * size;
            for (long i = 0; i < half; i++) place[i] = x[i] * c[i] + sign * x[half + i] * early[i];
            for (long i = 0; i < half; i++) place[half + i] = x[half + i] * c[half + i] - sign * x[i] * late[i];
        }
}

void burnish_rotate(
    const float *given, long heads, long head_stride, long count, long stride, long size, const float *cosine,
    const float *sine, float *output)
{
    turn(0, given, heads, head_stride, count, stride, size, cosine, sine, output);
}

void burnish_rotate_backward(
    const float *given, long heads, long head_stride, long count, long stride, long size, const float *cosine,
    const float *sine, float *output)
{
    turn(1, given, heads, head_stride, count, stride, size, cosine, sine, output);
}

/* Backwards. What a weight gets from all rows is summed in parts of a fixed number of rows, then part by part. */

#define SHARE 64 /* rows of a part */

/* given: the slope of burnish_norm's output [count, size]. sums: room for [(count + SHARE - 1) / SHARE, size] */
void burnish_norm_backward(
    const float *restrict rows, long count, long stride, long size, const float *restrict weight, float offset,
    float epsilon, const float *restrict given, float *restrict to_rows, float *restrict sums, float *restrict to_weight)
{
    const long parts = (count + SHARE - 1) / SHARE;
#pragma omp parallel for if (count * size > SMALL / 4)
    for (long part = 0; part < parts; part++) {
        float *restrict sum = sums + part * size;
        memset(sum, 0, sizeof(float) * size);
        for (long row = part * SHARE; row < count && row < (part + 1) * SHARE; row++) {
            const float *restrict x = rows + row * stride, *restrict slope = given + row * size;
            float *restrict place = to_rows + row * size;
            Vector squares = {0}, along = {0};
            long i = 0;
            float square = 0.0f, common = 0.0f;
            for (; i + LANES <= size; i += LANES) {
                const Vector one = *(const Vector *)(x + i);
                squares += one * one;
                along += one * *(const Vector *)(slope + i) * (offset + *(const Vector *)(weight + i));
            }
            for (; i < size; i++) {
                square += x[i] * x[i];
                common += x[i] * slope[i] * (offset + weight[i]);
            }
            for (long lane = 0; lane < LANES; lane++) {
                square += squares[lane];
                common += along[lane];
            }
            const float scale = 1.0f / sqrtf(square / size + epsilon);
            const float pull = common * scale * scale * scale / size;
            for (i = 0; i < size; i++) {
                place[i] = slope[i] * (offset + weight[i]) * scale - x[i] * pull;
                sum[i] += slope[i] * x[i] * scale;
            }
        }
    }
    memset(to_weight, 0, sizeof(float) * size);
    for (long part = 0; part < parts; part++)
        for (long i = 0; i < size; i++) to_weight[i] += sums[part * size + i];
}

void burnish_gate_backward(
    const float *restrict gate, long gate_stride, const float *restrict up, long up_stride, long count, long size,
    const float *restrict given, float *restrict to_gate, float *restrict to_up)
{
#pragma omp parallel for if (count * size > SMALL / 8)
    for (long row = 0; row < count; row++)
        for (long i = 0; i < size; i++) {
            const float x = gate[row * gate_stride + i], slope = given[row * size + i];
            const float falling = power_of_e(x > 0.0f ? -x : x);
            const float share = (x > 0.0f ? 1.0f : falling) / (1.0f + falling);
            to_gate[row * size + i] = slope * up[row * up_stride + i] * share * (1.0f + x * (1.0f - share));
            to_up[row * size + i] = slope * x * share;
        }
}
