// Weights in affine quantization: unpacked in registers where rows are few, to float panels where they are many.
namespace mlxcel::kernels::MLXCEL_ISA {

/// Scales or biases `start` to `start + count - 1` of a row, as floats.
template <class T>
MLXCEL_INLINE void widen_as(const void* stored, std::size_t start, std::size_t count, float* to) {
  const T* from = static_cast<const T*>(stored) + start;
  std::size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    store(to + i, load(from + i));
  }
  if (i < count) {
    store(to + i, load(from + i, count - i), count - i);
  }
}

inline void widen(const void* stored, Element type, std::size_t start, std::size_t count, float* to) {
  switch (type) {
    case Element::f32:
      return widen_as<float>(stored, start, count, to);
    case Element::f16:
      return widen_as<Half>(stored, start, count, to);
    case Element::bf16:
      return widen_as<Brain>(stored, start, count, to);
  }
}

/// Stores the vectors of a run of numbers one behind the other.
template <class Format, int V = 0>
MLXCEL_INLINE void store_run(const Format& run, float* to) {
  if constexpr (V < Format::kVectors) {
    store(to + V * kWidth, run.template vector<V>());
    store_run<Format, V + 1>(run, to);
  }
}

template <unsigned Bits>
void unpack_bits(const Affine& w, std::size_t row, std::size_t start, std::size_t count, float* to) {
  const auto* words = static_cast<const unsigned char*>(w.words) + static_cast<std::ptrdiff_t>(row) * w.row_bytes;
  const std::ptrdiff_t groups = static_cast<std::ptrdiff_t>(row) * w.scale_stride;
  const void* scales = at(w.scales, w.scale_type, groups);
  const void* biases = at(w.biases, w.scale_type, groups);
  for (std::size_t i = start; i < start + count; i += Ordered<Bits>::kNumbers, to += Ordered<Bits>::kNumbers) {
    const std::size_t group = i / w.group;
    const float scale = read(scales, w.scale_type, group), bias = read(biases, w.scale_type, group);
    store_run(Ordered<Bits>(words + i / 8 * Bits, scale, bias), to);
  }
}

void unpack(const Affine& w, std::size_t row, std::size_t start, std::size_t count, float* to) {
  switch (w.bits) {
    case 2:
      return unpack_bits<2>(w, row, start, count, to);
    case 3:
      return unpack_bits<3>(w, row, start, count, to);
    case 4:
      return unpack_bits<4>(w, row, start, count, to);
    case 5:
      return unpack_bits<5>(w, row, start, count, to);
    case 6:
      return unpack_bits<6>(w, row, start, count, to);
    case 8:
      return unpack_bits<8>(w, row, start, count, to);
    default:
      return;
  }
}

#if defined(MLXCEL_SHUFFLED)

template <std::size_t Words>
struct AsShuffled {
  MLXCEL_INLINE void operator()(const float* row, std::size_t v, float* to) const {
    constexpr std::size_t kVectors = Shuffled<Words>::kVectors, kRepeats = kWidth / Words;
    const float* block = row + v / kVectors * 8 * Words + v % kVectors * kRepeats;
    for (std::size_t lane = 0; lane < kWidth; ++lane) {
      to[lane] = block[8 * (lane % Words) + lane / Words];
    }
  }
};

#endif

void arrange(const float* x, std::ptrdiff_t stride, std::size_t m, std::size_t k, [[maybe_unused]] unsigned bits,
             [[maybe_unused]] unsigned group, float* to) {
#if defined(MLXCEL_SHUFFLED)
  if (bits == 4) {
    return group == 32 ? arrange_blocks(x, stride, m, k, to, AsShuffled<4>{})
                       : arrange_blocks(x, stride, m, k, to, AsShuffled<8>{});
  }
#endif
  arrange_blocks(x, stride, m, k, to, AsStored{k});
}

/// Accumulators of one output: several, where one of each would not hide the latency of an addition.
constexpr std::size_t chains(std::size_t rows, std::size_t columns) {
  return rows * columns >= 4 ? 1 : 4 / (rows * columns);
}

/// A run of numbers of `Columns` weight rows against that of `Rows` rows of x.
template <class Format, std::size_t Rows, std::size_t Columns, std::size_t Count, int V = 0>
MLXCEL_INLINE void multiply_run(const Format (&runs)[Columns], const float* x, Vec (&total)[Count]) {
  if constexpr (V < Format::kVectors) {
    constexpr std::size_t kFirst = V * Rows * Columns % Count;
    Vec weights[Columns];
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) {
      weights[j] = runs[j].template vector<V>();
    }
MLXCEL_UNROLL
    for (std::size_t i = 0; i < Rows; ++i) {
      const Vec values = load(x + (V * Rows + i) * kWidth);
MLXCEL_UNROLL
      for (std::size_t j = 0; j < Columns; ++j) {
        Vec& sum = total[kFirst + i * Columns + j];
        sum = fma(values, weights[j], sum);
      }
    }
    multiply_run<Format, Rows, Columns, Count, V + 1>(runs, x, total);
  }
}

