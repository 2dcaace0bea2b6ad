// The bridge's operations: MLX's own, with spans and nullable pointers in place of its containers and optionals.
#include "mlxcel-mlx/cpp/bridge.h"

#include <cstring>
#include <optional>

#include "mlx/backend/cuda/cuda.h"
#include "mlx/compile.h"
#include "mlx/device.h"
#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"
#include "mlx/version.h"
#include "mlxcel-mlx/cpp/memory.h"
#include "mlxcel-mlx/cpp/streams.h"
#include "mlxcel-mlx/src/ffi/bridge.rs.h"

namespace mlxcel {

namespace mx = mlx::core;

namespace {

Handle give(array&& a) {
  return std::make_unique<array>(std::move(a));
}

mx::Shape shape_of(Integers values) {
  return mx::Shape(values.begin(), values.end());
}

std::vector<int> ints(Integers values) {
  return std::vector<int>(values.begin(), values.end());
}

std::optional<array> maybe(const array* a) {
  return a ? std::optional<array>(*a) : std::nullopt;
}

std::optional<int> positive(int32_t value) {
  return value > 0 ? std::optional<int>(value) : std::nullopt;
}

mx::Dtype dtype_of(ElementCode code) {
  switch (code) {
    case ElementCode::Bool: return mx::bool_;
    case ElementCode::U8: return mx::uint8;
    case ElementCode::U16: return mx::uint16;
    case ElementCode::U32: return mx::uint32;
    case ElementCode::U64: return mx::uint64;
    case ElementCode::I8: return mx::int8;
    case ElementCode::I16: return mx::int16;
    case ElementCode::I32: return mx::int32;
    case ElementCode::I64: return mx::int64;
    case ElementCode::F16: return mx::float16;
    case ElementCode::BF16: return mx::bfloat16;
    case ElementCode::F32: return mx::float32;
    case ElementCode::F64: return mx::float64;
  }
  throw std::invalid_argument("an element type that MLX does not have");
}

// Throws unless there are as many bytes as a tensor of this shape takes.
void expect_filled(Integers shape, mx::Dtype dtype, size_t bytes) {
  size_t expected = dtype.size();
  for (int32_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(expected, static_cast<size_t>(size), &expected)) {
      throw std::invalid_argument("a shape of negative or too many elements");
    }
  }
  if (expected != bytes) {
    throw std::invalid_argument("the bytes are not as many as the shape takes");
  }
}

// Whether kernels may rely on rows being sorted by their matrix. With CUDA they give wrong numbers then, for rows that are a view.
bool may_rely_on(bool sorted) {
  return sorted && !mx::cu::is_available();
}

mx::Device device_of(bool gpu) {
  return gpu ? mx::Device(mx::Device::gpu) : mx::Device(mx::Device::cpu);
}

} // namespace

rust::String library_version() {
  return mx::version();
}

void initialize(size_t memory_limit) {
  guard_allocator(memory_limit);
  // On a CPU, compiling starts a C++ compiler as a child process.
  mx::disable_compile();
}

int32_t device_count(bool gpu) {
  return mx::device_count(gpu ? mx::Device::gpu : mx::Device::cpu);
}

void use_device(bool gpu) {
  mx::set_default_device(device_of(gpu));
  if (!gpu) {
    borrow_cpu_stream();
  }
}

std::unique_ptr<Arrays> arrays_new() {
  return std::make_unique<Arrays>();
}

void arrays_push(Arrays& list, const array& item) {
  list.items.push_back(item);
}

size_t arrays_len(const Arrays& list) {
  return list.items.size();
}

Handle arrays_get(const Arrays& list, size_t index) {
  return std::make_unique<array>(list.items.at(index));
}

Handle duplicate(const array& a) {
  return std::make_unique<array>(a);
}

ElementCode element_of(const array& a) {
  switch (a.dtype().val()) {
    case mx::Dtype::Val::bool_: return ElementCode::Bool;
    case mx::Dtype::Val::uint8: return ElementCode::U8;
    case mx::Dtype::Val::uint16: return ElementCode::U16;
    case mx::Dtype::Val::uint32: return ElementCode::U32;
    case mx::Dtype::Val::uint64: return ElementCode::U64;
    case mx::Dtype::Val::int8: return ElementCode::I8;
    case mx::Dtype::Val::int16: return ElementCode::I16;
    case mx::Dtype::Val::int32: return ElementCode::I32;
    case mx::Dtype::Val::int64: return ElementCode::I64;
    case mx::Dtype::Val::float16: return ElementCode::F16;
    case mx::Dtype::Val::bfloat16: return ElementCode::BF16;
    case mx::Dtype::Val::float32: return ElementCode::F32;
    case mx::Dtype::Val::float64: return ElementCode::F64;
    default: throw std::invalid_argument("complex numbers are not used here");
  }
}

size_t dimension_count(const array& a) {
  return a.ndim();
}

int32_t dimension(const array& a, size_t axis) {
  return a.shape().at(axis);
}

size_t byte_count(const array& a) {
  return a.nbytes();
}

