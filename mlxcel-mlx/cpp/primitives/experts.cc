// Products of activations and the weights of experts, of which each row has its own.
#include <algorithm>

#include "mlxcel-mlx/cpp/kernels/linear.h"
#include "mlxcel-mlx/cpp/primitives/kernels.h"
#include "mlxcel-mlx/cpp/primitives/operands.h"
#include "mlxcel-mlx/src/ffi/kernels.rs.h"

namespace mlxcel {

namespace {

// Rows of activations that go through one expert after another.
struct Dispatched {
  kernels::Product p;  // of all rows, without a bias
  const uint32_t* experts;
  size_t count;

  // Runs `multiply(product, expert)` for each run of rows with the same expert; results of experts that do not exist are
  // zero.
  template <class Multiply>
  void each_run(const Multiply& multiply) const {
    for (size_t first = 0; first < p.m;) {
      size_t last = first + 1;
      while (last < p.m && experts[last] == experts[first]) {
        ++last;
      }
      kernels::Product run = p;
      run.x += static_cast<std::ptrdiff_t>(first) * p.x_stride;
      run.y += static_cast<std::ptrdiff_t>(first) * p.y_stride;
      run.m = last - first;
      if (experts[first] < count) {
        multiply(run, experts[first]);
      } else {
        std::fill_n(run.y, run.m * p.n, 0.0f);
      }
      first = last;
    }
  }
};

Dispatched dispatched(Queue& queue, const mx::array& x, const mx::array& experts, size_t count, mx::array& out) {
  Queue::allocate(out);
  auto rows = rows_of(queue, x);
  auto n = out.shape(-1);
  return {
      .p = {
          .x = static_cast<const float*>(rows.data),
          .x_stride = rows.stride,
          .y = out.data<float>(),
          .y_stride = n,
          .bias = nullptr,
          .bias_type = kernels::Element::f32,
          .m = n == 0 ? 0 : static_cast<size_t>(out.shape(0)),
          .n = static_cast<size_t>(n),
          .k = static_cast<size_t>(x.shape(-1)),
      },
      .experts = static_cast<const uint32_t*>(queue.dense(experts)),
      .count = count,
  };
}

// The most memory that a run of up to `rows` rows wants.
template <class Of>
size_t most_workspace(size_t rows, const Of& of) {
  size_t most = of(rows);
  for (size_t few = 1; few <= std::min(rows, kernels::kFewRows); ++few) {
    most = std::max(most, of(few));
  }
  return most;
}

class ExpertLinear final : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  const char* name() const override {
    return "MlxcelExpertLinear";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    const auto& weights = inputs[2];
    auto d = dispatched(queue, inputs[0], inputs[1], static_cast<size_t>(weights.shape(0)), out);
    kernels::Dense w = {queue.dense(weights), weights.shape(2), kernel_element(weights.dtype())};
    auto bytes = d.p.n * d.p.k * kernels::size_of(w.type);
    void* workspace =
        queue.workspace(most_workspace(d.p.m, [&](size_t m) { return kernels::linear_workspace(m, d.p.k); }));
    queue.run([d, w, bytes, workspace, choice = choice_]() noexcept {
      d.each_run([&](const kernels::Product& p, size_t expert) {
        auto own = w;
        own.w = static_cast<const char*>(w.w) + expert * bytes;
        kernels::linear(choice.table(), p, own, choice.threads, workspace);
      });
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    return choice_ == static_cast<const ExpertLinear&>(other).choice_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {{inputs[0].shape(0), inputs[2].shape(1)}};
  }
};

class AffineExpertLinear final : public CpuPrimitive {
 public:
  AffineExpertLinear(mx::Stream stream, KernelChoice choice, unsigned group, unsigned bits)
      : CpuPrimitive(stream, choice), group_(group), bits_(bits) {}

