/* Matrix products, norms, gates and rotary embeddings of a decoder layer, in float32 (see layers.py).

Each element of a row is computed by the same sequence of operations, wherever the row is in the batch. Results therefore
do not depend on the other rows or on the number of threads. */

#include <math.h>
#include <string.h>

#include "exp.h"
#include "vectors.h"

#define BAND (8 * HIGH) /* rows per unit of work of a thread */
#define SMALL 200000    /* multiplications below which one thread is faster than several */

long burnish_width(void) { return WIDE; }

/* weight [width, depth] -> panels of WIDE columns [panels, depth, WIDE]; the last one is zero-padded */
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

/* output [count, width] = rows [count, depth] (row stride `stride`) x packed weight + bias (may be NULL) */
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
            const long high = (end - row + tiles - 1) / tiles; /* tiles of similar height, because a flat tile is slow */
            any_tile(high, rows + row * stride, stride, packed + first * depth, depth, added,
                     output + row * width + first, width, wide);
            row += high;
        }
    }
}

/* RMSNorm: each row of [count, size] divided by its root mean square, times (offset + weight) */
void burnish_norm(
    const float *restrict rows, long count, long stride, long size, const float *restrict weight, float offset,
    float epsilon, float *restrict output)
{
#pragma omp parallel for if (count * size > SMALL)
    for (long row = 0; row < count; row++) {
        const float *restrict input = rows + row * stride;
        float *restrict result = output + row * size;
        Vector sums = {0};
        long i = 0;
        for (; i + LANES <= size; i += LANES) sums += *(const Vector *)(input + i) * *(const Vector *)(input + i);
        float sum = 0.0f;
        for (; i < size; i++) sum += input[i] * input[i];
        for (long lane = 0; lane < LANES; lane++) sum += sums[lane];
        const float scale = 1.0f / sqrtf(sum / size + epsilon);
        for (i = 0; i < size; i++) result[i] = input[i] * scale * (offset + weight[i]);
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
            const float decay = power_of_e(x > 0.0f ? -x : x); /* of a non-positive number: never overflows */
            const float sigmoid = (x > 0.0f ? 1.0f : decay) / (1.0f + decay);
            output[row * size + i] = x * sigmoid * up[row * up_stride + i];
        }
}

/* Rotary embedding: input [heads, count, size] with strides -> output [count, heads, size]. With `backward`, the input is
   the gradient of such an output, and the output the gradient of its input. */
static void rotate(
    int backward, const float *restrict input, long heads, long head_stride, long count, long stride, long size,
    const float *restrict cosine, const float *restrict sine, float *restrict output)
{
    const long half = size / 2;
    const float sign = backward ? 1.0f : -1.0f;
#pragma omp parallel for if (count * heads * size > SMALL / 4)
    for (long row = 0; row < count; row++)
        for (long head = 0; head < heads; head++) {
            const float *restrict x = input + head * head_stride + row * stride;
            const float *restrict c = cosine + row * size, *restrict s = sine + row * size;
            const float *restrict first = backward ? s + half : s, *restrict second = backward ? s : s + half;
            float *restrict result = output + (row * heads + head) * size;
            for (long i = 0; i < half; i++) result[i] = x[i] * c[i] + sign * x[half + i] * first[i];
            for (long i = 0; i < half; i++) result[half + i] = x[half + i] * c[half + i] - sign * x[i] * second[i];
        }
}

void burnish_rotate(
    const float *input, long heads, long head_stride, long count, long stride, long size, const float *cosine,
    const float *sine, float *output)
{
    rotate(0, input, heads, head_stride, count, stride, size, cosine, sine, output);
}

void burnish_rotate_backward(
    const float *input, long heads, long head_stride, long count, long stride, long size, const float *cosine,
    const float *sine, float *output)
{
    rotate(1, input, heads, head_stride, count, stride, size, cosine, sine, output);
}

/* Backward passes. A weight's gradient is summed over blocks of a fixed number of rows, then over the blocks in order, so
   that it does not depend on the number of threads. */

#define SHARE 64 /* rows per block */

/* grad: of the output [count, size]. sums: a buffer of [(count + SHARE - 1) / SHARE, size] floats */
void burnish_norm_backward(
    const float *restrict rows, long count, long stride, long size, const float *restrict weight, float offset,
    float epsilon, const float *restrict grad, float *restrict grad_rows, float *restrict sums, float *restrict grad_weight)
{
    const long parts = (count + SHARE - 1) / SHARE;
#pragma omp parallel for if (count * size > SMALL / 4)
    for (long part = 0; part < parts; part++) {
        float *restrict sum = sums + part * size;
        memset(sum, 0, sizeof(float) * size);
        for (long row = part * SHARE; row < count && row < (part + 1) * SHARE; row++) {
            const float *restrict x = rows + row * stride, *restrict g = grad + row * size;
            float *restrict result = grad_rows + row * size;
            Vector squares = {0}, dots = {0};
            long i = 0;
            float square = 0.0f, dot = 0.0f;
            for (; i + LANES <= size; i += LANES) {
                const Vector one = *(const Vector *)(x + i);
                squares += one * one;
                dots += one * *(const Vector *)(g + i) * (offset + *(const Vector *)(weight + i));
            }
            for (; i < size; i++) {
                square += x[i] * x[i];
                dot += x[i] * g[i] * (offset + weight[i]);
            }
            for (long lane = 0; lane < LANES; lane++) {
                square += squares[lane];
                dot += dots[lane];
            }
            const float scale = 1.0f / sqrtf(square / size + epsilon);
            const float correction = dot * scale * scale * scale / size;
            for (i = 0; i < size; i++) {
                result[i] = g[i] * (offset + weight[i]) * scale - x[i] * correction;
                sum[i] += g[i] * x[i] * scale;
            }
        }
    }
    memset(grad_weight, 0, sizeof(float) * size);
    for (long part = 0; part < parts; part++)
        for (long i = 0; i < size; i++) grad_weight[i] += sums[part * size + i];
}

void burnish_gate_backward(
    const float *restrict gate, long gate_stride, const float *restrict up, long up_stride, long count, long size,
    const float *restrict grad, float *restrict grad_gate, float *restrict grad_up)
{
#pragma omp parallel for if (count * size > SMALL / 8)
    for (long row = 0; row < count; row++)
        for (long i = 0; i < size; i++) {
            const float x = gate[row * gate_stride + i], g = grad[row * size + i];
            const float decay = power_of_e(x > 0.0f ? -x : x);
            const float sigmoid = (x > 0.0f ? 1.0f : decay) / (1.0f + decay);
            grad_gate[row * size + i] = g * up[row * up_stride + i] * sigmoid * (1.0f + x * (1.0f - sigmoid));
            grad_up[row * size + i] = g * x * sigmoid;
        }
}
