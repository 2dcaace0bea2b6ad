// What the Rust side calls of MLX: one plain function an operation, all of which may throw.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlx/array.h"
#include "rust/cxx.h"

// How exceptions become errors in Rust (found by cxx's generated code): a letter that names the kind, then the words.
namespace rust::behavior {

template <typename Try, typename Fail>
static void trycatch(Try&& attempt, Fail&& fail) noexcept {
  try {
    attempt();
  } catch (const std::bad_alloc& error) {
    fail(std::string("M") + error.what());
  } catch (const std::logic_error& error) {
    // MLX refuses shapes and types with std::invalid_argument and std::out_of_range.
    fail(std::string("A") + error.what());
  } catch (const std::exception& error) {
    fail(std::string("D") + error.what());
  } catch (...) {
    fail(std::string("Dan exception that is no std::exception"));
  }
}

} // namespace rust::behavior

namespace mlxcel {

using mlx::core::array;
using Handle = std::unique_ptr<array>;
using Integers = rust::Slice<const int32_t>;

// Arrays for or from one call.
struct Arrays {
  std::vector<array> items;
};

struct Region;
enum class ElementCode : uint8_t;
enum class UnaryCode : uint8_t;
enum class BinaryCode : uint8_t;
enum class ReduceCode : uint8_t;

// The library and its devices
rust::String library_version();
void initialize(size_t memory_limit);
int32_t device_count(bool gpu);
void use_device(bool gpu);

// Lists
std::unique_ptr<Arrays> arrays_new();
void arrays_push(Arrays& list, const array& item);
size_t arrays_len(const Arrays& list);
Handle arrays_get(const Arrays& list, size_t index);

// Handles
Handle duplicate(const array& a);
ElementCode element_of(const array& a);
size_t dimension_count(const array& a);
int32_t dimension(const array& a, size_t axis);
size_t byte_count(const array& a);
// Where the elements of an evaluated array lie.
size_t data_address(const array& a);

// Making and reading. Bytes that are not as many as the shape takes, or not aligned where they are used in place, throw.
Handle from_bytes(rust::Slice<const uint8_t> bytes, Integers shape, ElementCode element);
Handle from_region(rust::Box<Region> region, rust::Slice<const uint8_t> bytes, Integers shape, ElementCode element);
Handle scalar(float value, ElementCode element);
Handle full(Integers shape, float value, ElementCode element);
Handle arange(int32_t start, int32_t stop, ElementCode element);
void evaluate(const Arrays& list);
void evaluate_async(const Arrays& list);
void read(const array& a, rust::Slice<uint8_t> out);

// Shape
Handle astype(const array& a, ElementCode element);
Handle reinterpret(const array& a, ElementCode element);
Handle reshape(const array& a, Integers shape);
Handle transpose(const array& a, Integers axes);
Handle expand_dims(const array& a, Integers axes);
Handle squeeze(const array& a, Integers axes);
Handle broadcast_to(const array& a, Integers shape);
Handle concatenate(const Arrays& list, int32_t axis);
// The elements one behind the other, in memory that holds nothing else.
Handle contiguous(const array& a);

// Indexing
Handle slice(const array& a, Integers start, Integers stop, Integers strides);
Handle slice_update(const array& a, const array& update, Integers start, Integers stop, Integers strides);
Handle take(const array& a, const array& indices, int32_t axis);
Handle take_along_axis(const array& a, const array& indices, int32_t axis);
Handle put_along_axis(const array& a, const array& indices, const array& values, int32_t axis);
Handle scatter_add_axis(const array& a, const array& indices, const array& values, int32_t axis);

// Arithmetic
Handle unary(UnaryCode code, const array& a);
Handle binary(BinaryCode code, const array& a, const array& b);
Handle select(const array& condition, const array& a, const array& b);
Handle matmul(const array& a, const array& b);
// The products of a [.., rows, 1, k] with the matrices of b [experts, k, n] at `indices` [rows].
Handle gather_mm(const array& a, const array& b, const array& indices, bool sorted);

// Along axes
Handle reduce(ReduceCode code, const array& a, Integers axes, bool keep);
Handle softmax(const array& a, int32_t axis);
Handle argmax(const array& a, int32_t axis, bool keep);
Handle cumsum(const array& a, int32_t axis, bool inclusive);
Handle sort(const array& a, int32_t axis);
Handle argsort(const array& a, int32_t axis);
Handle partition(const array& a, int32_t kth, int32_t axis);

// Fused operations
Handle rms_norm(const array& x, const array* weight, float eps);
Handle layer_norm(const array& x, const array* weight, const array* bias, float eps);
Handle rope(const array& x, int32_t dims, int32_t offset, const array& freqs);
Handle rope_at(const array& x, int32_t dims, const array& offset, const array& freqs);
Handle attention(const array& queries, const array& keys, const array& values, float scale, bool causal,
                 const array* mask, const array* sinks);

// Packed weights
std::unique_ptr<Arrays> quantize(const array& w, int32_t group_size, int32_t bits, rust::Str mode);
Handle dequantize(const array& w, const array& scales, const array* biases, int32_t group_size, int32_t bits,
                  rust::Str mode, ElementCode element);
Handle quantized_matmul(const array& x, const array& w, const array& scales, const array* biases, bool transposed,
                        int32_t group_size, int32_t bits, rust::Str mode);
Handle gather_qmm(const array& x, const array& w, const array& scales, const array* biases, const array& indices,
                  bool transposed, int32_t group_size, int32_t bits, rust::Str mode, bool sorted);

} // namespace mlxcel
