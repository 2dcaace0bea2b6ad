// What each instruction set implements: the inner loops of all kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "element.h"

namespace mlxcel::kernels {

/// Rows of x (m by k) against rows of weights as they are stored; strides in elements.
struct FewRows {
  const float* x;  // as `Kernels::arrange` orders it
  std::size_t m, k;
  const void* w;
  std::ptrdiff_t w_stride;
  const void* bias;  // none where null
  Element bias_type;
  float* y;
  std::ptrdiff_t y_stride;
};

/// Rows of numbers in affine quantization: little-endian words of `bits` bits each, the first in the lowest, and a
/// scale and a bias for each `group` of them: scale · number + bias.
struct Affine {
  const void* words;
  std::ptrdiff_t row_bytes;
  const void* scales;
  const void* biases;
  Element scale_type;
  std::ptrdiff_t scale_stride;  // groups in a row, as stored
  unsigned bits;
  unsigned group;
};

/// As many rows as `FewRows` may have.
inline constexpr std::size_t kFewRows = 16;

/// The most floats in a vector: to multiples of as many, arranged rows are filled up.
inline constexpr std::size_t kMostWidth = 16;

/// A product of packed panels: c (rows by columns) = a · b, or c + a · b.
struct Tile {
  std::size_t rows, columns, depth;
  const float* a;  // [depth][rows]
  const float* b;  // [depth][tile_columns]
  float* c;
  std::ptrdiff_t c_stride;
  bool accumulate;
};

/// Queries [rows][dim] with keys as they lie.
struct FewScores {
  const float* q;
  std::size_t rows, dim;
  const void* keys;
  std::ptrdiff_t stride;
  std::size_t count;
  float* scores;  // [rows][scores_stride]
  std::size_t scores_stride;
};

/// Weights [rows][weights_stride] of values as they lie; the sums, added to what there is, are [rows][sums_stride].
struct FewSums {
  const float* weights;
  std::size_t weights_stride;
  std::size_t rows, dim;
  const void* values;
  std::ptrdiff_t stride;
  std::size_t count;
  float* sums;
  std::size_t sums_stride;
};

/// One row of scores on its way through a softmax that sees its keys in blocks (Milakov and Gimelshein, 2018).
struct SoftmaxRow {
  float maximum;
  float total;
  /// What earlier sums are to be multiplied with.
  float correction;
};

struct Kernels {
  const char* name;

  /// The most rows, and the number of columns, of a tile.
  std::size_t tile_rows, tile_columns;

  /// Puts rows of x into the order in which few rows are multiplied with weights in `group`s of `bits`-bit numbers,
  /// or, where `bits` is 0, with plain ones: [vectors][rows][width] in blocks of rows, filled up with zeros. One row
  /// against other than 4-bit weights stays as it is, and needs not pass through this.
  void (*arrange)(const float* x, std::ptrdiff_t stride, std::size_t m, std::size_t k, unsigned bits, unsigned group,
                  float* to);
  /// y for weight rows `first` to `last`-1; by element type of the weights.
  void (*few_rows[3])(const FewRows& p, std::size_t first, std::size_t last);
  /// The same for quantized weights; those in `p` do not count.
  void (*few_rows_affine)(const FewRows& p, const Affine& w, std::size_t first, std::size_t last);

  /// Writes `count` numbers of a quantized row from number `start`, both multiples of 32, as floats.
  void (*unpack)(const Affine& w, std::size_t row, std::size_t start, std::size_t count, float* to);

  /// [rows][depth] to [depth][rows]. `readable` rows from the first may be read.
  void (*pack_rows)(const float* from, std::ptrdiff_t stride, std::size_t rows, std::size_t readable, std::size_t depth,
                    float* to);
  /// `columns` rows of weights or keys to [depth][tile_columns], zero in the columns beyond; by element type.
  void (*pack_columns[3])(const void* from, std::ptrdiff_t stride, std::size_t columns, std::size_t depth, float* to);
  /// [depth][columns] to [depth][tile_columns], zero in the columns beyond; by element type.
  void (*copy_columns[3])(const void* from, std::ptrdiff_t stride, std::size_t columns, std::size_t depth, float* to);
  void (*tile)(const Tile& p);

  /// Scores and sums of attention without packing, for few rows; by element type of the cache.
  void (*few_scores[3])(const FewScores& p);
  void (*few_sums[3])(const FewSums& p);

  /// Replaces scores `begin` to `end`-1 by e^(score - maximum) and all others of the `width` (a multiple of 16) by
  /// zero.
  void (*softmax)(float* scores, std::size_t begin, std::size_t end, std::size_t width, SoftmaxRow& row);
  /// The largest of some numbers, and the sum of their powers of e after it is subtracted.
  void (*exponentials)(const float* x, std::size_t count, float& maximum, float& total);
  /// to[i] = a[i] · factor
  void (*scale)(const float* a, float factor, std::size_t count, float* to);

  /// to = x / √(mean(x²) + epsilon) · weight; by element type of the weight, which may be null.
  void (*rms_norm[3])(const float* x, const void* weight, float epsilon, std::size_t count, float* to);
  /// to = x · sigmoid(x) · y
  void (*silu_mul)(const float* x, const float* y, std::size_t count, float* to);
  /// to[i] = low[i] · cos[i] - high[i] · sin[i]; to[half + i] = high[i] · cos[i] + low[i] · sin[i]
  void (*rotate_halves)(const float* x, const float* cos, const float* sin, std::size_t half, float* to);
};

/// The best implementation that this machine runs.
const Kernels& kernels();

/// Every implementation that this machine runs, the best first; `count` receives how many.
const Kernels* const* every_kernels(std::size_t& count);

}  // namespace mlxcel::kernels
