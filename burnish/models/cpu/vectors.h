/* A tile of a product, HIGH rows of PARTS vectors, is summed in registers: as many as there are, but for a few. */
#if defined(__AVX512F__)
#define LANES 16
#define HIGH 12
#define PARTS 2
#elif defined(__AVX__)
#define LANES 8
#define HIGH 6
#define PARTS 2
#else
#define LANES 4
#define HIGH 6
#define PARTS 4
#endif
#define WIDE (LANES * PARTS)

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
