// Few rows of x against stored weights: each weight is read from memory once, at the speed of the bus.
namespace mlxcel::kernels::MLXCEL_ISA {

/// How many rows of x go over the weights at once: blocks of nearly equal height, 9 rows as 5 and 4 and not as 8 and
/// 1.
inline std::size_t few_height(std::size_t m) {
  const std::size_t passes = (m + kFewBlock - 1) / kFewBlock;
  return (m + passes - 1) / passes;
}

/// Rows of x in the order in which blocks read them, and elements within a row in that of `place(vector, lane)`:
/// block after block, in a block [vectors][rows][kWidth], with zeros behind the last element. Rows of their own
/// would, at the power of two that lies between them, crowd into the same sets of the cache.
template <class Place>
MLXCEL_INLINE void arrange_blocks(const float* x, std::ptrdiff_t stride, std::size_t m, std::size_t k, float* to,
                                  const Place& place) {
  const std::size_t vectors = (k + kWidth - 1) / kWidth;
  const std::size_t height = few_height(m);
  for (std::size_t start = 0; start < m; start += height) {
    const std::size_t rows = m - start < height ? m - start : height;
    for (std::size_t v = 0; v < vectors; ++v) {
      for (std::size_t i = 0; i < rows; ++i, to += kWidth) {
        place(x + static_cast<std::ptrdiff_t>(start + i) * stride, v, to);
      }
    }
  }
}

struct AsStored {
  std::size_t k;
  MLXCEL_INLINE void operator()(const float* row, std::size_t v, float* to) const {
    const std::size_t start = v * kWidth;
    store(to, start + kWidth <= k ? load(row + start) : load(row + start, k - start));
  }
};

/// y of `Rows` rows of x from row `m` on and `Columns` weight rows from row `n` on.
template <class T, std::size_t Rows, std::size_t Columns>
MLXCEL_INLINE void few_block(const FewRows& p, std::size_t m, std::size_t n) {
  const float* x = p.x + m * ((p.k + kWidth - 1) / kWidth * kWidth);
  const T* w = static_cast<const T*>(p.w) + static_cast<std::ptrdiff_t>(n) * p.w_stride;
  Vec total[Rows][Columns];
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) {
      total[i][j] = zero();
    }
  }
  std::size_t k = 0;
  for (; k + kWidth <= p.k; k += kWidth, x += Rows * kWidth) {
    Vec weights[Columns];
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) {
      weights[j] = load(w + static_cast<std::ptrdiff_t>(j) * p.w_stride + k);
    }
MLXCEL_UNROLL
    for (std::size_t i = 0; i < Rows; ++i) {
      const Vec values = load(x + i * kWidth);
MLXCEL_UNROLL
      for (std::size_t j = 0; j < Columns; ++j) {
        total[i][j] = fma(values, weights[j], total[i][j]);
      }
    }
  }
  if (const std::size_t rest = p.k - k; rest > 0) {
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) {
      const Vec weights = load(w + static_cast<std::ptrdiff_t>(j) * p.w_stride + k, rest);
MLXCEL_UNROLL
      for (std::size_t i = 0; i < Rows; ++i) {
        total[i][j] = fma(load(x + i * kWidth, rest), weights, total[i][j]);
      }
    }
  }
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) {
      const float bias = p.bias == nullptr ? 0.0f : read(p.bias, p.bias_type, n + j);
      float* y = p.y + static_cast<std::ptrdiff_t>(m + i) * p.y_stride;
      y[n + j] = sum(total[i][j]) + bias;
    }
  }
}

template <class T, std::size_t Rows, std::size_t Columns>
void few_columns_block(const FewRows& p, std::size_t m, std::size_t n) {
  few_block<T, Rows, Columns>(p, m, n);
}

/// The same for up to `kFewBlock` rows: `rows` is found among the numbers that blocks are made for.
template <class T, bool Single, std::size_t Rows = kFewBlock>
MLXCEL_INLINE void few_rows_of(const FewRows& p, std::size_t rows, std::size_t m, std::size_t n) {
  if (rows == Rows) {
    few_columns_block<T, Rows, Single ? 1 : few_columns(Rows)>(p, m, n);
  } else if constexpr (Rows > 1) {
    few_rows_of<T, Single, Rows - 1>(p, rows, m, n);
  }
}

template <class T>
void few_rows(const FewRows& p, std::size_t first, std::size_t last) {
  const std::size_t height = few_height(p.m);
  std::size_t n = first;
  // The passes over one block of weight rows follow each other, so that all but the first find it in the cache. A
  // lower last pass takes as many weight rows as the others.
  const std::size_t columns = few_columns(height);
  while (n < last) {
    const std::size_t taken = n + columns <= last ? columns : 1;
    for (std::size_t m = 0; m < p.m; m += height) {
      const std::size_t rows = p.m - m < height ? p.m - m : height;
      const std::size_t step = taken == 1 ? 1 : few_columns(rows);
      std::size_t j = 0;
      for (; taken > 1 && j + step <= taken; j += step) {
        few_rows_of<T, false>(p, rows, m, n + j);
      }
      for (; j < taken; ++j) {
        few_rows_of<T, true>(p, rows, m, n + j);
      }
    }
    n += taken;
  }
}

}  // namespace mlxcel::kernels::MLXCEL_ISA
