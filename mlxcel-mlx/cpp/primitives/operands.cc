#include "mlxcel-mlx/cpp/primitives/operands.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "mlx/allocator.h"
#include "mlxcel-mlx/cpp/kernels/threads.h"

namespace mlxcel {

namespace {

// Copies elements of `size` bytes in the order of their indices.
void gather(const char* from, size_t size, const mx::Shape& shape, const mx::Strides& strides, char* to) {
  size_t count = 1;
  for (auto dim : shape) {
    count *= static_cast<size_t>(dim);
  }
  mx::Shape index(shape.size(), 0);
  int64_t place = 0;
  for (size_t done = 0; done < count; ++done, to += size) {
    std::memcpy(to, from + place * static_cast<int64_t>(size), size);
    // The next index, as an odometer counts.
    for (size_t axis = shape.size(); axis-- > 0;) {
      place += strides[axis];
      if (++index[axis] < shape[axis]) {
        break;
      }
      place -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

} // namespace

const kernels::Kernels& KernelChoice::table() const {
  size_t count = 0;
  const auto* const* every = kernels::every_kernels(count);
  return *every[implementation < count ? implementation : 0];
}

KernelChoice kernel_choice(uint32_t threads, uint32_t implementation) {
  size_t count = 0;
  kernels::every_kernels(count);
  require(threads > 0, "kernels", "there must be a thread to run on");
  require(implementation < count, "kernels", "this machine has no such implementation");
  return {threads, implementation};
}

bool is_kernel_element(mx::Dtype type) {
  return type == mx::float32 || type == mx::float16 || type == mx::bfloat16;
}

kernels::Element kernel_element(mx::Dtype type) {
  if (type == mx::float16) {
    return kernels::Element::f16;
  }
  return type == mx::bfloat16 ? kernels::Element::bf16 : kernels::Element::f32;
}

void* Queue::workspace(size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  auto data = mx::allocator::malloc(bytes);
  void* start = data.buffer().raw_ptr();
  encoder_.add_temporary(mx::array(std::move(data), mx::Shape{1}, mx::uint8));
  return start;
}

const void* Queue::dense(const mx::array& a) {
  if (a.flags().row_contiguous || a.size() == 0) {
    return a.data<char>();
  }
  auto* copy = static_cast<char*>(workspace(a.nbytes()));
  run([from = a.data<char>(), size = a.itemsize(), shape = a.shape(), strides = a.strides(), copy]() noexcept {
    gather(from, size, shape, strides, copy);
  });
  return copy;
}

Rows rows_of(Queue& queue, const mx::array& a) {
  auto width = a.ndim() == 0 ? 1 : a.shape(-1);
  if (a.ndim() == 2 && (width == 1 || a.strides(1) == 1) && a.strides(0) >= width) {
    return {a.data<char>(), a.strides(0)};
  }
  return {queue.dense(a), width};
}

void CpuPrimitive::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error(std::string(name()) + " is computed by a kernel for CPUs, and was queued on another device");
}

mx::Stream cpu_stream() {
  return mx::default_stream(mx::Device(mx::Device::cpu));
}

void require(bool holds, const char* operation, const char* otherwise) {
  if (!holds) {
    throw std::invalid_argument(std::string("[") + operation + "] " + otherwise);
  }
}

} // namespace mlxcel
