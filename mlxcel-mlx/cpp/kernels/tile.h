// Many rows: panels of both sides are packed so that a tile of the product is made in registers from two streams.
// This is the scheme of Goto and van de Geijn, 2008, "Anatomy of High-Performance Matrix Multiplication".
namespace mlxcel::kernels::MLXCEL_ISA {

inline constexpr std::size_t kTileColumns = kTileVectors * kWidth;

template <std::size_t Rows>
void tile_of(const Tile& p) {
  Vec total[Rows][kTileVectors];
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
MLXCEL_UNROLL
    for (std::size_t v = 0; v < kTileVectors; ++v) {
      total[i][v] = zero();
    }
  }
  const float* a = p.a;
  const float* b = p.b;
  for (std::size_t k = 0; k < p.depth; ++k, a += Rows, b += kTileColumns) {
    Vec columns[kTileVectors];
MLXCEL_UNROLL
    for (std::size_t v = 0; v < kTileVectors; ++v) {
      columns[v] = load(b + v * kWidth);
    }
MLXCEL_UNROLL
    for (std::size_t i = 0; i < Rows; ++i) {
      const Vec value = splat(a[i]);
MLXCEL_UNROLL
      for (std::size_t v = 0; v < kTileVectors; ++v) {
        total[i][v] = fma(value, columns[v], total[i][v]);
      }
    }
  }
  const bool whole = p.columns == kTileColumns;
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
    float* c = p.c + static_cast<std::ptrdiff_t>(i) * p.c_stride;
MLXCEL_UNROLL
    for (std::size_t v = 0; v < kTileVectors; ++v, c += kWidth) {
      if (whole || (v + 1) * kWidth <= p.columns) {
        store(c, p.accumulate ? add(load(c), total[i][v]) : total[i][v]);
      } else if (v * kWidth < p.columns) {
        const std::size_t count = p.columns - v * kWidth;
        store(c, p.accumulate ? add(load(c, count), total[i][v]) : total[i][v], count);
      }
    }
  }
}

template <std::size_t Rows = kTileRows>
MLXCEL_INLINE void tile_dispatch(const Tile& p) {
  if (p.rows == Rows) {
    tile_of<Rows>(p);
  } else if constexpr (Rows > 1) {
    tile_dispatch<Rows - 1>(p);
  }
}

void tile(const Tile& p) {
  tile_dispatch(p);
}

/// Transposes a block of `rows` ≤ kWidth rows and `depth` ≤ kTransposed<T> columns, which is not whole, to
/// [kTransposed<T>][kWidth] with zeros around it.
template <class T>
void transpose_edge(const T* from, std::ptrdiff_t stride, std::size_t rows, std::size_t depth, float* to) {
  T block[kWidth][kTransposed<T>] = {};
  for (std::size_t i = 0; i < rows; ++i) {
    std::memcpy(block[i], from + static_cast<std::ptrdiff_t>(i) * stride, depth * sizeof(T));
  }
  transpose_rows(&block[0][0], kTransposed<T>, to, kWidth);
}

void pack_rows(const float* from, std::ptrdiff_t stride, std::size_t rows, std::size_t readable, std::size_t depth,
               float* to) {
  constexpr std::size_t kStep = kTransposed<float>;
  float block[kStep * kWidth];
  for (std::size_t group = 0; group < rows; group += kWidth) {
    const std::size_t height = rows - group < kWidth ? rows - group : kWidth;
    for (std::size_t k = 0; k < depth; k += kStep) {
      const std::size_t length = depth - k < kStep ? depth - k : kStep;
      const float* start = from + static_cast<std::ptrdiff_t>(group) * stride + k;
      if (length == kStep && readable - group >= kWidth) {
        transpose_rows(start, stride, block, kWidth);
      } else {
        transpose_edge(start, stride, height, length, block);
      }
      for (std::size_t j = 0; j < length; ++j) {
        float* place = to + (k + j) * rows + group;
        if (height == kWidth) {
          store(place, load(block + j * kWidth));
        } else {
          store(place, load(block + j * kWidth), height);
        }
      }
    }
  }
}

template <class T>
void pack_columns(const void* stored, std::ptrdiff_t stride, std::size_t columns, std::size_t depth, float* to) {
  constexpr std::size_t kStep = kTransposed<T>;
  const T* from = static_cast<const T*>(stored);
  for (std::size_t group = 0; group < kTileColumns; group += kWidth) {
    const std::size_t width = columns <= group ? 0 : columns - group < kWidth ? columns - group : kWidth;
    for (std::size_t k = 0; k < depth; k += kStep) {
      const std::size_t length = depth - k < kStep ? depth - k : kStep;
      const T* start = from + static_cast<std::ptrdiff_t>(group) * stride + k;
      float* place = to + k * kTileColumns + group;
      if (width == kWidth && length == kStep) {
        transpose_rows(start, stride, place, kTileColumns);
        continue;
      }
      float block[kStep * kWidth] = {};
      if (width > 0) {
        transpose_edge(start, stride, width, length, block);
      }
      for (std::size_t j = 0; j < length; ++j) {
        store(place + j * kTileColumns, load(block + j * kWidth));
      }
    }
  }
}

template <class T>
void copy_columns(const void* stored, std::ptrdiff_t stride, std::size_t columns, std::size_t depth, float* to) {
  const T* from = static_cast<const T*>(stored);
  for (std::size_t k = 0; k < depth; ++k, from += stride, to += kTileColumns) {
MLXCEL_UNROLL
    for (std::size_t v = 0; v < kTileVectors; ++v) {
      const std::size_t start = v * kWidth;
      if (start + kWidth <= columns) {
        store(to + start, load(from + start));
      } else {
        store(to + start, start < columns ? load(from + start, columns - start) : zero());
      }
    }
  }
}

}  // namespace mlxcel::kernels::MLXCEL_ISA
