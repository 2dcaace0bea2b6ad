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

template <unsigned Bits>
void unpack_bits(const Affine& w, std::size_t row, std::size_t start, std::size_t count, float* to) {
  const auto* words = static_cast<const unsigned char*>(w.words) + static_cast<std::ptrdiff_t>(row) * w.row_bytes;
  const std::ptrdiff_t groups = static_cast<std::ptrdiff_t>(row) * w.scale_stride;
  const void* scales = at(w.scales, w.scale_type, groups);
  const void* biases = at(w.biases, w.scale_type, groups);
  for (std::size_t i = start; i < start + count; i += kTaken, to += kTaken) {
    const std::size_t group = i / w.group;
    Vec numbers[kTaken / kWidth];
    take<Bits>(words + i / 8 * Bits, splat(read(scales, w.scale_type, group)), splat(read(biases, w.scale_type, group)),
               numbers);
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kTaken / kWidth; ++v) {
      store(to + v * kWidth, numbers[v]);
    }
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

/// Accumulators of a row of x: several, where rows alone would not hide the latency of an addition.
constexpr std::size_t chains(std::size_t rows) {
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

/// One vector of weights and the vectors of `Rows` rows of x that it meets.
template <std::size_t Rows, std::size_t Chain>
MLXCEL_INLINE void multiply(Vec weights, const float* x, Vec (&total)[Rows * chains(Rows)]) {
#pragma GCC unroll 8
  for (std::size_t i = 0; i < Rows; ++i) {
    Vec& sum = total[Chain % chains(Rows) * Rows + i];
    sum = fma(load(x + i * kWidth), weights, sum);
  }
}

/// Numbers of any width, in their order.
template <unsigned Bits>
struct Ordered {
  static constexpr std::size_t kNumbers = kTaken;
  static constexpr std::size_t kBytes = kTaken / 8 * Bits;

  template <std::size_t Rows>
  MLXCEL_INLINE static void run(const unsigned char* from, float scale, float bias, const float* x,
                                Vec (&total)[Rows * chains(Rows)]) {
    Vec numbers[kTaken / kWidth];
    take<Bits>(from, splat(scale), splat(bias), numbers);
    each<Rows, 0>(numbers, x, total);
  }

 private:
  template <std::size_t Rows, std::size_t V>
  MLXCEL_INLINE static void each(const Vec (&numbers)[kTaken / kWidth], const float* x,
                                 Vec (&total)[Rows * chains(Rows)]) {
    if constexpr (V < kTaken / kWidth) {
      multiply<Rows, V>(numbers[V], x + V * Rows * kWidth, total);
      each<Rows, V + 1>(numbers, x, total);
    }
  }
};

#if defined(MLXCEL_NIBBLES)

/// 4-bit numbers, `Words` words at once, in the order that takes the fewest instructions; x is arranged alike.
template <std::size_t Words>
struct Shuffled {
  static constexpr std::size_t kNumbers = 8 * Words;
  static constexpr std::size_t kBytes = 4 * Words;

  template <std::size_t Rows>
  MLXCEL_INLINE static void run(const unsigned char* from, float scale, float bias, const float* x,
                                Vec (&total)[Rows * chains(Rows)]) {
    each<Rows, 0>(Nibbles<Words>(from, scale, bias), x, total);
  }

 private:
  template <std::size_t Rows, std::size_t V>
  MLXCEL_INLINE static void each(const Nibbles<Words>& numbers, const float* x, Vec (&total)[Rows * chains(Rows)]) {
    if constexpr (V < Nibbles<Words>::kVectors) {
      multiply<Rows, V>(numbers.template vector<static_cast<int>(V)>(), x + V * Rows * kWidth, total);
      each<Rows, V + 1>(numbers, x, total);
    }
  }
};

template <std::size_t Words>
struct AsShuffled {
  MLXCEL_INLINE void operator()(const float* row, std::size_t v, float* to) const {
    constexpr std::size_t kVectors = Nibbles<Words>::kVectors, kRepeats = Nibbles<Words>::kRepeats;
    const float* block = row + v / kVectors * 8 * Words + v % kVectors * kRepeats;
    for (std::size_t lane = 0; lane < kWidth; ++lane) {
      to[lane] = block[8 * (lane % Words) + lane / Words];
    }
  }
};

#endif

void arrange(const float* x, std::ptrdiff_t stride, std::size_t m, std::size_t k, [[maybe_unused]] unsigned bits,
             [[maybe_unused]] unsigned group, float* to) {
#if defined(MLXCEL_NIBBLES)
  if (bits == 4) {
    return group == 32 ? arrange_blocks(x, stride, m, k, to, AsShuffled<4>{})
                       : arrange_blocks(x, stride, m, k, to, AsShuffled<8>{});
  }
#endif
  arrange_blocks(x, stride, m, k, to, AsStored{k});
}

/// y of `Rows` rows of x from row `m` on and weight row `n`.
template <class Format, std::size_t Rows>
void few_rows_packed(const FewRows& p, const Affine& w, std::size_t m, std::size_t n) {
  constexpr std::size_t kGroups = 128;
  alignas(64) float scales[kGroups];
  alignas(64) float biases[kGroups];
  Vec total[Rows * chains(Rows)];
#pragma GCC unroll 8
  for (Vec& one : total) {
    one = zero();
  }
  const auto* from = static_cast<const unsigned char*>(w.words) + static_cast<std::ptrdiff_t>(n) * w.row_bytes;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(n) * w.scale_stride;
  const void* row_scales = at(w.scales, w.scale_type, row);
  const void* row_biases = at(w.biases, w.scale_type, row);
  const float* x = p.x + m * p.k;
  const std::size_t groups = p.k / w.group;
  const std::size_t parts = w.group / Format::kNumbers;
  for (std::size_t start = 0; start < groups; start += kGroups) {
    const std::size_t count = groups - start < kGroups ? groups - start : kGroups;
    widen(row_scales, w.scale_type, start, count, scales);
    widen(row_biases, w.scale_type, start, count, biases);
    for (std::size_t group = 0; group < count; ++group) {
      for (std::size_t part = 0; part < parts; ++part, from += Format::kBytes, x += Rows * Format::kNumbers) {
        Format::template run<Rows>(from, scales[group], biases[group], x, total);
      }
    }
  }
  const float bias = p.bias == nullptr ? 0.0f : read(p.bias, p.bias_type, n);
  static_assert(chains(Rows) == 1 || chains(Rows) == 2 || chains(Rows) == 4);
#pragma GCC unroll 8
  for (std::size_t i = 0; i < Rows; ++i) {
    if constexpr (chains(Rows) == 4) {
      total[i] = add(total[i], total[2 * Rows + i]);
      total[Rows + i] = add(total[Rows + i], total[3 * Rows + i]);
    }
    if constexpr (chains(Rows) >= 2) {
      total[i] = add(total[i], total[Rows + i]);
    }
  }
#pragma GCC unroll 8
  for (std::size_t i = 0; i < Rows; ++i) {
    p.y[static_cast<std::ptrdiff_t>(m + i) * p.y_stride + static_cast<std::ptrdiff_t>(n)] = sum(total[i]) + bias;
  }
}

template <class Format, std::size_t Rows = kFewBlock>
MLXCEL_INLINE void few_rows_packed_of(const FewRows& p, const Affine& w, std::size_t rows, std::size_t m, std::size_t n) {
  if (rows == Rows) {
    few_rows_packed<Format, Rows>(p, w, m, n);
  } else if constexpr (Rows > 1) {
    few_rows_packed_of<Format, Rows - 1>(p, w, rows, m, n);
  }
}

template <class Format>
void few_rows_format(const FewRows& p, const Affine& w, std::size_t first, std::size_t last) {
  const std::size_t height = few_height(p.m);
  for (std::size_t n = first; n < last; ++n) {
    for (std::size_t m = 0; m < p.m; m += height) {
      few_rows_packed_of<Format>(p, w, p.m - m < height ? p.m - m : height, m, n);
    }
  }
}

void few_rows_affine(const FewRows& p, const Affine& w, std::size_t first, std::size_t last) {
  switch (w.bits) {
    case 2:
      return few_rows_format<Ordered<2>>(p, w, first, last);
    case 3:
      return few_rows_format<Ordered<3>>(p, w, first, last);
    case 4:
#if defined(MLXCEL_NIBBLES)
      return w.group == 32 ? few_rows_format<Shuffled<4>>(p, w, first, last)
                           : few_rows_format<Shuffled<8>>(p, w, first, last);
#else
      return few_rows_format<Ordered<4>>(p, w, first, last);
#endif
    case 5:
      return few_rows_format<Ordered<5>>(p, w, first, last);
    case 6:
      return few_rows_format<Ordered<6>>(p, w, first, last);
    case 8:
      return few_rows_format<Ordered<8>>(p, w, first, last);
    default:
      return;
  }
}

}  // namespace mlxcel::kernels::MLXCEL_ISA
