// Arrays of MLX as kernels take them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "mlxcel-mlx/cpp/kernels/element.h"
#include "mlxcel-mlx/cpp/kernels/table.h"

namespace mlxcel {

namespace mx = mlx::core;

// How kernels run: on how many threads, and which of the implementations that this machine runs (0 is the best).
struct KernelChoice {
  uint32_t threads;
  uint32_t implementation;

  bool operator==(const KernelChoice&) const = default;

  const kernels::Kernels& table() const;
};

// The choice, or std::invalid_argument where it is none.
KernelChoice kernel_choice(uint32_t threads, uint32_t implementation);

// Whether kernels read elements of this type.
bool is_kernel_element(mx::Dtype type);

// The type as kernels name it; of those above.
kernels::Element kernel_element(mx::Dtype type);

// The place of work of one primitive: its stream's queue, and memory that lasts until the queued work is done.
class Queue {
 public:
  explicit Queue(mx::Stream stream) : encoder_(mx::cpu::get_command_encoder(stream)) {}

  // Gives an output its memory.
  static void allocate(mx::array& out) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }

  // Memory for the time of the work; null where `bytes` is 0.
  void* workspace(size_t bytes);

  // An array's data with its elements one behind the other: its own where they lie so, else a copy, made by the queue
  // ahead of the work that is queued next.
  const void* dense(const mx::array& a);

  // Queues `work`, which must not throw: it runs on a thread of MLX's.
  template <class Work>
  void run(Work work) {
    static_assert(std::is_nothrow_invocable_v<Work&>);
    encoder_.dispatch(std::move(work));
  }

 private:
  mx::cpu::CommandEncoder& encoder_;
};

// A matrix of rows whose elements lie one behind the other; the stride in elements.
struct Rows {
  const void* data;
  std::ptrdiff_t stride;
};

// An array's elements along its last axis as the rows of a matrix, without a copy where they lie so.
Rows rows_of(Queue& queue, const mx::array& a);

// A primitive that runs on a CPU and nowhere else.
class CpuPrimitive : public mx::UnaryPrimitive {
 public:
  CpuPrimitive(mx::Stream stream, KernelChoice choice) : mx::UnaryPrimitive(stream), choice_(choice) {}

  void eval_gpu(const std::vector<mx::array>&, mx::array&) override;

 protected:
  KernelChoice choice_;
};

// The stream on which kernels run.
mx::Stream cpu_stream();

// Throws std::invalid_argument with the operation and what is wrong unless `holds`.
void require(bool holds, const char* operation, const char* otherwise);

} // namespace mlxcel