size_t data_address(const array& a) {
  if (!a.is_available()) {
    throw std::invalid_argument("the array is not evaluated");
  }
  return reinterpret_cast<size_t>(a.data<uint8_t>());
}

Handle from_bytes(rust::Slice<const uint8_t> bytes, Integers shape, ElementCode element) {
  auto dtype = dtype_of(element);
  expect_filled(shape, dtype, bytes.size());
  auto data = mx::allocator::malloc(bytes.size());
  std::memcpy(data.buffer().raw_ptr(), bytes.data(), bytes.size());
  return give(array(std::move(data), shape_of(shape), dtype));
}

Handle from_region(rust::Box<Region> region, rust::Slice<const uint8_t> bytes, Integers shape, ElementCode element) {
  auto dtype = dtype_of(element);
  expect_filled(shape, dtype, bytes.size());
  if (reinterpret_cast<uintptr_t>(bytes.data()) % dtype.size() != 0) {
    throw std::invalid_argument("the bytes are not aligned to their elements");
  }
  // A std::function must be copyable; the box is not.
  auto owner = std::make_shared<rust::Box<Region>>(std::move(region));
  if (lends_directly()) {
    return give(lend(bytes.data(), shape_of(shape), dtype, [owner]() mutable { owner.reset(); }));
  }
  auto* data = const_cast<uint8_t*>(bytes.data());
  return give(array(data, shape_of(shape), dtype, [owner](void*) mutable { owner.reset(); }));
}

Handle scalar(float value, ElementCode element) {
  return give(array(value, dtype_of(element)));
}

Handle full(Integers shape, float value, ElementCode element) {
  auto dtype = dtype_of(element);
  return give(mx::full(shape_of(shape), array(value, dtype), dtype));
}

Handle arange(int32_t start, int32_t stop, ElementCode element) {
  return give(mx::arange(start, stop, 1, dtype_of(element)));
}

void evaluate(const Arrays& list) {
  mx::eval(list.items);
}

void evaluate_async(const Arrays& list) {
  mx::async_eval(list.items);
}

void read(const array& a, rust::Slice<uint8_t> out) {
  auto dense = mx::contiguous(a);
  mx::eval(dense);
  if (dense.nbytes() != out.size()) {
    throw std::invalid_argument("the array has another size than the room for it");
  }
  std::memcpy(out.data(), dense.data<uint8_t>(), out.size());
}

Handle astype(const array& a, ElementCode element) {
  return give(mx::astype(a, dtype_of(element)));
}

Handle reinterpret(const array& a, ElementCode element) {
  return give(mx::view(a, dtype_of(element)));
}

Handle reshape(const array& a, Integers shape) {
  return give(mx::reshape(a, shape_of(shape)));
}

Handle transpose(const array& a, Integers axes) {
  return give(mx::transpose(a, ints(axes)));
}

Handle expand_dims(const array& a, Integers axes) {
  return give(mx::expand_dims(a, ints(axes)));
}

Handle squeeze(const array& a, Integers axes) {
  return give(mx::squeeze(a, ints(axes)));
}

Handle broadcast_to(const array& a, Integers shape) {
  return give(mx::broadcast_to(a, shape_of(shape)));
}

Handle concatenate(const Arrays& list, int32_t axis) {
  return give(mx::concatenate(list.items, axis));
}

Handle contiguous(const array& a) {
  return give(mx::contiguous(a));
}

Handle slice(const array& a, Integers start, Integers stop, Integers strides) {
  return give(mx::slice(a, shape_of(start), shape_of(stop), shape_of(strides)));
}

Handle slice_update(const array& a, const array& update, Integers start, Integers stop, Integers strides) {
  return give(mx::slice_update(a, update, shape_of(start), shape_of(stop), shape_of(strides)));
}

Handle take(const array& a, const array& indices, int32_t axis) {
  return give(mx::take(a, indices, axis));
}

Handle take_along_axis(const array& a, const array& indices, int32_t axis) {
  return give(mx::take_along_axis(a, indices, axis));
}

Handle put_along_axis(const array& a, const array& indices, const array& values, int32_t axis) {
  return give(mx::put_along_axis(a, indices, values, axis));
}

Handle scatter_add_axis(const array& a, const array& indices, const array& values, int32_t axis) {
  return give(mx::scatter_add_axis(a, indices, values, axis));
}

Handle unary(UnaryCode code, const array& a) {
  switch (code) {
    case UnaryCode::Erf: return give(mx::erf(a));
    case UnaryCode::Exp: return give(mx::exp(a));
    case UnaryCode::Negative: return give(mx::negative(a));
    case UnaryCode::Sigmoid: return give(mx::sigmoid(a));
    case UnaryCode::Sqrt: return give(mx::sqrt(a));
    case UnaryCode::Square: return give(mx::square(a));
    case UnaryCode::Tanh: return give(mx::tanh(a));
  }
  throw std::invalid_argument("an operation that the bridge does not have");
}

