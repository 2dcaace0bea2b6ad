// Norms, activations and rotations: what MLX computes in many passes on a CPU.
#include <algorithm>
#include <cmath>
#include <limits>

#include "mlxcel-mlx/cpp/kernels/threads.h"
#include "mlxcel-mlx/cpp/primitives/kernels.h"
#include "mlxcel-mlx/cpp/primitives/operands.h"
#include "mlxcel-mlx/src/ffi/kernels.rs.h"

namespace mlxcel {

namespace {

// Elements from which on sharing the work among threads pays.
constexpr size_t kWorthSharing = 16 * 1024;

// Runs `body(row)` for each of `count` rows of `width` elements.
template <class Body>
void each_row(uint32_t threads, size_t count, size_t width, const Body& body) noexcept {
  size_t rows = std::max<size_t>(1, kWorthSharing / 2 / std::max<size_t>(width, 1));
  kernels::parallel(count * width < kWorthSharing ? 1 : threads, (count + rows - 1) / rows,
                    [&](size_t index, unsigned) noexcept {
                      for (size_t row = index * rows; row < std::min(count, (index + 1) * rows); ++row) {
                        body(row);
                      }
                    });
}

class RmsNorm final : public CpuPrimitive {
 public:
  RmsNorm(mx::Stream stream, KernelChoice choice, float epsilon) : CpuPrimitive(stream, choice), epsilon_(epsilon) {}

