#if defined(__x86_64__)

#include <immintrin.h>

#include "instance_begin.h"

#define MLXCEL_ISA avx2
#define MLXCEL_ISA_NAME "AVX2"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#include "simd_avx2.h"
#include "instance.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
