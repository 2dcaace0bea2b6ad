// Products of activations and weights.
#include <optional>

#include "mlxcel-mlx/cpp/kernels/linear.h"
#include "mlxcel-mlx/cpp/primitives/kernels.h"
#include "mlxcel-mlx/cpp/primitives/operands.h"
#include "mlxcel-mlx/src/ffi/kernels.rs.h"

namespace mlxcel {

namespace {

mx::Shape product_shape(const mx::array& x, mx::ShapeElem n) {
  auto shape = x.shape();
  shape[shape.size() - 1] = n;
  return shape;
}

// Everything of a product but the weights; `bias` is the last input where there is one.
kernels::Product product_of(Queue& queue, const mx::array& x, const mx::array* bias, mx::array& out) {
  Queue::allocate(out);
  auto rows = rows_of(queue, x);
  auto n = out.shape(-1);
  return {
      .x = static_cast<const float*>(rows.data),
      .x_stride = rows.stride,
      .y = out.data<float>(),
      .y_stride = n,
      .bias = bias ? queue.dense(*bias) : nullptr,
      .bias_type = bias ? kernel_element(bias->dtype()) : kernels::Element::f32,
      .m = n == 0 ? 0 : out.size() / static_cast<size_t>(n),
      .n = static_cast<size_t>(n),
      .k = static_cast<size_t>(x.shape(-1)),
  };
}

class Linear final : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;

  const char* name() const override {
    return "MlxcelLinear";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    auto p = product_of(queue, inputs[0], inputs.size() > 2 ? &inputs[2] : nullptr, out);
    auto rows = rows_of(queue, inputs[1]);
    kernels::Dense w = {rows.data, rows.stride, kernel_element(inputs[1].dtype())};
    void* workspace = queue.workspace(kernels::linear_workspace(p.m, p.k));
    queue.run([p, w, workspace, choice = choice_]() noexcept {
      kernels::linear(choice.table(), p, w, choice.threads, workspace);
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    return choice_ == static_cast<const Linear&>(other).choice_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {product_shape(inputs[0], inputs[1].shape(0))};
  }
};

class AffineLinear final : public CpuPrimitive {
 public:
  AffineLinear(mx::Stream stream, KernelChoice choice, unsigned group, unsigned bits)
      : CpuPrimitive(stream, choice), group_(group), bits_(bits) {}

  const char* name() const override {
    return "MlxcelAffineLinear";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    auto p = product_of(queue, inputs[0], inputs.size() > 4 ? &inputs[4] : nullptr, out);
    auto words = rows_of(queue, inputs[1]);
    kernels::Affine w = {
        .words = words.data,
        .row_bytes = words.stride * 4,
        .scales = queue.dense(inputs[2]),
        .biases = queue.dense(inputs[3]),
        .scale_type = kernel_element(inputs[2].dtype()),
        .scale_stride = inputs[2].shape(1),
        .bits = bits_,
        .group = group_,
    };
    void* workspace = queue.workspace(kernels::affine_linear_workspace(p.m, p.k, bits_));
    queue.run([p, w, workspace, choice = choice_]() noexcept {
      kernels::affine_linear(choice.table(), p, w, choice.threads, workspace);
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const AffineLinear&>(other);
    return choice_ == o.choice_ && group_ == o.group_ && bits_ == o.bits_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {product_shape(inputs[0], inputs[1].shape(0))};
  }

 private:
  unsigned group_, bits_;
};

void require_product(const char* operation, const mx::array& x, const mx::array* bias, mx::ShapeElem n) {
  require(x.ndim() >= 1, operation, "x has no axis of inputs");
  require(x.dtype() == mx::float32, operation, "x is not float32");
  if (bias) {
    require(bias->ndim() == 1 && bias->shape(0) == n, operation, "the bias does not fit the outputs");
    require(is_kernel_element(bias->dtype()), operation, "the bias has a type that is not computed");
  }
}

Handle product(const mx::array& x, mx::ShapeElem n, std::vector<mx::array> inputs, const mx::array* bias,
               std::shared_ptr<mx::Primitive> primitive) {
  if (bias) {
    inputs.push_back(*bias);
  }
  return std::make_unique<mx::array>(product_shape(x, n), mx::float32, std::move(primitive), std::move(inputs));
}

} // namespace

Handle kernel_linear(const array& x, const array& w, const array* bias, const KernelSettings& settings) {
  constexpr auto kOperation = "linear";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(w.ndim() == 2, kOperation, "the weight is no matrix");
  require_product(kOperation, x, bias, w.shape(0));
  require(w.shape(1) == x.shape(-1), kOperation, "the weight has another number of inputs than x");
  require(is_kernel_element(w.dtype()), kOperation, "the weight has a type that is not computed");
  return product(x, w.shape(0), {x, w}, bias, std::make_shared<Linear>(cpu_stream(), choice));
}

Handle kernel_affine_linear(const array& x, const array& words, const array& scales, const array& biases,
                            const array* bias, int32_t group_size, int32_t bits, const KernelSettings& settings) {
  constexpr auto kOperation = "affine linear";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(group_size == 32 || group_size == 64 || group_size == 128, kOperation, "no such group size");
  require(bits >= 2 && bits <= 8 && bits != 7, kOperation, "no such width");
  require(words.ndim() == 2 && words.dtype() == mx::uint32, kOperation, "the weight is no matrix of packed words");
  require_product(kOperation, x, bias, words.shape(0));
  auto k = x.shape(-1);
  require(k % group_size == 0, kOperation, "the inputs do not fill groups");
  require(words.shape(1) == int64_t{k} * bits / 32, kOperation, "the weight has another number of inputs than x");
  for (const auto* part : {&scales, &biases}) {
    require(part->ndim() == 2 && part->shape(0) == words.shape(0) && part->shape(1) == k / group_size, kOperation,
            "the scales or biases do not fit the weight");
    require(is_kernel_element(part->dtype()) && part->dtype() == scales.dtype(), kOperation,
            "the scales or biases have a type that is not computed");
  }
  auto primitive = std::make_shared<AffineLinear>(cpu_stream(), choice, group_size, bits);
  return product(x, words.shape(0), {x, words, scales, biases}, bias, std::move(primitive));
}

} // namespace mlxcel
