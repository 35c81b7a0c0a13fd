/* Loops over rows in one pass. `row_loops.py` describes the arguments and calls them. */

#include "loops.h"

#include <math.h>
#include <string.h>

/* Rows are far apart in memory, where the processor can't foresee the next one. */
#define ROWS_AHEAD 8
#define CACHE_LINE 64

/* `mean_of_next_row` writes the sum of the values of the lowest next row of all sources, over the divisor, to `mean`,
   and goes past that row. It returns the row, or INT64_MAX after the last one. */
#define DEFINE_LOOPS(type, name, root)                                                                         \
    static inline __attribute__((always_inline)) int64_t mean_of_next_row_##name(                              \
        int64_t count, const int64_t *const *rows, const type *const *values, const int64_t *sizes,            \
        int64_t *next, int64_t dim, type divisor, type *restrict mean) {                                       \
        int64_t row = INT64_MAX;                                                                               \
        for (int64_t i = 0; i < count; i++)                                                                    \
            if (next[i] < sizes[i] && rows[i][next[i]] < row) row = rows[i][next[i]];                          \
        if (row == INT64_MAX) return row;                                                                      \
        int is_first = 1;                                                                                      \
        for (int64_t i = 0; i < count; i++) {                                                                  \
            if (next[i] >= sizes[i] || rows[i][next[i]] != row) continue;                                      \
            const type *restrict value = values[i] + next[i]++ * dim;                                          \
            if (is_first)                                                                                      \
                for (int64_t j = 0; j < dim; j++) mean[j] = value[j];                                          \
            else                                                                                               \
                for (int64_t j = 0; j < dim; j++) mean[j] += value[j];                                         \
            is_first = 0;                                                                                      \
        }                                                                                                      \
        for (int64_t j = 0; j < dim; j++) mean[j] /= divisor;                                                  \
        return row;                                                                                            \
    }                                                                                                          \
                                                                                                               \
    FOR_EACH_PROCESSOR                                                                                         \
    int64_t mean_rows_##name(int64_t count, const int64_t *const *rows, const type *const *values,             \
                             const int64_t *sizes, int64_t *next, int64_t dim, type divisor,                   \
                             int64_t *merged_rows, type *merged) {                                             \
        for (int64_t found = 0;; found++) {                                                                    \
            const int64_t row =                                                                                \
                mean_of_next_row_##name(count, rows, values, sizes, next, dim, divisor, merged + found * dim); \
            if (row == INT64_MAX) return found;                                                                \
            merged_rows[found] = row;                                                                          \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    FOR_EACH_PROCESSOR                                                                                         \
    void step_adagrad_##name(int64_t count, const int64_t *const *rows, const type *const *gradients,          \
                             const int64_t *sizes, int64_t *next, int64_t dim, type divisor,                   \
                             type *restrict mean, type *weight, type *squares, type rate, type eps) {          \
        for (;;) {                                                                                             \
            const int64_t row = mean_of_next_row_##name(count, rows, gradients, sizes, next, dim, divisor, mean); \
            if (row == INT64_MAX) return;                                                                      \
            for (int64_t i = 0; i < count; i++) {                                                              \
                const int64_t last = next[i] - 1;                                                              \
                if (last < 0 || rows[i][last] != row || last + ROWS_AHEAD >= sizes[i]) continue;               \
                const int64_t ahead = rows[i][last + ROWS_AHEAD] * dim;                                        \
                for (int64_t j = 0; j < dim; j += CACHE_LINE / sizeof(type)) {                                 \
                    __builtin_prefetch(weight + ahead + j, 1);                                                 \
                    __builtin_prefetch(squares + ahead + j, 1);                                                \
                }                                                                                              \
            }                                                                                                  \
            type *restrict w = weight + row * dim, *restrict s = squares + row * dim;                          \
            for (int64_t j = 0; j < dim; j++) {                                                                \
                s[j] += mean[j] * mean[j];                                                                     \
                w[j] -= rate * mean[j] / (root(s[j]) + eps);                                                   \
            }                                                                                                  \
        }                                                                                                      \
    }

DEFINE_LOOPS(float, float, sqrtf)
DEFINE_LOOPS(double, double, sqrt)

/* `ends` has the number of rows in each part and all parts before it. */
static inline __attribute__((always_inline)) const char *row_of_parts(
    const char *const *parts, const int64_t *ends, int64_t position, int64_t row_bytes) {
    int64_t part = 0;
    while (position >= ends[part]) part++;
    return parts[part] + (part ? position - ends[part - 1] : position) * row_bytes;
}

void gather_rows(const char *const *parts, const int64_t *ends, int64_t count, const int64_t *positions,
                 int64_t row_bytes, char *rows) {
    for (int64_t i = 0; i < count; i++) {
        if (i + ROWS_AHEAD < count) {
            const char *ahead = row_of_parts(parts, ends, positions[i + ROWS_AHEAD], row_bytes);
            for (int64_t j = 0; j < row_bytes; j += CACHE_LINE) __builtin_prefetch(ahead + j);
        }
        memcpy(rows + i * row_bytes, row_of_parts(parts, ends, positions[i], row_bytes), row_bytes);
    }
}

/* The Mersenne Twister (Matsumoto and Nishimura, 1998), as torch's generator of the CPU uses it. */
#define STATE 624
#define SHIFT 397

typedef struct {
    uint32_t state[STATE];
    double drawn[STATE / 2]; /* On [0, 1), of two words each. */
    int64_t used;
} twister;

static inline __attribute__((always_inline)) uint32_t twist(uint32_t upper, uint32_t lower) {
    return ((upper & 0x80000000u) | (lower & 0x7fffffffu)) >> 1 ^ (-(lower & 1u) & 0x9908b0dfu);
}

static inline __attribute__((always_inline)) uint32_t temper(uint32_t word) {
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680u;
    word ^= word << 15 & 0xefc60000u;
    return word ^ word >> 18;
}

static inline __attribute__((always_inline)) void seed_twister(twister *random, uint32_t seed) {
    random->state[0] = seed;
    for (uint32_t i = 1; i < STATE; i++) {
        const uint32_t last = random->state[i - 1];
        random->state[i] = 1812433253u * (last ^ last >> 30) + i;
    }
    random->used = STATE / 2;
}

static inline __attribute__((always_inline)) void refill(twister *random) {
    uint32_t *state = random->state, words[STATE];
    for (int i = 0; i < STATE - SHIFT; i++) state[i] = state[i + SHIFT] ^ twist(state[i], state[i + 1]);
    for (int i = STATE - SHIFT; i < STATE - 1; i++) state[i] = state[i + SHIFT - STATE] ^ twist(state[i], state[i + 1]);
    state[STATE - 1] = state[SHIFT - 1] ^ twist(state[STATE - 1], state[0]);
    for (int i = 0; i < STATE; i++) words[i] = temper(state[i]);
    for (int i = 0; i < STATE / 2; i++) /* The lower 53 bits, without rounding. */
        random->drawn[i] = (words[2 * i] & 0x1fffffu) * 0x1p-21 + words[2 * i + 1] * 0x1p-53;
    random->used = 0;
}

static inline __attribute__((always_inline)) void draw(twister *random, double *values, int64_t count) {
    while (count > 0) {
        if (random->used == STATE / 2) refill(random);
        const int64_t left = STATE / 2 - random->used, size = count < left ? count : left;
        memcpy(values, random->drawn + random->used, size * sizeof(double));
        random->used += size, values += size, count -= size;
    }
}

/* ln x for x in [2^-53, 1]: k ln 2 + 2 artanh((m - 1) / (m + 1)) with x = 2^k m and m in [sqrt(1/2), sqrt(2)). */
static inline __attribute__((always_inline)) double logarithm(double x) {
    const uint64_t one = 0x3ff0000000000000u, root_of_half = 0x3fe6a09e667f3bcdu;
    uint64_t bits, exponent;
    memcpy(&bits, &x, sizeof(x));
    exponent = (bits - root_of_half + one) >> 52; /* 1023 + k */
    bits += one - (exponent << 52);
    exponent |= 0x4330000000000000u; /* 2^52 + 1023 + k */
    double m, k;
    memcpy(&m, &bits, sizeof(m));
    memcpy(&k, &exponent, sizeof(k));
    k -= 0x1p52 + 1023;
    const double s = (m - 1) / (m + 1), z = s * s;
    double sum = 1.0 / 23;
    sum = sum * z + 1.0 / 21;
    sum = sum * z + 1.0 / 19;
    sum = sum * z + 1.0 / 17;
    sum = sum * z + 1.0 / 15;
    sum = sum * z + 1.0 / 13;
    sum = sum * z + 1.0 / 11;
    sum = sum * z + 1.0 / 9;
    sum = sum * z + 1.0 / 7;
    sum = sum * z + 1.0 / 5;
    sum = sum * z + 1.0 / 3;
    return k * 0x1.62e42fefa39efp-1 + 2 * (s + s * z * sum);
}

/* The cosine and the sine of 2 pi x for x in [0, 1), by their series within an eighth of a turn around each quarter. */
static inline __attribute__((always_inline)) void turn(double x, double *cosine, double *sine) {
    const double quarter = (4 * x + 0x1.8p52) - 0x1.8p52;
    const double a = (4 * x - quarter) * 0x1.921fb54442d18p0, z = a * a;
    double s = 1.0 / 355687428096000, c = 1.0 / 20922789888000;
    s = s * z - 1.0 / 1307674368000, c = c * z - 1.0 / 87178291200;
    s = s * z + 1.0 / 6227020800, c = c * z + 1.0 / 479001600;
    s = s * z - 1.0 / 39916800, c = c * z - 1.0 / 3628800;
    s = s * z + 1.0 / 362880, c = c * z + 1.0 / 40320;
    s = s * z - 1.0 / 5040, c = c * z - 1.0 / 720;
    s = s * z + 1.0 / 120, c = c * z + 1.0 / 24;
    s = s * z - 1.0 / 6, c = c * z - 1.0 / 2;
    s = a + a * z * s, c = 1 + z * c;
    const int is_odd = (quarter == 1) | (quarter == 3);
    const double along = is_odd ? s : c, across = is_odd ? c : s;
    *cosine = (quarter == 1) | (quarter == 2) ? -along : along;
    *sine = (quarter == 2) | (quarter == 3) ? -across : across;
}

/* Box and Muller, 1958. Of each group, the first half gives the radii, and the second half the angles. */
#define GROUP 16
static inline __attribute__((always_inline)) void make_normal(double *restrict values) {
    double *restrict angles = values + GROUP / 2;
    for (int j = 0; j < GROUP / 2; j++) {
        double cosine, sine;
        const double radius = sqrt(-2 * logarithm(1 - values[j]));
        turn(angles[j], &cosine, &sine);
        values[j] = radius * cosine, angles[j] = radius * sine;
    }
}

#define CHUNK (STATE / GROUP * GROUP)

FOR_EACH_PROCESSOR
void standard_normal_double(uint32_t seed, int64_t count, double *values) {
    twister random;
    seed_twister(&random, seed);
    const int64_t whole = count - count % GROUP;
    for (int64_t begin = 0; begin < whole; begin += CHUNK) {
        const int64_t size = whole - begin < CHUNK ? whole - begin : CHUNK;
        draw(&random, values + begin, size);
        for (int64_t i = begin; i < begin + size; i += GROUP) make_normal(values + i);
    }
    if (count == whole) return;
    draw(&random, values + whole, count - whole); /* As torch: these are replaced, with others before them. */
    draw(&random, values + count - GROUP, GROUP);
    make_normal(values + count - GROUP);
}
