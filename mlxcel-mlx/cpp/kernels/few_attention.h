// Attention of few rows: keys and values are read where they lie, once, without packing them first.
namespace mlxcel::kernels::MLXCEL_ISA {

/// How many rows go over keys and values together.
inline constexpr std::size_t kAttentionRows = 4;

/// Scores of `Rows` queries with `Keys` keys.
template <class T, std::size_t Rows, std::size_t Keys>
void score_block(const float* q, const T* keys, std::ptrdiff_t stride, std::size_t dim, float* scores,
                 std::size_t scores_stride) {
  Vec total[Rows * Keys];
MLXCEL_UNROLL
  for (Vec& one : total) {
    one = zero();
  }
  std::size_t k = 0;
  for (; k + kWidth <= dim; k += kWidth) {
    Vec key[Keys];
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Keys; ++j) {
      key[j] = load(keys + static_cast<std::ptrdiff_t>(j) * stride + k);
    }
MLXCEL_UNROLL
    for (std::size_t i = 0; i < Rows; ++i) {
      const Vec query = load(q + i * dim + k);
MLXCEL_UNROLL
      for (std::size_t j = 0; j < Keys; ++j) {
        total[i * Keys + j] = fma(query, key[j], total[i * Keys + j]);
      }
    }
  }
  if (const std::size_t rest = dim - k; rest > 0) {
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Keys; ++j) {
      const Vec key = load(keys + static_cast<std::ptrdiff_t>(j) * stride + k, rest);
MLXCEL_UNROLL
      for (std::size_t i = 0; i < Rows; ++i) {
        total[i * Keys + j] = fma(load(q + i * dim + k, rest), key, total[i * Keys + j]);
      }
    }
  }
  float found[Rows * Keys];
  sums(total, found);
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
    std::memcpy(scores + i * scores_stride, found + i * Keys, Keys * sizeof(float));
  }
}

template <class T, std::size_t Rows>
void score_rows(const float* q, const T* keys, std::ptrdiff_t stride, std::size_t count, std::size_t dim, float* scores,
                std::size_t scores_stride) {
  std::size_t j = 0;
  for (; j + kScoredKeys <= count; j += kScoredKeys) {
    const T* from = keys + static_cast<std::ptrdiff_t>(j) * stride;
    score_block<T, Rows, kScoredKeys>(q, from, stride, dim, scores + j, scores_stride);
  }
  for (; j < count; ++j) {
    const T* from = keys + static_cast<std::ptrdiff_t>(j) * stride;
    score_block<T, Rows, 1>(q, from, stride, dim, scores + j, scores_stride);
  }
}

template <class T, std::size_t Rows = kAttentionRows>
void score_some(std::size_t rows, const float* q, const T* keys, std::ptrdiff_t stride, std::size_t count,
                std::size_t dim, float* scores, std::size_t scores_stride) {
  if (rows == Rows) {
    score_rows<T, Rows>(q, keys, stride, count, dim, scores, scores_stride);
  } else if constexpr (Rows > 1) {
    score_some<T, Rows - 1>(rows, q, keys, stride, count, dim, scores, scores_stride);
  }
}

template <class T>
void few_scores(const FewScores& p) {
  for (std::size_t row = 0; row < p.rows; row += kAttentionRows) {
    const std::size_t rows = p.rows - row < kAttentionRows ? p.rows - row : kAttentionRows;
    score_some<T>(rows, p.q + row * p.dim, static_cast<const T*>(p.keys), p.stride, p.count, p.dim,
                  p.scores + row * p.scores_stride, p.scores_stride);
  }
}

/// Adds up `Vectors` vectors of values, the last of `rest` elements where that is not 0, for `Rows` rows of weights.
template <class T, std::size_t Rows, std::size_t Vectors>
void weigh_block(const FewSums& p, std::size_t row, std::size_t column, std::size_t rest) {
  constexpr std::size_t kWhole = Vectors - 1;
  float* to = p.sums + row * p.sums_stride + column;
  const float* weights = p.weights + row * p.weights_stride;
  const T* values = static_cast<const T*>(p.values) + column;
  Vec total[Rows * Vectors];
MLXCEL_UNROLL
  for (Vec& one : total) {
    one = zero();
  }
  for (std::size_t j = 0; j < p.count; ++j, values += p.stride) {
    Vec value[Vectors];
MLXCEL_UNROLL
    for (std::size_t v = 0; v < Vectors; ++v) {
      value[v] = v == kWhole && rest > 0 ? load(values + v * kWidth, rest) : load(values + v * kWidth);
    }
MLXCEL_UNROLL
    for (std::size_t i = 0; i < Rows; ++i) {
      const Vec weight = splat(weights[i * p.weights_stride + j]);
MLXCEL_UNROLL
      for (std::size_t v = 0; v < Vectors; ++v) {
        total[i * Vectors + v] = fma(weight, value[v], total[i * Vectors + v]);
      }
    }
  }
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
MLXCEL_UNROLL
    for (std::size_t v = 0; v < Vectors; ++v) {
      float* place = to + i * p.sums_stride + v * kWidth;
      if (v == kWhole && rest > 0) {
        store(place, add(load(place, rest), total[i * Vectors + v]), rest);
      } else {
        store(place, add(load(place), total[i * Vectors + v]));
      }
    }
  }
}

template <class T, std::size_t Rows>
void weigh_rows(const FewSums& p, std::size_t row) {
  std::size_t column = 0;
  for (; column + kWeighedVectors * kWidth <= p.dim; column += kWeighedVectors * kWidth) {
    weigh_block<T, Rows, kWeighedVectors>(p, row, column, 0);
  }
  for (; column < p.dim; column += kWidth) {
    weigh_block<T, Rows, 1>(p, row, column, p.dim - column < kWidth ? p.dim - column : 0);
  }
}

template <class T, std::size_t Rows = kAttentionRows>
void weigh_some(std::size_t rows, const FewSums& p, std::size_t row) {
  if (rows == Rows) {
    weigh_rows<T, Rows>(p, row);
  } else if constexpr (Rows > 1) {
    weigh_some<T, Rows - 1>(rows, p, row);
  }
}

template <class T>
void few_sums(const FewSums& p) {
  for (std::size_t row = 0; row < p.rows; row += kAttentionRows) {
    weigh_some<T>(p.rows - row < kAttentionRows ? p.rows - row : kAttentionRows, p, row);
  }
}

}  // namespace mlxcel::kernels::MLXCEL_ISA
