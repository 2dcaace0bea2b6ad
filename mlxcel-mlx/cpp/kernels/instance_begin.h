// Everything that an instance needs from outside, included before its target attribute takes effect: functions of the
// standard library must stay ones that every machine runs.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "table.h"

#define MLXCEL_INLINE inline __attribute__((always_inline))

// Ahead of a loop of a constant number of turns, at most 16, over arrays that must become registers.
#if defined(__clang__)
#define MLXCEL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MLXCEL_UNROLL _Pragma("GCC unroll 16")
#endif
