// Products of activations and weights: y = x · wᵀ + bias, in single precision, weights as they are stored.
#pragma once

#include <cstddef>

#include "element.h"
#include "table.h"

namespace mlxcel::kernels {

/// The activations, the bias and the result of a product; strides in elements.
struct Product {
  const float* x;  // [m][k]
  std::ptrdiff_t x_stride;
  float* y;  // [m][n]
  std::ptrdiff_t y_stride;
  const void* bias;  // [n], or null
  Element bias_type;
  std::size_t m, n, k;
};

/// Weights [n][k], element-aligned at least.
struct Dense {
  const void* w;
  std::ptrdiff_t stride;
  Element type;
};

/// Bytes of memory that a product wants for its time; a pure function of its arguments.
std::size_t linear_workspace(std::size_t m, std::size_t k) noexcept;
std::size_t affine_linear_workspace(std::size_t m, std::size_t k, unsigned bits) noexcept;

/// Computes the product on up to `threads` threads. Each output's terms are added in an order that depends on m, n
/// and k alone, not on threads.
void linear(const Kernels& kernels, const Product& p, const Dense& w, unsigned threads, void* workspace) noexcept;

/// The same with quantized weights: `p.k` is a multiple of the group.
void affine_linear(const Kernels& kernels, const Product& p, const Affine& w, unsigned threads,
                   void* workspace) noexcept;

}  // namespace mlxcel::kernels
