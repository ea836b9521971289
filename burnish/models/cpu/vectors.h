/* Register tile of a matrix product: HIGH rows of PARTS vectors. Sized to use nearly all vector registers. */
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