/// Adds up what several accumulators of each of the first `Outputs` outputs hold.
template <std::size_t Outputs, std::size_t Count>
MLXCEL_INLINE void add_chains(Vec (&total)[Count]) {
  static_assert(Count <= 4 || Count == Outputs);
  if constexpr (Outputs < Count) {
    total[0] = add(total[0], total[Outputs]);
    if constexpr (Outputs == 2) {
      total[1] = add(total[1], total[3]);
    }
    if constexpr (Outputs == 1 && Count == 4) {
      total[0] = add(total[0], add(total[2], total[3]));
    }
  }
}

/// How far ahead of their use packed numbers are asked for, in bytes: unpacking keeps a processor too busy to run
/// ahead by itself.
inline constexpr std::size_t kAhead = 1024;

/// y of `Rows` rows of x from row `m` on and `Columns` weight rows from row `n` on.
template <class Format, std::size_t Rows, std::size_t Columns>
void few_rows_packed(const FewRows& p, const Affine& w, std::size_t m, std::size_t n) {
  constexpr std::size_t kGroups = 128;
  constexpr std::size_t kOutputs = Rows * Columns;
  alignas(64) float scales[Columns][kGroups];
  alignas(64) float biases[Columns][kGroups];
  Vec total[kOutputs * chains(Rows, Columns)];
MLXCEL_UNROLL
  for (Vec& one : total) {
    one = zero();
  }
  const auto* from = static_cast<const unsigned char*>(w.words) + static_cast<std::ptrdiff_t>(n) * w.row_bytes;
  const float* x = p.x + m * p.k;
  const std::size_t groups = p.k / w.group;
  const std::size_t runs = w.group / Format::kNumbers;
  for (std::size_t start = 0; start < groups; start += kGroups) {
    const std::size_t count = groups - start < kGroups ? groups - start : kGroups;
    for (std::size_t j = 0; j < Columns; ++j) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(n + j) * w.scale_stride;
      widen(at(w.scales, w.scale_type, row), w.scale_type, start, count, scales[j]);
      widen(at(w.biases, w.scale_type, row), w.scale_type, start, count, biases[j]);
    }
    for (std::size_t group = 0; group < count; ++group) {
      for (std::size_t run = 0; run < runs; ++run, from += Format::kBytes, x += Rows * Format::kNumbers) {
        Format columns[Columns];
MLXCEL_UNROLL
        for (std::size_t j = 0; j < Columns; ++j) {
          const unsigned char* packed = from + static_cast<std::ptrdiff_t>(j) * w.row_bytes;
          __builtin_prefetch(packed + kAhead, 0, 3);
          columns[j] = Format(packed, scales[j][group], biases[j][group]);
        }
        multiply_run<Format, Rows>(columns, x, total);
      }
    }
  }
  add_chains<kOutputs>(total);
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Rows; ++i) {
    float* y = p.y + static_cast<std::ptrdiff_t>(m + i) * p.y_stride + static_cast<std::ptrdiff_t>(n);
MLXCEL_UNROLL
    for (std::size_t j = 0; j < Columns; ++j) {
      y[j] = sum(total[i * Columns + j]) + (p.bias == nullptr ? 0.0f : read(p.bias, p.bias_type, n + j));
    }
  }
}

template <class Format, bool Single, std::size_t Rows = kFewBlock>
MLXCEL_INLINE void few_rows_packed_of(const FewRows& p, const Affine& w, std::size_t rows, std::size_t m,
                                      std::size_t n) {
  if (rows == Rows) {
    few_rows_packed<Format, Rows, Single ? 1 : few_packed_columns(Rows)>(p, w, m, n);
  } else if constexpr (Rows > 1) {
    few_rows_packed_of<Format, Single, Rows - 1>(p, w, rows, m, n);
  }
}

/// `Common` formats are worth the code that takes several weight rows at once.
template <class Format, bool Common = true>
void few_rows_format(const FewRows& p, const Affine& w, std::size_t first, std::size_t last) {
  const std::size_t height = few_height(p.m);
  for (std::size_t m = 0; m < p.m; m += height) {
    const std::size_t rows = p.m - m < height ? p.m - m : height;
    std::size_t n = first;
    if constexpr (Common) {
      const std::size_t columns = few_packed_columns(rows);
      for (; n + columns <= last; n += columns) {
        few_rows_packed_of<Format, false>(p, w, rows, m, n);
      }
    }
    for (; n < last; ++n) {
      few_rows_packed_of<Format, true>(p, w, rows, m, n);
    }
  }
}

void few_rows_affine(const FewRows& p, const Affine& w, std::size_t first, std::size_t last) {
  switch (w.bits) {
    case 2:
      return few_rows_format<Ordered<2>, false>(p, w, first, last);
    case 3:
      return few_rows_format<Ordered<3>, false>(p, w, first, last);
    case 4:
#if defined(MLXCEL_SHUFFLED)
      return w.group == 32 ? few_rows_format<Shuffled<4>>(p, w, first, last)
                           : few_rows_format<Shuffled<8>>(p, w, first, last);
#else
      return few_rows_format<Ordered<4>>(p, w, first, last);
#endif
    case 5:
      return few_rows_format<Ordered<5>, false>(p, w, first, last);
    case 6:
      return few_rows_format<Ordered<6>, false>(p, w, first, last);
    case 8:
      return few_rows_format<Ordered<8>>(p, w, first, last);
    default:
      return;
  }
}

}  // namespace mlxcel::kernels::MLXCEL_ISA
