/* For every file of loops; hatch_build.py compiles them to one library. */

#pragma once

#include <stdint.h>

/* Also compiled for vectors that not every processor has; the dynamic loader chooses. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
