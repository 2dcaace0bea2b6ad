// Causal attention of some queries over a cache of keys and values.
#pragma once

#include <cstddef>

#include "element.h"
#include "table.h"

namespace mlxcel::kernels {

/// Queries [tokens][heads][dim], keys and values [kv_heads][length][dim] in any strides (in elements) whose last is
/// 1, output [tokens][heads][value_dim].
///
/// Query t sees keys up to offset + t, of these the last `window`. Query head h reads key/value head
/// h / (heads / kv_heads).
struct Attention {
  const float* q;
  std::ptrdiff_t q_token, q_head;
  const void* keys;
  std::ptrdiff_t key_head, key_token;
  const void* values;
  std::ptrdiff_t value_head, value_token;
  Element cache_type;
  float* y;
  std::ptrdiff_t y_token, y_head;

  std::size_t tokens, heads, kv_heads, dim, value_dim;
  std::size_t length;
  std::size_t offset;  // offset + tokens <= length
  std::size_t window;  // 0: all
  float scale;
};

/// Bytes of memory that the computation wants for its time.
std::size_t attention_workspace(const Kernels& kernels, const Attention& p, unsigned threads) noexcept;

/// softmax(scale · q·kᵀ) · v with keys in blocks, so that no more than a block of scores exists at a time (Dao et
/// al., 2022, "FlashAttention"); each block of keys and values is read once for all query heads that share it.
void attention(const Kernels& kernels, const Attention& p, unsigned threads, void* workspace) noexcept;

}  // namespace mlxcel::kernels
