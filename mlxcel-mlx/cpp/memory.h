// Memory that MLX allocates, and memory that it is lent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "mlx/array.h"

namespace mlxcel {

// Makes failed allocations exceptions, and allocations beyond `limit` bytes together failed ones; see memory.cc. Has
// an effect once.
void guard_allocator(size_t limit);

// Whether memory of somebody else can be lent to MLX by `lend`. MLX's own way (an array's constructor) takes whole
// pages only, and on a CPU none at all: it copies.
bool lends_directly();

// An array over memory of somebody else, row-major, without a copy; `release` is called once, when no array uses the
// memory any more. MLX does not write to it. It must be eight bytes long or longer.
mlx::core::array lend(const uint8_t* data, mlx::core::Shape shape, mlx::core::Dtype dtype,
                      std::function<void()> release);

} // namespace mlxcel
