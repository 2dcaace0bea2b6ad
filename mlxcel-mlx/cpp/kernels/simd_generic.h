// Vectors of 4 floats that any compiler maps to what every machine of its target has: SSE2 on x86-64, NEON on
// aarch64.
namespace mlxcel::kernels::generic {

inline constexpr std::size_t kWidth = 4;
typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t Bits __attribute__((vector_size(16)));

MLXCEL_INLINE Vec zero() { return Vec{}; }
MLXCEL_INLINE Vec splat(float value) { return Vec{value, value, value, value}; }
MLXCEL_INLINE Vec add(Vec a, Vec b) { return a + b; }
MLXCEL_INLINE Vec sub(Vec a, Vec b) { return a - b; }
MLXCEL_INLINE Vec mul(Vec a, Vec b) { return a * b; }
MLXCEL_INLINE Vec div(Vec a, Vec b) { return a / b; }
/// a · b + c, by one instruction where the machine has it (compilers contract the expression).
MLXCEL_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return a * b + c;
}

MLXCEL_INLINE Vec choose(Bits take_a, Vec a, Vec b) {
  return std::bit_cast<Vec>((take_a & std::bit_cast<Bits>(a)) | (~take_a & std::bit_cast<Bits>(b)));
}
/// The larger; `b` where either is not a number.
MLXCEL_INLINE Vec max(Vec a, Vec b) { return choose(std::bit_cast<Bits>(a > b), a, b); }
/// The smaller; `b` where either is not a number.
MLXCEL_INLINE Vec min(Vec a, Vec b) { return choose(std::bit_cast<Bits>(a < b), a, b); }
/// To the nearest whole number, of numbers below 2^22: their fractions are lost beside 1.5 · 2^23.
MLXCEL_INLINE Vec round(Vec a) {
  const Vec magic = splat(0x1.8p23f);
  return (a + magic) - magic;
}
/// 2 to the power of a whole number from -126 to 127.
MLXCEL_INLINE Vec power_of_two(Vec a) {
  Bits exponent;
  for (std::size_t i = 0; i < kWidth; ++i) {
    exponent[i] = static_cast<std::int32_t>(a[i]) + 127;
  }
  return std::bit_cast<Vec>(exponent << 23);
}

template <class T>
MLXCEL_INLINE Vec load(const T* from) {
  T part[kWidth];
  std::memcpy(part, from, sizeof(part));
  return Vec{to_float(part[0]), to_float(part[1]), to_float(part[2]), to_float(part[3])};
}

/// The first `count` < 4 elements; zero in the other places, whose memory is not touched.
template <class T>
MLXCEL_INLINE Vec load(const T* from, std::size_t count) {
  T whole[kWidth] = {};
  std::memcpy(whole, from, count * sizeof(T));
  return load(whole);
}

MLXCEL_INLINE void store(float* to, Vec a) { std::memcpy(to, &a, sizeof(a)); }
MLXCEL_INLINE void store(float* to, Vec a, std::size_t count) { std::memcpy(to, &a, count * sizeof(float)); }

MLXCEL_INLINE float sum(Vec a) { return (a[0] + a[2]) + (a[1] + a[3]); }

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
inline constexpr std::size_t kTransposed = 4;

/// Writes 4 elements of 4 rows so that column k of them becomes 4 floats at `to + k * step`.
template <class T>
MLXCEL_INLINE void transpose_rows(const T* from, std::ptrdiff_t stride, float* to, std::size_t step) {
  const Vec a = load(from), b = load(from + stride), c = load(from + 2 * stride), d = load(from + 3 * stride);
  for (std::size_t k = 0; k < kWidth; ++k) {
    store(to + k * step, Vec{a[k], b[k], c[k], d[k]});
  }
}

/// 32 packed numbers, in their order. Eight of them take `Bits` bytes whatever the width, so each eight are read as
/// one integer and shifted apart.
template <unsigned Bits>
struct Ordered {
  static constexpr int kVectors = 8;
  static constexpr std::size_t kNumbers = 32, kBytes = 4 * Bits;

  MLXCEL_INLINE Ordered() {}
  MLXCEL_INLINE Ordered(const unsigned char* from, float scale, float bias) {
    constexpr std::uint64_t kMask = (std::uint64_t{1} << Bits) - 1;
MLXCEL_UNROLL
    for (std::size_t v = 0; v < 4; ++v) {
      std::uint64_t packed = 0;
      std::memcpy(&packed, from + v * Bits, Bits);
      float eight[8];
MLXCEL_UNROLL
      for (unsigned i = 0; i < 8; ++i) {
        eight[i] = static_cast<float>(static_cast<std::int32_t>((packed >> (i * Bits)) & kMask));
      }
      vectors[2 * v] = fma(load(eight), splat(scale), splat(bias));
      vectors[2 * v + 1] = fma(load(eight + 4), splat(scale), splat(bias));
    }
  }
  template <int V>
  MLXCEL_INLINE Vec vector() const {
    return vectors[V];
  }

  Vec vectors[8];
};

// The shapes of register blocks: SSE2 has 16 registers, NEON 32.

/// Rows of x in a block of few rows, at most.
inline constexpr std::size_t kFewBlock = 4;
/// Weight rows that a block of `rows` rows of x takes at once.
constexpr std::size_t few_columns(std::size_t rows) {
  return rows <= 2 ? 4 : rows == 3 ? 3 : 2;
}
/// The same for packed weights, of which more than a vector is held.
constexpr std::size_t few_packed_columns(std::size_t) {
  return 1;
}
/// Keys that four rows are scored with at once, and vectors of values that they weigh at once.
inline constexpr std::size_t kScoredKeys = 2, kWeighedVectors = 2;
/// Rows of a tile of many rows, at most.
#if defined(__aarch64__)
inline constexpr std::size_t kTileRows = 8;
#else
inline constexpr std::size_t kTileRows = 4;
#endif
/// Vectors side by side in a tile.
inline constexpr std::size_t kTileVectors = 2;

}  // namespace mlxcel::kernels::generic
