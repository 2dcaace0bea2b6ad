// Vectors of 16 floats in AVX-512. Included by avx512.cc within the reach of its target attribute.
namespace mlxcel::kernels::avx512 {

inline constexpr std::size_t kWidth = 16;
using Vec = __m512;

MLXCEL_INLINE Vec zero() { return _mm512_setzero_ps(); }
MLXCEL_INLINE Vec splat(float value) { return _mm512_set1_ps(value); }
MLXCEL_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
MLXCEL_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
MLXCEL_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
MLXCEL_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
/// a · b + c
MLXCEL_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
/// The larger; `b` where either is not a number.
MLXCEL_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
/// The smaller; `b` where either is not a number.
MLXCEL_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
MLXCEL_INLINE Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/// 2 to the power of a whole number from -126 to 127.
MLXCEL_INLINE Vec power_of_two(Vec a) { return _mm512_scalef_ps(_mm512_set1_ps(1.0f), a); }

MLXCEL_INLINE Vec load(const float* from) { return _mm512_loadu_ps(from); }
MLXCEL_INLINE Vec load(const Brain* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
MLXCEL_INLINE Vec load(const Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

MLXCEL_INLINE __mmask16 first(std::size_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

/// The first `count` < 16 elements; zero in the other places, whose memory is not touched.
MLXCEL_INLINE Vec load(const float* from, std::size_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
MLXCEL_INLINE Vec load(const Brain* from, std::size_t count) {
  const __m256i bits = _mm256_maskz_loadu_epi16(first(count), from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
MLXCEL_INLINE Vec load(const Half* from, std::size_t count) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), from));
}

MLXCEL_INLINE void store(float* to, Vec a) { _mm512_storeu_ps(to, a); }
MLXCEL_INLINE void store(float* to, Vec a, std::size_t count) { _mm512_mask_storeu_ps(to, first(count), a); }

MLXCEL_INLINE float sum(Vec a) { return _mm512_reduce_add_ps(a); }

/// The sums of several vectors.
template <std::size_t Count>
MLXCEL_INLINE void sums(const Vec (&a)[Count], float (&to)[Count]) {
  if constexpr (Count == 16) {
    // Each step adds the halves of two vectors into one, which then holds twice as many sums of half as many terms.
    Vec eight[8], four[4], two[2];
MLXCEL_UNROLL
    for (int i = 0; i < 8; ++i) {
      eight[i] = add(_mm512_shuffle_f32x4(a[i], a[8 + i], 0x44), _mm512_shuffle_f32x4(a[i], a[8 + i], 0xee));
    }
MLXCEL_UNROLL
    for (int i = 0; i < 4; ++i) {
      four[i] = add(_mm512_shuffle_f32x4(eight[i], eight[4 + i], 0x88),
                    _mm512_shuffle_f32x4(eight[i], eight[4 + i], 0xdd));
    }
MLXCEL_UNROLL
    for (int i = 0; i < 2; ++i) {
      two[i] = add(_mm512_unpacklo_ps(four[i], four[2 + i]), _mm512_unpackhi_ps(four[i], four[2 + i]));
    }
    const Vec one = add(_mm512_unpacklo_ps(two[0], two[1]), _mm512_unpackhi_ps(two[0], two[1]));
    // Quarter by quarter it holds the sums of a[i], i = 0, 8, 4, 12 and, within a quarter, with 0, 1, 2, 3 added.
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    _mm512_storeu_ps(to, _mm512_permutexvar_ps(order, one));
  } else {
MLXCEL_UNROLL
    for (std::size_t i = 0; i < Count; ++i) {
      to[i] = sum(a[i]);
    }
  }
}

/// Transposes 16 vectors as a matrix.
MLXCEL_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
MLXCEL_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512i ab_low = _mm512_unpacklo_epi32(r[4 * i], r[4 * i + 1]);
    const __m512i ab_high = _mm512_unpackhi_epi32(r[4 * i], r[4 * i + 1]);
    const __m512i cd_low = _mm512_unpacklo_epi32(r[4 * i + 2], r[4 * i + 3]);
    const __m512i cd_high = _mm512_unpackhi_epi32(r[4 * i + 2], r[4 * i + 3]);
    // In quarter q of t[4i + c]: column 4q + c of rows 4i to 4i + 3.
    t[4 * i] = _mm512_unpacklo_epi64(ab_low, cd_low);
    t[4 * i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    t[4 * i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    t[4 * i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  }
MLXCEL_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
    r[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    r[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    r[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

/// How many elements of a row `transpose_rows` takes at once.
template <class T>
inline constexpr std::size_t kTransposed = sizeof(T) == 2 ? 32 : 16;

/// Writes `kTransposed<T>` elements of 16 rows so that column k of them becomes 16 floats at `to + k * step`.
MLXCEL_INLINE void transpose_rows(const float* from, std::ptrdiff_t stride, float* to, std::size_t step) {
  __m512i r[16];
MLXCEL_UNROLL
  for (int i = 0; i < 16; ++i) {
    r[i] = _mm512_loadu_si512(from + i * stride);
  }
  transpose(r);
MLXCEL_UNROLL
  for (int k = 0; k < 16; ++k) {
    _mm512_storeu_si512(to + k * step, r[k]);
  }
}

/// Pairs of 16-bit numbers are transposed as one, which halves the shuffles, and taken apart afterwards.
MLXCEL_INLINE void transpose_rows(const Brain* from, std::ptrdiff_t stride, float* to, std::size_t step) {
  __m512i r[16];
MLXCEL_UNROLL
  for (int i = 0; i < 16; ++i) {
    r[i] = _mm512_loadu_si512(from + i * stride);
  }
  transpose(r);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
MLXCEL_UNROLL
  for (int k = 0; k < 16; ++k) {
    _mm512_storeu_si512(to + 2 * k * step, _mm512_slli_epi32(r[k], 16));
    _mm512_storeu_si512(to + (2 * k + 1) * step, _mm512_and_si512(r[k], upper));
  }
}

MLXCEL_INLINE void transpose_rows(const Half* from, std::ptrdiff_t stride, float* to, std::size_t step) {
  __m512i r[16];
MLXCEL_UNROLL
  for (int i = 0; i < 16; ++i) {
    r[i] = _mm512_loadu_si512(from + i * stride);
  }
  transpose(r);
MLXCEL_UNROLL
  for (int k = 0; k < 16; ++k) {
    const __m256i even = _mm512_cvtepi32_epi16(r[k]);
    const __m256i odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[k], 16));
    _mm512_storeu_ps(to + 2 * k * step, _mm512_cvtph_ps(even));
    _mm512_storeu_ps(to + (2 * k + 1) * step, _mm512_cvtph_ps(odd));
  }
}

#define MLXCEL_SHUFFLED 1

/// `Words` packed words of 4-bit numbers and what they stand for. Vector v holds in lane l the number at
/// 8·(l mod Words) + v·(16/Words) + l/Words: word by word the lanes' numbers lie one shift apart. The lookup ignores
/// the bits above the lowest four, so a shift is all that a number needs.
template <std::size_t Words>
struct Shuffled {
  static constexpr int kVectors = Words / 2;
  static constexpr std::size_t kNumbers = 8 * Words, kBytes = 4 * Words;
  static_assert(Words == 4 || Words == 8);

  MLXCEL_INLINE Shuffled() {}
  MLXCEL_INLINE Shuffled(const unsigned char* from, float scale, float bias) {
    const Vec numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    table = fma(numbers, splat(scale), splat(bias));
    if constexpr (Words == 8) {
      const __m512i twice = _mm512_broadcast_i32x8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      bits = _mm512_srlv_epi32(twice, _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
    } else {
      const __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      bits = _mm512_srlv_epi32(four, _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    }
  }
  template <int V>
  MLXCEL_INLINE Vec vector() const {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(bits, 64 / static_cast<int>(Words) * V), table);
  }

  __m512i bits;
  Vec table;
};

/// Where 16 packed numbers of `Bits` bits lie: the byte that each begins in, with the one behind it, and the bit.
/// Numbers 4i to 4i + 3 are looked up in quarter i of a vector, which holds all bytes.
template <unsigned Bits>
struct Layout {
  alignas(64) unsigned char bytes[64] = {};
  alignas(64) std::int32_t shifts[16] = {};

  constexpr Layout() {
    for (unsigned i = 0; i < 16; ++i) {
      const unsigned byte = i * Bits / 8;
      bytes[4 * i] = static_cast<unsigned char>(byte);
      bytes[4 * i + 1] = static_cast<unsigned char>(byte + 1 < 2 * Bits ? byte + 1 : 0x80);
      bytes[4 * i + 2] = bytes[4 * i + 3] = 0x80;
      shifts[i] = static_cast<std::int32_t>(i * Bits % 8);
    }
  }
};
template <unsigned Bits>
inline constexpr Layout<Bits> kLayout{};

/// 16 packed numbers, from 2 · `Bits` bytes, as what they stand for.
template <unsigned Bits>
MLXCEL_INLINE Vec sixteen(const unsigned char* from, Vec scale, Vec bias) {
  __m512i numbers;
  if constexpr (Bits == 8) {
    numbers = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else {
    constexpr auto kBytes = static_cast<__mmask16>((1u << (2 * Bits)) - 1u);
    const __m512i all = _mm512_broadcast_i32x4(_mm_maskz_loadu_epi8(kBytes, from));
    const __m512i pairs = _mm512_shuffle_epi8(all, _mm512_load_si512(kLayout<Bits>.bytes));
    const __m512i shifted = _mm512_srlv_epi32(pairs, _mm512_load_si512(kLayout<Bits>.shifts));
    numbers = _mm512_and_si512(shifted, _mm512_set1_epi32((1 << Bits) - 1));
  }
  return fma(_mm512_cvtepi32_ps(numbers), scale, bias);
}

/// 32 packed numbers, in their order.
template <unsigned Bits>
struct Ordered {
  static constexpr int kVectors = 2;
  static constexpr std::size_t kNumbers = 32, kBytes = 4 * Bits;

  MLXCEL_INLINE Ordered() {}
  MLXCEL_INLINE Ordered(const unsigned char* from, float scale, float bias)
      : from(from), scale(splat(scale)), bias(splat(bias)) {}
  template <int V>
  MLXCEL_INLINE Vec vector() const {
    return sixteen<Bits>(from + 2 * Bits * V, scale, bias);
  }

  const unsigned char* from;
  Vec scale, bias;
};

// The shapes of register blocks: accumulators, one row of weights and one broadcast fit into 32 registers.

/// Rows of x in a block of few rows, at most.
inline constexpr std::size_t kFewBlock = 8;
/// Weight rows that a block of `rows` rows of x takes at once.
constexpr std::size_t few_columns(std::size_t rows) {
  return rows == 1 ? 8 : rows <= 4 ? 4 : 3;
}
/// The same for packed weights, of which more than a vector is held.
constexpr std::size_t few_packed_columns(std::size_t rows) {
  return rows <= 4 ? 4 : 2;
}
/// Keys that four rows are scored with at once, and vectors of values that they weigh at once.
inline constexpr std::size_t kScoredKeys = 4, kWeighedVectors = 4;
/// Rows of a tile of many rows, at most.
inline constexpr std::size_t kTileRows = 14;
/// Vectors side by side in a tile.
inline constexpr std::size_t kTileVectors = 2;

}  // namespace mlxcel::kernels::avx512