  const char* name() const override {
    return "MlxcelRmsNorm";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    Queue::allocate(out);
    const auto& x = inputs[0];
    auto rows = rows_of(queue, x);
    const void* weight = inputs.size() > 1 ? queue.dense(inputs[1]) : nullptr;
    auto type = inputs.size() > 1 ? kernel_element(inputs[1].dtype()) : kernels::Element::f32;
    auto width = static_cast<size_t>(x.shape(-1));
    if (x.size() == 0) {
      return;
    }
    queue.run([rows, weight, type, width, epsilon = epsilon_, count = x.size() / width, to = out.data<float>(),
               choice = choice_]() noexcept {
      auto norm = choice.table().rms_norm[static_cast<size_t>(type)];
      each_row(choice.threads, count, width, [&](size_t row) {
        const auto* from = static_cast<const float*>(rows.data) + static_cast<std::ptrdiff_t>(row) * rows.stride;
        norm(from, weight, epsilon, width, to + row * width);
      });
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const RmsNorm&>(other);
    return choice_ == o.choice_ && epsilon_ == o.epsilon_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }

 private:
  float epsilon_;
};

// Numbers of a row that one thread takes at a time.
constexpr size_t kSummed = 8192;

// The largest of a part of a row, and the sum of the powers of e of the others beside it.
struct Part {
  float maximum, total;
};

float log_of_parts(const Part* parts, size_t count) {
  float maximum = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < count; ++i) {
    maximum = std::max(maximum, parts[i].maximum);
  }
  if (std::isinf(maximum) && maximum > 0) {
    return maximum;
  }
  float total = 0;
  for (size_t i = 0; i < count; ++i) {
    // A part of negative infinities alone has a sum of nothing, or of what is no number.
    bool is_empty = std::isinf(parts[i].maximum);
    total += is_empty ? parts[i].total : parts[i].total * std::exp(parts[i].maximum - maximum);
  }
  return total == 0 ? -std::numeric_limits<float>::infinity() : maximum + std::log(total);
}

class LogSumExp final : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  const char* name() const override {
    return "MlxcelLogSumExp";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    Queue::allocate(out);
    auto rows = rows_of(queue, inputs[0]);
    auto width = static_cast<size_t>(inputs[0].shape(-1));
    auto parts = (width + kSummed - 1) / kSummed;
    auto* found = static_cast<Part*>(queue.workspace(out.size() * parts * sizeof(Part)));
    queue.run([rows, width, parts, found, count = out.size(), to = out.data<float>(), choice = choice_]() noexcept {
      auto exponentials = choice.table().exponentials;
      kernels::parallel(count * width < kWorthSharing ? 1 : choice.threads, count * parts,
                        [&](size_t index, unsigned) noexcept {
                          auto row = static_cast<std::ptrdiff_t>(index / parts);
                          auto start = index % parts * kSummed;
                          const auto* from = static_cast<const float*>(rows.data) + row * rows.stride + start;
                          exponentials(from, std::min(kSummed, width - start), found[index].maximum,
                                       found[index].total);
                        });
      for (size_t row = 0; row < count; ++row) {
        to[row] = log_of_parts(found + row * parts, parts);
      }
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    return choice_ == static_cast<const LogSumExp&>(other).choice_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {reduced_shape(inputs[0])};
  }

  static mx::Shape reduced_shape(const mx::array& x) {
    auto shape = x.shape();
    shape[shape.size() - 1] = 1;
    return shape;
  }
};

class SiluMul final : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  const char* name() const override {
    return "MlxcelSiluMul";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    Queue::allocate(out);
    const auto* gate = static_cast<const float*>(queue.dense(inputs[0]));
    const auto* up = static_cast<const float*>(queue.dense(inputs[1]));
    queue.run([gate, up, count = out.size(), to = out.data<float>(), choice = choice_]() noexcept {
      constexpr size_t kPiece = 4096;
      each_row(choice.threads, (count + kPiece - 1) / kPiece, kPiece, [&](size_t piece) {
        auto start = piece * kPiece;
        choice.table().silu_mul(gate + start, up + start, std::min(kPiece, count - start), to + start);
      });
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    return choice_ == static_cast<const SiluMul&>(other).choice_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }
};

class Rotate final : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  const char* name() const override {
    return "MlxcelRotate";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    Queue::allocate(out);
    const auto* x = static_cast<const float*>(queue.dense(inputs[0]));
    const auto* cos = static_cast<const float*>(queue.dense(inputs[1]));
    const auto* sin = static_cast<const float*>(queue.dense(inputs[2]));
    auto tokens = static_cast<size_t>(out.shape(0));
    auto heads = static_cast<size_t>(out.shape(1));
    auto width = static_cast<size_t>(out.shape(2));
    auto pairs = static_cast<size_t>(inputs[1].shape(2));
    queue.run([=, to = out.data<float>(), choice = choice_]() noexcept {
      auto rotate = choice.table().rotate_halves;
      each_row(choice.threads, tokens, heads * width, [&](size_t token) {
        for (size_t head = 0; head < heads; ++head) {
          auto start = (token * heads + head) * width;
          rotate(x + start, cos + token * pairs, sin + token * pairs, pairs, to + start);
          std::copy(x + start + 2 * pairs, x + start + width, to + start + 2 * pairs);
        }
      });
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    return choice_ == static_cast<const Rotate&>(other).choice_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }
};

} // namespace

rust::Vec<rust::String> kernel_implementations() {
  size_t count = 0;
  const auto* const* every = kernels::every_kernels(count);
  rust::Vec<rust::String> names;
  for (size_t i = 0; i < count; ++i) {
    names.push_back(every[i]->name);
  }
  return names;
}

Handle kernel_rms_norm(const array& x, const array* weight, float epsilon, const KernelSettings& settings) {
  constexpr auto kOperation = "rms norm";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(x.ndim() >= 1 && x.dtype() == mx::float32, kOperation, "x is not [.., n] of float32");
  std::vector<array> inputs{x};
  if (weight) {
    require(weight->ndim() == 1 && weight->shape(0) == x.shape(-1), kOperation, "the weight does not fit x");
    require(is_kernel_element(weight->dtype()), kOperation, "the weight has a type that is not computed");
    inputs.push_back(*weight);
  }
  auto primitive = std::make_shared<RmsNorm>(cpu_stream(), choice, epsilon);
  return std::make_unique<array>(x.shape(), mx::float32, std::move(primitive), std::move(inputs));
}

Handle kernel_log_sum_exp(const array& x, const KernelSettings& settings) {
  constexpr auto kOperation = "log sum exp";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(x.ndim() >= 1 && x.dtype() == mx::float32, kOperation, "x is not [.., n] of float32");
  auto primitive = std::make_shared<LogSumExp>(cpu_stream(), choice);
  return std::make_unique<array>(LogSumExp::reduced_shape(x), mx::float32, std::move(primitive), std::vector<array>{x});
}

Handle kernel_silu_mul(const array& gate, const array& up, const KernelSettings& settings) {
  constexpr auto kOperation = "silu";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(gate.dtype() == mx::float32 && up.dtype() == mx::float32, kOperation, "an operand is not float32");
  require(gate.shape() == up.shape(), kOperation, "the operands differ in shape");
  auto primitive = std::make_shared<SiluMul>(cpu_stream(), choice);
  return std::make_unique<array>(gate.shape(), mx::float32, std::move(primitive), std::vector<array>{gate, up});
}

Handle kernel_rotate(const array& x, const array& cos, const array& sin, const KernelSettings& settings) {
  constexpr auto kOperation = "rotate";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(x.ndim() == 3 && x.dtype() == mx::float32, kOperation, "x is not [tokens, heads, dim] of float32");
  for (const auto* table : {&cos, &sin}) {
    bool is_table = table->ndim() == 3 && table->dtype() == mx::float32;
    require(is_table && table->shape(0) == x.shape(0) && table->shape(1) == 1, kOperation,
            "a table is not [tokens, 1, pairs] of float32");
    require(table->shape(2) == cos.shape(2) && 2 * int64_t{table->shape(2)} <= x.shape(2), kOperation,
            "the pairs do not fit x");
  }
  auto primitive = std::make_shared<Rotate>(cpu_stream(), choice);
  return std::make_unique<array>(x.shape(), mx::float32, std::move(primitive), std::vector<array>{x, cos, sin});
}

} // namespace mlxcel
