// The element types in which checkpoints store weights and caches keep keys and values.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace mlxcel::kernels {

enum class Element : std::uint8_t { f32, f16, bf16 };

/// IEEE 754 binary16, as bits.
struct Half {
  std::uint16_t bits;
};

/// bfloat16, the upper half of a binary32, as bits.
struct Brain {
  std::uint16_t bits;
};

constexpr std::size_t size_of(Element type) {
  return type == Element::f32 ? 4 : 2;
}

inline float to_float(float value) {
  return value;
}

inline float to_float(Brain value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Exact, subnormal numbers included: shifted into a binary32's place, a half is too small by 2^112.
inline float to_float(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = 0x7f800000u | (magnitude << 13);
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : std::bit_cast<std::uint32_t>(finite)));
}

/// Reads element `index` of an array that need not be aligned.
template <class T>
float read(const void* array, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + index * sizeof(T), sizeof(T));
  return to_float(value);
}

inline float read(const void* array, Element type, std::size_t index) {
  switch (type) {
    case Element::f32:
      return read<float>(array, index);
    case Element::f16:
      return read<Half>(array, index);
    case Element::bf16:
      return read<Brain>(array, index);
  }
  return 0.0f;
}

/// Where element `index` of an array lies.
inline const void* at(const void* array, Element type, std::ptrdiff_t index) {
  return static_cast<const char*>(array) + index * static_cast<std::ptrdiff_t>(size_of(type));
}

}  // namespace mlxcel::kernels
