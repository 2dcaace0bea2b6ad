// Vectors of 8 floats in AVX2 with FMA and F16C. Included by avx2.cc within the reach of its target attribute.
namespace mlxcel::kernels::avx2 {

inline constexpr std::size_t kWidth = 8;
using Vec = __m256;

MLXCEL_INLINE Vec zero() { return _mm256_setzero_ps(); }
MLXCEL_INLINE Vec splat(float value) { return _mm256_set1_ps(value); }
MLXCEL_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
MLXCEL_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
MLXCEL_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
MLXCEL_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
/// a · b + c
MLXCEL_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
/// The larger; `b` where either is not a number.
MLXCEL_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
/// The smaller; `b` where either is not a number.
MLXCEL_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
MLXCEL_INLINE Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/// 2 to the power of a whole number from -126 to 127.
MLXCEL_INLINE Vec power_of_two(Vec a) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

MLXCEL_INLINE Vec load(const float* from) { return _mm256_loadu_ps(from); }
MLXCEL_INLINE Vec load(const Brain* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
MLXCEL_INLINE Vec load(const Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

/// The first `count` < 8 elements; zero in the other places, whose memory is not touched.
template <class T>
MLXCEL_INLINE Vec load(const T* from, std::size_t count) {
  T whole[kWidth] = {};
  std::memcpy(whole, from, count * sizeof(T));
  return load(whole);
}

MLXCEL_INLINE void store(float* to, Vec a) { _mm256_storeu_ps(to, a); }
MLXCEL_INLINE void store(float* to, Vec a, std::size_t count) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), places), a);
}

MLXCEL_INLINE float sum(Vec a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// The sums of several vectors.
template <std::size_t Count>
MLXCEL_INLINE void sums(const Vec (&a)[Count], float (&to)[Count]) {
MLXCEL_UNROLL
  for (std::size_t i = 0; i < Count; ++i) {
    to[i] = sum(a[i]);
  }
}

/// How many elements of a row `transpose_rows` takes at once.
template <class T>
inline constexpr std::size_t kTransposed = 8;

/// Writes 8 elements of 8 rows so that column k of them becomes 8 floats at `to + k * step`.
template <class T>
MLXCEL_INLINE void transpose_rows(const T* from, std::ptrdiff_t stride, float* to, std::size_t step) {
  Vec t[8];
MLXCEL_UNROLL
  for (int half = 0; half < 2; ++half) {
    const T* rows = from + 4 * half * stride;
    const Vec a = load(rows), b = load(rows + stride), c = load(rows + 2 * stride), d = load(rows + 3 * stride);
    const Vec ab_low = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
    const Vec cd_low = _mm256_unpacklo_ps(c, d), cd_high = _mm256_unpackhi_ps(c, d);
    // In half h of t[c]: column 4h + c of the four rows.
    t[4 * half] = _mm256_shuffle_ps(ab_low, cd_low, 0x44);
    t[4 * half + 1] = _mm256_shuffle_ps(ab_low, cd_low, 0xee);
    t[4 * half + 2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
    t[4 * half + 3] = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
  }
MLXCEL_UNROLL
  for (int c = 0; c < 4; ++c) {
    store(to + c * step, _mm256_permute2f128_ps(t[c], t[4 + c], 0x20));
    store(to + (4 + c) * step, _mm256_permute2f128_ps(t[c], t[4 + c], 0x31));
  }
}

#define MLXCEL_SHUFFLED 1

/// `Words` packed words of 4-bit numbers and what they stand for. Vector v holds in lane l the number at
/// 8·(l mod Words) + v·(8/Words) + l/Words: word by word the lanes' numbers lie one shift apart.
template <std::size_t Words>
struct Shuffled {
  static constexpr int kVectors = Words;
  static constexpr std::size_t kNumbers = 8 * Words, kBytes = 4 * Words;
  static_assert(Words == 4 || Words == 8);

  MLXCEL_INLINE Shuffled() {}
  MLXCEL_INLINE Shuffled(const unsigned char* from, float scale, float bias)
      : scale(splat(scale)), bias(splat(bias)) {
    if constexpr (Words == 8) {
      bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    } else {
      const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      bits = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    }
  }
  template <int V>
  MLXCEL_INLINE Vec vector() const {
    const __m256i shifted = _mm256_srli_epi32(bits, 32 / static_cast<int>(Words) * V);
    return fma(_mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15))), scale, bias);
  }

  __m256i bits;
  Vec scale, bias;
};