  const char* name() const override {
    return "MlxcelAffineExpertLinear";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    const auto& words = inputs[2];
    auto d = dispatched(queue, inputs[0], inputs[1], static_cast<size_t>(words.shape(0)), out);
    kernels::Affine w = {
        .words = queue.dense(words),
        .row_bytes = std::ptrdiff_t{words.shape(2)} * 4,
        .scales = queue.dense(inputs[3]),
        .biases = queue.dense(inputs[4]),
        .scale_type = kernel_element(inputs[3].dtype()),
        .scale_stride = inputs[3].shape(2),
        .bits = bits_,
        .group = group_,
    };
    auto bytes = d.p.n * static_cast<size_t>(w.row_bytes);
    auto scale_bytes = d.p.n * static_cast<size_t>(w.scale_stride) * kernels::size_of(w.scale_type);
    void* workspace = queue.workspace(
        most_workspace(d.p.m, [&](size_t m) { return kernels::affine_linear_workspace(m, d.p.k, bits_); }));
    queue.run([d, w, bytes, scale_bytes, workspace, choice = choice_]() noexcept {
      d.each_run([&](const kernels::Product& p, size_t expert) {
        auto own = w;
        own.words = static_cast<const char*>(w.words) + expert * bytes;
        own.scales = static_cast<const char*>(w.scales) + expert * scale_bytes;
        own.biases = static_cast<const char*>(w.biases) + expert * scale_bytes;
        kernels::affine_linear(choice.table(), p, own, choice.threads, workspace);
      });
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const AffineExpertLinear&>(other);
    return choice_ == o.choice_ && group_ == o.group_ && bits_ == o.bits_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {{inputs[0].shape(0), inputs[2].shape(1)}};
  }

 private:
  unsigned group_, bits_;
};

void require_dispatched(const char* operation, const mx::array& x, const mx::array& experts) {
  require(x.ndim() == 2 && x.dtype() == mx::float32, operation, "x is not [rows, inputs] of float32");
  require(experts.ndim() == 1 && experts.dtype() == mx::uint32 && experts.shape(0) == x.shape(0), operation,
          "the experts are not [rows] of uint32");
}

Handle product(mx::ShapeElem n, std::vector<mx::array> inputs, std::shared_ptr<mx::Primitive> primitive) {
  auto shape = mx::Shape{inputs[0].shape(0), n};
  return std::make_unique<mx::array>(std::move(shape), mx::float32, std::move(primitive), std::move(inputs));
}

} // namespace

Handle kernel_expert_linear(const array& x, const array& experts, const array& w, const KernelSettings& settings) {
  constexpr auto kOperation = "expert linear";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require_dispatched(kOperation, x, experts);
  require(w.ndim() == 3 && w.shape(2) == x.shape(1), kOperation, "the weight is not [experts, outputs, inputs]");
  require(is_kernel_element(w.dtype()), kOperation, "the weight has a type that is not computed");
  return product(w.shape(1), {x, experts, w}, std::make_shared<ExpertLinear>(cpu_stream(), choice));
}

Handle kernel_affine_expert_linear(const array& x, const array& experts, const array& words, const array& scales,
                                   const array& biases, int32_t group_size, int32_t bits,
                                   const KernelSettings& settings) {
  constexpr auto kOperation = "affine expert linear";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(group_size == 32 || group_size == 64 || group_size == 128, kOperation, "no such group size");
  require(bits >= 2 && bits <= 8 && bits != 7, kOperation, "no such width");
  require_dispatched(kOperation, x, experts);
  require(words.ndim() == 3 && words.dtype() == mx::uint32, kOperation,
          "the weight is not [experts, outputs, packed inputs]");
  auto k = x.shape(1);
  require(k % group_size == 0, kOperation, "the inputs do not fill groups");
  require(words.shape(2) == int64_t{k} * bits / 32, kOperation, "the weight has another number of inputs than x");
  for (const auto* part : {&scales, &biases}) {
    require(part->shape() == mx::Shape{words.shape(0), words.shape(1), k / group_size}, kOperation,
            "the scales or biases do not fit the weight");
    require(is_kernel_element(part->dtype()) && part->dtype() == scales.dtype(), kOperation,
            "the scales or biases have a type that is not computed");
  }
  auto primitive = std::make_shared<AffineExpertLinear>(cpu_stream(), choice, group_size, bits);
  return product(words.shape(1), {x, experts, words, scales, biases}, std::move(primitive));
}

} // namespace mlxcel
