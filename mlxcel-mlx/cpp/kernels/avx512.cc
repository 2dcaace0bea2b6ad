#if defined(__x86_64__)

#include <immintrin.h>

#include "instance_begin.h"

#define MLXCEL_ISA avx512
#define MLXCEL_ISA_NAME "AVX-512"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
// GCC's own header passes undefined vectors as what a full mask makes irrelevant (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#include "simd_avx512.h"
#include "instance.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
