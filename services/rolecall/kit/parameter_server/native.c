/* Loops over rows in one pass. `native.py` describes the arguments and calls them; hatch_build.py compiles this file. */

#include <math.h>
#include <stdint.h>

/* Also compiled for vectors that not every processor has; the dynamic loader chooses. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* Rows are far apart in memory, where the processor can't foresee the next one. */
#define ROWS_AHEAD 8
#define CACHE_LINE 64

#define DEFINE_LOOPS(type, name, root)                                                                         \
    FOR_EACH_PROCESSOR                                                                                         \
    int64_t mean_rows_##name(int64_t count, const int64_t *const *rows, const type *const *values,             \
                             const int64_t *sizes, int64_t *next, int64_t dim, type divisor,                   \
                             int64_t *merged_rows, type *merged) {                                             \
        for (int64_t found = 0;; found++) {                                                                    \
            int64_t row = INT64_MAX;                                                                           \
            for (int64_t i = 0; i < count; i++)                                                                \
                if (next[i] < sizes[i] && rows[i][next[i]] < row) row = rows[i][next[i]];                      \
            if (row == INT64_MAX) return found;                                                                \
            type *restrict sum = merged + found * dim;                                                         \
            int is_first = 1;                                                                                  \
            for (int64_t i = 0; i < count; i++) {                                                              \
                if (next[i] >= sizes[i] || rows[i][next[i]] != row) continue;                                  \
                const type *restrict value = values[i] + next[i]++ * dim;                                      \
                if (is_first)                                                                                  \
                    for (int64_t j = 0; j < dim; j++) sum[j] = value[j];                                       \
                else                                                                                           \
                    for (int64_t j = 0; j < dim; j++) sum[j] += value[j];                                      \
                is_first = 0;                                                                                  \
            }                                                                                                  \
            for (int64_t j = 0; j < dim; j++) sum[j] /= divisor;                                               \
            merged_rows[found] = row;                                                                          \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    FOR_EACH_PROCESSOR                                                                                         \
    void step_adagrad_##name(int64_t count, const int64_t *rows, const type *gradients, int64_t dim,           \
                             type *weight, type *squares, type rate, type eps) {                               \
        for (int64_t i = 0; i < count; i++) {                                                                  \
            if (i + ROWS_AHEAD < count) {                                                                      \
                const int64_t ahead = rows[i + ROWS_AHEAD] * dim;                                              \
                for (int64_t j = 0; j < dim; j += CACHE_LINE / sizeof(type)) {                                 \
                    __builtin_prefetch(weight + ahead + j, 1);                                                 \
                    __builtin_prefetch(squares + ahead + j, 1);                                                \
                }                                                                                              \
            }                                                                                                  \
            const type *restrict gradient = gradients + i * dim;                                               \
            type *restrict w = weight + rows[i] * dim, *restrict s = squares + rows[i] * dim;                  \
            for (int64_t j = 0; j < dim; j++) {                                                                \
                s[j] += gradient[j] * gradient[j];                                                             \
                w[j] -= rate * gradient[j] / (root(s[j]) + eps);                                               \
            }                                                                                                  \
        }                                                                                                      \
    }

DEFINE_LOOPS(float, float, sqrtf)
DEFINE_LOOPS(double, double, sqrt)
