// Operations of MLX's graph that are computed by our kernels, for CPUs; all may throw, and only when they are made.
#pragma once

#include <cstdint>
#include <memory>

#include "mlxcel-mlx/cpp/bridge.h"
#include "rust/cxx.h"

namespace mlxcel {

struct KernelSettings;

// The implementations that this machine runs, the best first.
rust::Vec<rust::String> kernel_implementations();

// x [.., k] float32, w [n, k], bias [n] or null: x · wᵀ + bias, float32.
Handle kernel_linear(const array& x, const array& w, const array* bias, const KernelSettings& settings);

// The same with w in affine quantization: words [n, k · bits / 32], scales and biases [n, k / group_size].
Handle kernel_affine_linear(const array& x, const array& words, const array& scales, const array& biases,
                            const array* bias, int32_t group_size, int32_t bits, const KernelSettings& settings);

// x [rows, k] float32, experts [rows] uint32, w [experts, n, k]: row r times the transposed w[experts[r]], float32. Rows
// that follow each other and have one expert read it once.
Handle kernel_expert_linear(const array& x, const array& experts, const array& w, const KernelSettings& settings);

// The same with w in affine quantization: words [experts, n, k · bits / 32], scales and biases [experts, n, k /
// group_size].
Handle kernel_affine_expert_linear(const array& x, const array& experts, const array& words, const array& scales,
                                   const array& biases, int32_t group_size, int32_t bits,
                                   const KernelSettings& settings);

// q [tokens, heads, dim] float32, keys and values [kv_heads, length, dim], or that behind an axis of 1: attention of
// queries that are of the last positions, to their own and those before, or the last `window` of them where it is not
// 0.
Handle kernel_attention(const array& q, const array& keys, const array& values, float scale, int32_t window,
                        const KernelSettings& settings);

// x [.., n] float32, weight [n] or null: x / √(mean(x²) + epsilon) · weight.
Handle kernel_rms_norm(const array& x, const array* weight, float epsilon, const KernelSettings& settings);

// x [.., n] float32: the logarithm of the sum of powers of e along the last axis, [.., 1].
Handle kernel_log_sum_exp(const array& x, const KernelSettings& settings);

// gate and up of one shape, float32: gate · sigmoid(gate) · up.
Handle kernel_silu_mul(const array& gate, const array& up, const KernelSettings& settings);

// x [tokens, heads, dim], cos and sin [tokens, 1, pairs], float32: elements i and i + pairs turned, the others as
// they are.
Handle kernel_rotate(const array& x, const array& cos, const array& sin, const KernelSettings& settings);

} // namespace mlxcel