/// Where 8 packed numbers of `Bits` bits lie: the byte that each begins in, with the one behind it, and the bit. Each
/// half of a vector holds all bytes.
template <unsigned Bits>
struct Layout {
  alignas(32) unsigned char bytes[32] = {};
  alignas(32) std::int32_t shifts[8] = {};

  constexpr Layout() {
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned byte = i * Bits / 8;
      bytes[4 * i] = static_cast<unsigned char>(byte);
      bytes[4 * i + 1] = static_cast<unsigned char>(byte + 1 < Bits ? byte + 1 : 0x80);
      bytes[4 * i + 2] = bytes[4 * i + 3] = 0x80;
      shifts[i] = static_cast<std::int32_t>(i * Bits % 8);
    }
  }
};
template <unsigned Bits>
inline constexpr Layout<Bits> kLayout{};

/// 8 packed numbers, from `Bits` bytes, as what they stand for.
template <unsigned Bits>
MLXCEL_INLINE Vec eight(const unsigned char* from, Vec scale, Vec bias) {
  std::int64_t packed = 0;
  std::memcpy(&packed, from, Bits);
  __m256i numbers;
  if constexpr (Bits == 8) {
    numbers = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(packed));
  } else {
    const auto* bytes = reinterpret_cast<const __m256i*>(kLayout<Bits>.bytes);
    const auto* shifts = reinterpret_cast<const __m256i*>(kLayout<Bits>.shifts);
    const __m256i pairs = _mm256_shuffle_epi8(_mm256_set1_epi64x(packed), _mm256_load_si256(bytes));
    const __m256i shifted = _mm256_srlv_epi32(pairs, _mm256_load_si256(shifts));
    numbers = _mm256_and_si256(shifted, _mm256_set1_epi32((1 << Bits) - 1));
  }
  return fma(_mm256_cvtepi32_ps(numbers), scale, bias);
}

/// 32 packed numbers, in their order.
template <unsigned Bits>
struct Ordered {
  static constexpr int kVectors = 4;
  static constexpr std::size_t kNumbers = 32, kBytes = 4 * Bits;

  MLXCEL_INLINE Ordered() {}
  MLXCEL_INLINE Ordered(const unsigned char* from, float scale, float bias)
      : from(from), scale(splat(scale)), bias(splat(bias)) {}
  template <int V>
  MLXCEL_INLINE Vec vector() const {
    return eight<Bits>(from + Bits * V, scale, bias);
  }

  const unsigned char* from;
  Vec scale, bias;
};

// The shapes of register blocks: accumulators, one row of weights and one broadcast fit into 16 registers.

/// Rows of x in a block of few rows, at most.
inline constexpr std::size_t kFewBlock = 4;
/// Weight rows that a block of `rows` rows of x takes at once.
constexpr std::size_t few_columns(std::size_t rows) {
  return rows <= 2 ? 4 : rows == 3 ? 3 : 2;
}
/// The same for packed weights, of which more than a vector is held.
constexpr std::size_t few_packed_columns(std::size_t) {
  return 2;
}
/// Keys that four rows are scored with at once, and vectors of values that they weigh at once.
inline constexpr std::size_t kScoredKeys = 2, kWeighedVectors = 2;
/// Rows of a tile of many rows, at most.
inline constexpr std::size_t kTileRows = 6;
/// Vectors side by side in a tile.
inline constexpr std::size_t kTileVectors = 2;

}  // namespace mlxcel::kernels::avx2
