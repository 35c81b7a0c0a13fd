/* Loops for the update of a small network. `update_loops.py` describes the arguments and calls them. */

#include "loops.h"

#include <math.h>

/* Sums in the order of one loop can't use vectors, so there are several. */
#define LANES 16

#define DEFINE_LOOPS(type, name, root)                                                                         \
    FOR_EACH_PROCESSOR                                                                                         \
    void clip_norm_##name(int64_t count, type *restrict gradient, double most) {                               \
        double sums[LANES] = {0}, squares = 0;                                                                 \
        int64_t i = 0;                                                                                         \
        for (; i + LANES <= count; i += LANES)                                                                 \
            for (int j = 0; j < LANES; j++) sums[j] += (double)gradient[i + j] * gradient[i + j];              \
        for (; i < count; i++) squares += (double)gradient[i] * gradient[i];                                   \
        for (int j = 0; j < LANES; j++) squares += sums[j];                                                    \
        const double scale = most / (sqrt(squares) + 1e-6);                                                    \
        if (scale >= 1) return; /* As in torch, a norm of NaN makes all NaN. */          \
        const type factor = scale;                                                                             \
        for (i = 0; i < count; i++) gradient[i] *= factor;                                                     \
    }                                                                                                          \
                                                                                                               \
    FOR_EACH_PROCESSOR                                                                                         \
    void step_adam_##name(int64_t count, type *restrict weight, const type *restrict gradient,                 \
                          type *restrict mean, type *restrict square, float *steps, double beta1,              \
                          double beta2, double rate, double eps, double decay, double decoupled_decay) {       \
        *steps += 1;                                                                                           \
        const type step = rate / (1 - pow(beta1, *steps)), root_of_bias = sqrt(1 - pow(beta2, *steps));        \
        const type new1 = 1 - beta1, old2 = beta2, new2 = 1 - beta2, small = eps;                              \
        const type pull = decay, kept = 1 - rate * decoupled_decay;                                            \
        for (int64_t i = 0; i < count; i++) {                                                                  \
            const type w = weight[i] * kept, g = gradient[i] + pull * w;                                       \
            mean[i] += new1 * (g - mean[i]);                                                                   \
            square[i] = old2 * square[i] + new2 * g * g;                                                       \
            weight[i] = w - step * mean[i] / (root(square[i]) / root_of_bias + small);                         \
        }                                                                                                      \
    }

/* A quotient of polynomials of x^2, times x: the best relative approximation for 0 < x <= 9 (2.1e-8 before rounding).
   Beyond that, the result is 1, or the number before it. NaN stays NaN. */
FOR_EACH_PROCESSOR
void tanh_float(int64_t count, float *numbers) {
    for (int64_t i = 0; i < count; i++) {
        const float x = numbers[i] > 9 ? 9 : numbers[i] < -9 ? -9 : numbers[i], square = x * x;
        float above = 1.33546704e-08f, below = 7.77656253e-07f;
        above = above * square + 2.06090906e-05f, below = below * square + 0.000328563571f;
        above = above * square + 0.0034955887f, below = below * square + 0.0258769844f;
        above = above * square + 0.133810261f, below = below * square + 0.467143417f;
        above = above * square + 0.999999979f, below = below * square + 1;
        const float result = x * above / below;
        numbers[i] = result > 1 ? 1 : result < -1 ? -1 : result;
    }
}

/* `result` is that of the activation function, and `gradient` that of the result. */
#define DEFINE_BACKWARD(type, name, passed)                                                                    \
    FOR_EACH_PROCESSOR                                                                                         \
    void name(int64_t count, int64_t width, const type *restrict results, type *restrict gradients,            \
              type *restrict sums, int64_t accumulates) {                                                      \
        for (int64_t j = 0; j < width; j++) sums[j] = accumulates ? sums[j] : 0;                               \
        for (int64_t i = 0; i < count; i++, results += width, gradients += width)                              \
            for (int64_t j = 0; j < width; j++) {                                                              \
                const type result = results[j], gradient = gradients[j];                                       \
                gradients[j] = passed;                                                                         \
                sums[j] += gradients[j];                                                                       \
            }                                                                                                  \
    }

DEFINE_LOOPS(float, float, sqrtf)
DEFINE_LOOPS(double, double, sqrt)
DEFINE_BACKWARD(float, tanh_backward_float, gradient * (1 - result * result))
DEFINE_BACKWARD(double, tanh_backward_double, gradient * (1 - result * result))
DEFINE_BACKWARD(float, relu_backward_float, result > 0 ? gradient : 0)
DEFINE_BACKWARD(double, relu_backward_double, result > 0 ? gradient : 0)