Handle binary(BinaryCode code, const array& a, const array& b) {
  switch (code) {
    case BinaryCode::Add: return give(mx::add(a, b));
    case BinaryCode::Subtract: return give(mx::subtract(a, b));
    case BinaryCode::Multiply: return give(mx::multiply(a, b));
    case BinaryCode::Divide: return give(mx::divide(a, b));
    case BinaryCode::Maximum: return give(mx::maximum(a, b));
    case BinaryCode::Minimum: return give(mx::minimum(a, b));
    case BinaryCode::LogAddExp: return give(mx::logaddexp(a, b));
    case BinaryCode::Equal: return give(mx::equal(a, b));
    case BinaryCode::Less: return give(mx::less(a, b));
    case BinaryCode::LessEqual: return give(mx::less_equal(a, b));
    case BinaryCode::Greater: return give(mx::greater(a, b));
    case BinaryCode::GreaterEqual: return give(mx::greater_equal(a, b));
    case BinaryCode::LogicalAnd: return give(mx::logical_and(a, b));
    case BinaryCode::LogicalOr: return give(mx::logical_or(a, b));
  }
  throw std::invalid_argument("an operation that the bridge does not have");
}

Handle select(const array& condition, const array& a, const array& b) {
  return give(mx::where(condition, a, b));
}

Handle matmul(const array& a, const array& b) {
  return give(mx::matmul(a, b));
}

Handle gather_mm(const array& a, const array& b, const array& indices, bool sorted) {
  return give(mx::gather_mm(a, b, std::nullopt, indices, may_rely_on(sorted)));
}

Handle reduce(ReduceCode code, const array& a, Integers axes, bool keep) {
  switch (code) {
    case ReduceCode::LogSumExp: return give(mx::logsumexp(a, ints(axes), keep));
    case ReduceCode::Max: return give(mx::max(a, ints(axes), keep));
    case ReduceCode::Sum: return give(mx::sum(a, ints(axes), keep));
  }
  throw std::invalid_argument("a reduction that the bridge does not have");
}

Handle softmax(const array& a, int32_t axis) {
  return give(mx::softmax(a, axis, true));
}

Handle argmax(const array& a, int32_t axis, bool keep) {
  return give(mx::argmax(a, axis, keep));
}

Handle cumsum(const array& a, int32_t axis, bool inclusive) {
  return give(mx::cumsum(a, axis, /* reverse */ false, inclusive));
}

Handle sort(const array& a, int32_t axis) {
  return give(mx::sort(a, axis));
}

Handle argsort(const array& a, int32_t axis) {
  return give(mx::argsort(a, axis));
}

Handle partition(const array& a, int32_t kth, int32_t axis) {
  return give(mx::partition(a, kth, axis));
}

Handle rms_norm(const array& x, const array* weight, float eps) {
  return give(mx::fast::rms_norm(x, maybe(weight), eps));
}

Handle layer_norm(const array& x, const array* weight, const array* bias, float eps) {
  return give(mx::fast::layer_norm(x, maybe(weight), maybe(bias), eps));
}

// Halves of the rotated dimensions are pairs, and the divisors of positions take the place of a base.
Handle rope(const array& x, int32_t dims, int32_t offset, const array& freqs) {
  return give(mx::fast::rope(x, dims, false, std::nullopt, 1.0f, offset, freqs));
}

Handle rope_at(const array& x, int32_t dims, const array& offset, const array& freqs) {
  return give(mx::fast::rope(x, dims, false, std::nullopt, 1.0f, offset, freqs));
}

Handle attention(const array& queries, const array& keys, const array& values, float scale, bool causal,
                 const array* mask, const array* sinks) {
  // The mode names an array mask by the presence of the array.
  return give(mx::fast::scaled_dot_product_attention(
      queries, keys, values, scale, causal ? "causal" : "", maybe(mask), maybe(sinks)));
}

std::unique_ptr<Arrays> quantize(const array& w, int32_t group_size, int32_t bits, rust::Str mode) {
  return std::make_unique<Arrays>(
      Arrays{mx::quantize(w, positive(group_size), positive(bits), std::string(mode))});
}

Handle dequantize(const array& w, const array& scales, const array* biases, int32_t group_size, int32_t bits,
                  rust::Str mode, ElementCode element) {
  return give(mx::dequantize(
      w, scales, maybe(biases), positive(group_size), positive(bits), std::string(mode), std::nullopt,
      dtype_of(element)));
}

Handle quantized_matmul(const array& x, const array& w, const array& scales, const array* biases, bool transposed,
                        int32_t group_size, int32_t bits, rust::Str mode) {
  return give(mx::quantized_matmul(
      x, w, scales, maybe(biases), transposed, positive(group_size), positive(bits), std::string(mode)));
}

Handle gather_qmm(const array& x, const array& w, const array& scales, const array* biases, const array& indices,
                  bool transposed, int32_t group_size, int32_t bits, rust::Str mode, bool sorted) {
  return give(mx::gather_qmm(
      x, w, scales, maybe(biases), std::nullopt, indices, transposed, positive(group_size), positive(bits),
      std::string(mode), std::nullopt, may_rely_on(sorted)));
}

} // namespace mlxcel
