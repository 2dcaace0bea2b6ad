// Attention over a KV cache.
#include "mlxcel-mlx/cpp/kernels/attention.h"

#include <utility>

#include "mlxcel-mlx/cpp/primitives/kernels.h"
#include "mlxcel-mlx/cpp/primitives/operands.h"
#include "mlxcel-mlx/src/ffi/kernels.rs.h"

namespace mlxcel {

namespace {

// Heads of keys or values: where they lie, and the strides between heads and between tokens.
struct Heads {
  const void* data;
  std::ptrdiff_t head, token;
};

// The array as it is where each token's elements lie one behind the other; the rest of a cache around them does not
// matter.
Heads heads_of(Queue& queue, const mx::array& a) {
  if (a.shape(-1) == 1 || a.strides(-1) == 1) {
    return {a.data<char>(), a.strides(-3), a.strides(-2)};
  }
  auto token = std::ptrdiff_t{a.shape(-1)};
  return {queue.dense(a), token * a.shape(-2), token};
}

class CachedAttention final : public CpuPrimitive {
 public:
  CachedAttention(mx::Stream stream, KernelChoice choice, float scale, size_t window)
      : CpuPrimitive(stream, choice), scale_(scale), window_(window) {}

  const char* name() const override {
    return "MlxcelAttention";
  }

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    Queue queue(stream());
    Queue::allocate(out);
    auto q = heads_of(queue, inputs[0]);
    auto keys = heads_of(queue, inputs[1]);
    auto values = heads_of(queue, inputs[2]);
    auto tokens = static_cast<size_t>(inputs[0].shape(0));
    auto length = static_cast<size_t>(inputs[1].shape(-2));
    kernels::Attention p = {
        .q = static_cast<const float*>(q.data),
        .q_token = q.head,
        .q_head = q.token,
        .keys = keys.data,
        .key_head = keys.head,
        .key_token = keys.token,
        .values = values.data,
        .value_head = values.head,
        .value_token = values.token,
        .cache_type = kernel_element(inputs[1].dtype()),
        .y = out.data<float>(),
        .y_token = std::ptrdiff_t{out.shape(1)} * out.shape(2),
        .y_head = out.shape(2),
        .tokens = tokens,
        .heads = static_cast<size_t>(inputs[0].shape(1)),
        .kv_heads = static_cast<size_t>(inputs[1].shape(-3)),
        .dim = static_cast<size_t>(inputs[0].shape(2)),
        .value_dim = static_cast<size_t>(inputs[2].shape(-1)),
        .length = length,
        .offset = length - tokens,
        .window = window_,
        .scale = scale_,
    };
    if (out.size() == 0) {
      return;
    }
    void* workspace = queue.workspace(kernels::attention_workspace(choice_.table(), p, choice_.threads));
    queue.run([p, workspace, choice = choice_]() noexcept {
      kernels::attention(choice.table(), p, choice.threads, workspace);
    });
  }

  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const CachedAttention&>(other);
    return choice_ == o.choice_ && scale_ == o.scale_ && window_ == o.window_;
  }

  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    const auto& q = inputs[0].shape();
    return {{q[0], q[1], inputs[2].shape(-1)}};
  }

 private:
  float scale_;
  size_t window_;
};

} // namespace

Handle kernel_attention(const array& q, const array& keys, const array& values, float scale, int32_t window,
                        const KernelSettings& settings) {
  constexpr auto kOperation = "attention";
  auto choice = kernel_choice(settings.threads, settings.implementation);
  require(q.ndim() == 3 && q.dtype() == mx::float32, kOperation, "the queries are not [tokens, heads, dim] of float32");
  for (const auto* part : {&keys, &values}) {
    bool is_cache = part->ndim() == 3 || (part->ndim() == 4 && part->shape(0) == 1);
    require(is_cache, kOperation, "the keys or values are not [kv_heads, length, dim]");
    require(is_kernel_element(part->dtype()) && part->dtype() == keys.dtype(), kOperation,
            "the keys or values have a type that is not computed");
    require(part->shape(-3) == keys.shape(-3) && part->shape(-2) == keys.shape(-2), kOperation,
            "keys and values differ in number");
  }
  require(q.shape(2) > 0 && keys.shape(-1) == q.shape(2), kOperation, "queries and keys differ in width");
  require(keys.shape(-3) > 0 && q.shape(1) % keys.shape(-3) == 0, kOperation,
          "the heads of keys do not divide those of queries");
  require(keys.shape(-2) >= q.shape(0), kOperation, "there are fewer keys than queries");
  require(window >= 0, kOperation, "the window is negative");
  auto primitive = std::make_shared<CachedAttention>(cpu_stream(), choice, scale, static_cast<size_t>(window));
  auto shape = mx::Shape{q.shape(0), q.shape(1), values.shape(-1)};
  return std::make_unique<array>(std::move(shape), mx::float32, std::move(primitive),
                                 std::vector<array>{q, keys, values});
}

} // namespace mlxcel
