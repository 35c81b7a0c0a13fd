/* Advantages, and the loss of PPO, in one pass each. `policy_loops.py` describes the arguments and calls them. */

#include "loops.h"

#include <math.h>

/* The rows of a rollout are its steps. Operations are in the order of torch's, so that results are the same. */
#define DEFINE_ADVANTAGES(type, name)                                                                          \
    FOR_EACH_PROCESSOR                                                                                         \
    void name(int64_t steps, int64_t count, const type *restrict rewards, const type *restrict values,         \
              const uint8_t *restrict terminated, const uint8_t *restrict truncated, double gamma,             \
              double decay, type *restrict advantages) {                                                       \
        const type discount = gamma, carried = decay;                                                          \
        for (int64_t row = steps - 1; row >= 0; row--) {                                                       \
            const int64_t begin = row * count;                                                                 \
            const type *value = values + begin, *reward = rewards + begin;                                     \
            const uint8_t *is_end = terminated + begin, *is_cut = truncated + begin;                           \
            type *found = advantages + begin;                                                                  \
            for (int64_t i = 0; i < count; i++) {                                                              \
                const type next = is_end[i] ? 0 : discount * value[count + i];                                 \
                const int is_last = row == steps - 1 || is_end[i] || is_cut[i];                                \
                const type later = is_last ? 0 : carried * found[count + i];                                   \
                found[i] = reward[i] + next - value[i] + later;                                                \
            }                                                                                                  \
        }                                                                                                      \
    }

DEFINE_ADVANTAGES(float, advantages_float)
DEFINE_ADVANTAGES(double, advantages_double)

#define DEFINE_LOOPS(type, name, exp, log, expm1)                                                              \
    static void standardize_##name(int64_t count, const type *numbers, type *mean, type *scale) {              \
        double sum = 0, squares = 0;                                                                           \
        for (int64_t i = 0; i < count; i++) sum += numbers[i];                                                 \
        sum /= count;                                                                                          \
        for (int64_t i = 0; i < count; i++) squares += (numbers[i] - sum) * (numbers[i] - sum);                \
        *mean = sum, *scale = sqrt(squares / (count - 1)) + 1e-8;                                              \
    }                                                                                                          \
                                                                                                               \
    int64_t ppo_##name(int64_t count, int64_t choices, const type *outputs, const type *values,                \
                       const int64_t *actions, const type *old_log_probs, const type *old_values,              \
                       const type *advantages, int64_t normalizes, double clip, double value_clip,             \
                       double value_factor, double entropy_factor, type *output_gradients,                     \
                       type *value_gradients, type *losses) {                                                  \
        const type least = 1 - clip, most = 1 + clip, move_limit = value_clip;                                 \
        const type value_scale = value_factor / count, entropy_gradient = -entropy_factor / count;             \
        double policy_loss = 0, value_loss = 0, entropy_sum = 0, divergence = 0;                               \
        type mean = 0, scale = 1;                                                                              \
        if (normalizes && count > 1) standardize_##name(count, advantages, &mean, &scale);                     \
        for (int64_t i = 0; i < count; i++) {                                                                  \
            if (actions[i] < 0 || actions[i] >= choices) return i;                                             \
            const type *logits = outputs + i * choices;                                                        \
            type *logs = output_gradients + i * choices; /* First the logarithms of the probabilities. */      \
            type highest = logits[0], sum = 0, entropy = 0;                                                    \
            for (int64_t j = 1; j < choices; j++) highest = logits[j] > highest ? logits[j] : highest;         \
            for (int64_t j = 0; j < choices; j++) sum += exp(logits[j] - highest);                             \
            const type shift = highest + log(sum);                                                             \
            for (int64_t j = 0; j < choices; j++) {                                                            \
                logs[j] = logits[j] - shift;                                                                   \
                entropy -= exp(logs[j]) * logs[j];                                                             \
            }                                                                                                  \
                                                                                                               \
            const type change = logs[actions[i]] - old_log_probs[i];                                           \
            const type growth = expm1(change), ratio = growth + 1;                                             \
            const type weight = (advantages[i] - mean) / scale, gain = ratio * weight;                         \
            const type clipped = (ratio < least ? least : ratio > most ? most : ratio) * weight;               \
            /* The derivative of the ratio is the ratio itself; clipped gains are constant. */                 \
            const type log_prob_gradient = clipped < gain ? 0 : -gain / count;                                 \
            policy_loss -= clipped < gain ? clipped : gain;                                                    \
            entropy_sum += entropy;                                                                            \
            divergence += growth - change;                                                                     \
            for (int64_t j = 0; j < choices; j++) {                                                            \
                const type pull = log_prob_gradient + entropy_gradient * (logs[j] + entropy);                  \
                logs[j] = (j == actions[i] ? log_prob_gradient : 0) - pull * exp(logs[j]);                     \
            }                                                                                                  \
                                                                                                               \
            const type target = old_values[i] + advantages[i], move = values[i] - old_values[i];               \
            type error = values[i] - target;                                                                   \
            value_gradients[i] = error * value_scale;                                                          \
            if (fabs(move) > move_limit) {                                                                     \
                const type other = old_values[i] + (move > 0 ? move_limit : -move_limit) - target;             \
                if (fabs(other) > fabs(error)) error = other, value_gradients[i] = 0;                          \
            }                                                                                                  \
            value_loss += (double)error * error;                                                               \
        }                                                                                                      \
        losses[0] = policy_loss / count, losses[1] = value_loss / count / 2;                                   \
        losses[2] = entropy_sum / count, losses[3] = divergence / count;                                       \
        return -1;                                                                                             \
    }

DEFINE_LOOPS(float, float, expf, logf, expm1f)
DEFINE_LOOPS(double, double, exp, log, expm1)
