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

/// The numbers of a run within one group. Eight of them take `Bits` bytes whatever the width, so each eight are read as one
/// integer and shifted apart.
template <unsigned Bits>
MLXCEL_INLINE void unpack_run(const unsigned char* from, std::size_t count, float scale, float bias, float* to) {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << Bits) - 1;
  for (std::size_t i = 0; i < count; i += 8, from += Bits) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, from, Bits);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; ++j) {
      const auto number = static_cast<std::int32_t>((eight >> (j * Bits)) & kMask);
      to[i + j] = scale * static_cast<float>(number) + bias;
    }
  }
}

template <unsigned Bits>
void unpack_bits(const Affine& w, std::size_t row, std::size_t start, std::size_t count, float* to) {
  const auto* words = static_cast<const unsigned char*>(w.words) + static_cast<std::ptrdiff_t>(row) * w.row_bytes;
  const std::ptrdiff_t groups = static_cast<std::ptrdiff_t>(row) * w.scale_stride;
  for (std::size_t done = 0; done < count;) {
    const std::size_t position = start + done;
    const std::size_t group = position / w.group;
    const std::size_t left = (group + 1) * w.group - position;
    const std::size_t run = left < count - done ? left : count - done;
    const float scale = read(at(w.scales, w.scale_type, groups), w.scale_type, group);
    const float bias = read(at(w.biases, w.scale_type, groups), w.scale_type, group);
    unpack_run<Bits>(words + position * Bits / 8, run, scale, bias, to + done);
    done += run;
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

/// x[0..count) · w[0..count), of a multiple of 16.
MLXCEL_INLINE Vec dot(const float* x, const float* w, std::size_t count, Vec total) {
  Vec other = zero();
  for (std::size_t i = 0; i < count; i += 2 * kWidth) {
    total = fma(load(x + i), load(w + i), total);
    other = fma(load(x + i + kWidth), load(w + i + kWidth), other);
  }
  return add(total, other);
}

/// Any width: a stretch of a row is unpacked into the first-level cache and multiplied by every row of x.
void few_rows_unpacked(const FewRows& p, const Affine& w, std::size_t first, std::size_t last) {
  constexpr std::size_t kStretch = 256;
  alignas(64) float weights[kStretch];
  for (std::size_t n = first; n < last; ++n) {
    Vec total[kFewRows];
    for (std::size_t m = 0; m < p.m; ++m) {
      total[m] = zero();
    }
    for (std::size_t k = 0; k < p.k; k += kStretch) {
      const std::size_t count = p.k - k < kStretch ? p.k - k : kStretch;
      unpack(w, n, k, count, weights);
      for (std::size_t m = 0; m < p.m; ++m) {
        total[m] = dot(p.x + static_cast<std::ptrdiff_t>(m) * p.x_stride + k, weights, count, total[m]);
      }
    }
    const float bias = p.bias == nullptr ? 0.0f : read(p.bias, p.bias_type, n);
    for (std::size_t m = 0; m < p.m; ++m) {
      p.y[static_cast<std::ptrdiff_t>(m) * p.y_stride + static_cast<std::ptrdiff_t>(n)] = sum(total[m]) + bias;
    }
  }
}

#if defined(MLXCEL_FAST_AFFINE)

/// Accumulators of a row of x: several, where rows alone would not hide the latency of an addition.
constexpr std::size_t chains(std::size_t rows) {
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

/// How 4-bit numbers are taken from memory: `Words` words, all of one group, at once.
template <std::size_t Words>
struct FourBits {
  static constexpr std::size_t kNumbers = 8 * Words;
  static constexpr std::size_t kBytes = 4 * Words;

  template <std::size_t Rows>
  MLXCEL_INLINE static void multiply(const unsigned char* from, float scale, float bias, const float* x,
                                     std::ptrdiff_t x_stride, Vec (&total)[Rows * chains(Rows)]) {
    const Nibbles<Words> numbers(from, scale, bias);
    each<Rows, 0>(numbers, x, x_stride, total);
  }

 private:
  template <std::size_t Rows, std::size_t V>
  MLXCEL_INLINE static void each(const Nibbles<Words>& numbers, const float* x, std::ptrdiff_t x_stride,
                                 Vec (&total)[Rows * chains(Rows)]) {
    if constexpr (V < Nibbles<Words>::kVectors) {
      const Vec weights = numbers.template vector<static_cast<int>(V)>();
#pragma GCC unroll 8
      for (std::size_t i = 0; i < Rows; ++i) {
        Vec& sum = total[V % chains(Rows) * Rows + i];
        sum = fma(load(x + static_cast<std::ptrdiff_t>(i) * x_stride + V * kWidth), weights, sum);
      }
      each<Rows, V + 1>(numbers, x, x_stride, total);
    }
  }
};

struct EightBits {
  static constexpr std::size_t kNumbers = 32;
  static constexpr std::size_t kBytes = 32;

  template <std::size_t Rows>
  MLXCEL_INLINE static void multiply(const unsigned char* from, float scale, float bias, const float* x,
                                     std::ptrdiff_t x_stride, Vec (&total)[Rows * chains(Rows)]) {
    const Vec scales = splat(scale), biases = splat(bias);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kNumbers / kWidth; ++v) {
      const Vec weights = bytes(from + v * kWidth, scales, biases);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < Rows; ++i) {
        Vec& sum = total[v % chains(Rows) * Rows + i];
        sum = fma(load(x + static_cast<std::ptrdiff_t>(i) * x_stride + v * kWidth), weights, sum);
      }
    }
  }
};

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
  const float* x = p.x + static_cast<std::ptrdiff_t>(m) * p.x_stride;
  const std::size_t groups = p.k / w.group;
  const std::size_t parts = w.group / Format::kNumbers;
  for (std::size_t start = 0; start < groups; start += kGroups) {
    const std::size_t count = groups - start < kGroups ? groups - start : kGroups;
    widen(row_scales, w.scale_type, start, count, scales);
    widen(row_biases, w.scale_type, start, count, biases);
    for (std::size_t group = 0; group < count; ++group) {
      for (std::size_t part = 0; part < parts; ++part, from += Format::kBytes, x += Format::kNumbers) {
        Format::template multiply<Rows>(from, scales[group], biases[group], x, p.x_stride, total);
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
  const std::size_t passes = (p.m + kFewBlock - 1) / kFewBlock;
  const std::size_t height = (p.m + passes - 1) / passes;
  for (std::size_t n = first; n < last; ++n) {
    for (std::size_t m = 0; m < p.m; m += height) {
      few_rows_packed_of<Format>(p, w, p.m - m < height ? p.m - m : height, m, n);
    }
  }
}

template <std::size_t Words>
void arrange_words(const float* x, std::size_t k, float* to) {
  constexpr std::size_t kRepeats = Nibbles<Words>::kRepeats;
  for (std::size_t start = 0; start < k; start += 8 * Words) {
    for (std::size_t v = 0; v < Nibbles<Words>::kVectors; ++v) {
      for (std::size_t lane = 0; lane < kWidth; ++lane) {
        *to++ = x[start + 8 * (lane % Words) + kRepeats * v + lane / Words];
      }
    }
  }
}

void arrange(const float* x, std::size_t k, unsigned group, float* to) {
  if (group == 32) {
    arrange_words<4>(x, k, to);
  } else {
    arrange_words<8>(x, k, to);
  }
}

void few_rows_affine(const FewRows& p, const Affine& w, std::size_t first, std::size_t last) {
  if (w.bits == 8) {
    few_rows_format<EightBits>(p, w, first, last);
  } else if (w.bits == 4 && w.group == 32) {
    few_rows_format<FourBits<4>>(p, w, first, last);
  } else if (w.bits == 4) {
    few_rows_format<FourBits<8>>(p, w, first, last);
  } else {
    few_rows_unpacked(p, w, first, last);
  }
}

inline constexpr auto kArrange = arrange;

#else

inline constexpr auto few_rows_affine = few_rows_unpacked;
inline constexpr void (*kArrange)(const float*, std::size_t, unsigned, float*) = nullptr;

#endif

}  // namespace mlxcel::kernels::MLXCEL_ISA
