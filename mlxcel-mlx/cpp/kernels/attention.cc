#include "attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "threads.h"

namespace mlxcel::kernels {
namespace {

/// Keys in a block.
constexpr std::size_t kKeys = 64;

/// The most rows (queries times the heads that share keys) that go over a block of keys together.
constexpr std::size_t kRows = 112;

/// Up to as many rows, which are those of one query with most models, packing keys and values would cost more than it
/// saves.
constexpr std::size_t kFewAttentionRows = 8;

/// Packing reads whole vectors of rows.
constexpr std::size_t kSpareRows = 16;

/// How the rows of a key/value head are cut, and where in a thread's memory things lie (offsets in floats).
struct Plan {
  Plan(const Kernels& kernels, const Attention& p)
      : group(p.heads / p.kv_heads),
        tokens(std::max<std::size_t>(kRows / group, 1)),
        blocks((p.tokens + tokens - 1) / tokens),
        rows(std::min(tokens, p.tokens) * group),
        key_panels((kKeys + kernels.tile_columns - 1) / kernels.tile_columns),
        value_panels((p.value_dim + kernels.tile_columns - 1) / kernels.tile_columns),
        value_width(value_panels * kernels.tile_columns) {
    std::size_t at = 0;
    const auto place = [&](std::size_t floats) {
      const std::size_t start = at;
      at += (floats + 15) / 16 * 16;
      return start;
    };
    queries = place((rows + kSpareRows) * p.dim);
    packed_queries = place(rows * p.dim);
    keys = place(key_panels * kernels.tile_columns * p.dim);
    values = place(kKeys * value_width);
    scores = place((rows + kSpareRows) * kKeys);
    weights = place(rows * kKeys);
    sums = place(rows * value_width);
    softmax = place(rows * (sizeof(SoftmaxRow) / sizeof(float)));
    size = at;
  }

  std::size_t group, tokens, blocks, rows, key_panels, value_panels, value_width;
  std::size_t queries, packed_queries, keys, values, scores, weights, sums, softmax, size;
};

/// The rows of one key/value head and one block of tokens.
class Block {
 public:
  Block(const Kernels& kernels, const Attention& p, const Plan& plan, std::size_t index, float* memory)
      : kernels_(kernels),
        p_(p),
        plan_(plan),
        head_(index % p.kv_heads),
        // Later tokens see more keys: they go first, so that none is left alone at the end.
        token_((plan.blocks - 1 - index / p.kv_heads) * plan.tokens),
        tokens_(std::min(plan.tokens, p.tokens - token_)),
        rows_(tokens_ * plan.group),
        memory_(memory),
        softmax_(reinterpret_cast<SoftmaxRow*>(memory + plan.softmax)) {}

  void run() {
    gather_queries();
    std::fill_n(memory_ + plan_.sums, rows_ * plan_.value_width, 0.0f);
    std::fill_n(softmax_, rows_, SoftmaxRow{-std::numeric_limits<float>::infinity(), 0.0f, 1.0f});
    const std::size_t last = p_.offset + token_ + tokens_;
    for (std::size_t key = first_key(token_); key < last; key += kKeys) {
      see(key, std::min(kKeys, last - key));
    }
    finish();
  }

 private:
  std::size_t first_key(std::size_t token) const {
    const std::size_t visible = p_.offset + token + 1;
    return p_.window == 0 || visible <= p_.window ? 0 : visible - p_.window;
  }

  std::size_t query_head(std::size_t row) const {
    return head_ * plan_.group + row % plan_.group;
  }

  /// Runs `body(first row, rows)` for each panel of rows.
  template <class Body>
  void each_panel(const Body& body) const {
    const std::size_t panels = (rows_ + kernels_.tile_rows - 1) / kernels_.tile_rows;
    const std::size_t height = (rows_ + panels - 1) / panels;
    for (std::size_t row = 0; row < rows_; row += height) {
      body(row, std::min(height, rows_ - row));
    }
  }

  void gather_queries() {
    float* const gathered = memory_ + plan_.queries;
    for (std::size_t row = 0; row < rows_; ++row) {
      const auto token = static_cast<std::ptrdiff_t>(token_ + row / plan_.group);
      const float* q = p_.q + token * p_.q_token + static_cast<std::ptrdiff_t>(query_head(row)) * p_.q_head;
      kernels_.scale(q, p_.scale, p_.dim, gathered + row * p_.dim);
    }
    // What packing reads beyond the rows is never used, but must not be uninitialised.
    std::fill_n(gathered + rows_ * p_.dim, kSpareRows * p_.dim, 0.0f);
    std::fill_n(memory_ + plan_.scores + rows_ * kKeys, kSpareRows * kKeys, 0.0f);
    if (few()) {
      return;
    }
    each_panel([&](std::size_t row, std::size_t rows) {
      kernels_.pack_rows(gathered + row * p_.dim, static_cast<std::ptrdiff_t>(p_.dim), rows, rows_ + kSpareRows - row,
                         p_.dim, memory_ + plan_.packed_queries + row * p_.dim);
    });
  }

  bool few() const {
    return rows_ <= kFewAttentionRows;
  }

  /// Takes keys `key` to `key + count - 1` into account.
  void see(std::size_t key, std::size_t count) {
    if (few()) {
      see_in_place(key, count);
      return;
    }
    pack(key, count);
    const std::size_t width = kernels_.tile_columns;
    each_panel([&](std::size_t row, std::size_t rows) {
      for (std::size_t panel = 0; panel * width < count; ++panel) {
        kernels_.tile({
            .rows = rows,
            .columns = width,
            .depth = p_.dim,
            .a = memory_ + plan_.packed_queries + row * p_.dim,
            .b = memory_ + plan_.keys + panel * width * p_.dim,
            .c = memory_ + plan_.scores + row * kKeys + panel * width,
            .c_stride = kKeys,
            .accumulate = false,
        });
      }
      weigh(key, count, row, rows);
      kernels_.pack_rows(memory_ + plan_.scores + row * kKeys, kKeys, rows, rows_ + kSpareRows - row, count,
                         memory_ + plan_.weights + row * kKeys);
      for (std::size_t panel = 0; panel < plan_.value_panels; ++panel) {
        kernels_.tile({
            .rows = rows,
            .columns = width,
            .depth = count,
            .a = memory_ + plan_.weights + row * kKeys,
            .b = memory_ + plan_.values + panel * width * kKeys,
            .c = memory_ + plan_.sums + row * plan_.value_width + panel * width,
            .c_stride = static_cast<std::ptrdiff_t>(plan_.value_width),
            .accumulate = true,
        });
      }
    });
  }

  void see_in_place(std::size_t key, std::size_t count) {
    const auto type = static_cast<std::size_t>(p_.cache_type);
    kernels_.few_scores[type]({
        .q = memory_ + plan_.queries,
        .rows = rows_,
        .dim = p_.dim,
        .keys = key_at(key),
        .stride = p_.key_token,
        .count = count,
        .scores = memory_ + plan_.scores,
        .scores_stride = kKeys,
    });
    weigh(key, count, 0, rows_);
    kernels_.few_sums[type]({
        .weights = memory_ + plan_.scores,
        .weights_stride = kKeys,
        .rows = rows_,
        .dim = p_.value_dim,
        .values = value_at(key, 0),
        .stride = p_.value_token,
        .count = count,
        .sums = memory_ + plan_.sums,
        .sums_stride = plan_.value_width,
    });
  }

  const void* key_at(std::size_t key) const {
    const auto head = static_cast<std::ptrdiff_t>(head_) * p_.key_head;
    return at(p_.keys, p_.cache_type, head + static_cast<std::ptrdiff_t>(key) * p_.key_token);
  }

  const void* value_at(std::size_t key, std::size_t column) const {
    const auto head = static_cast<std::ptrdiff_t>(head_) * p_.value_head;
    const auto token = static_cast<std::ptrdiff_t>(key) * p_.value_token;
    return at(p_.values, p_.cache_type, head + token + static_cast<std::ptrdiff_t>(column));
  }

  void pack(std::size_t key, std::size_t count) {
    const auto type = static_cast<std::size_t>(p_.cache_type);
    const std::size_t width = kernels_.tile_columns;
    for (std::size_t panel = 0; panel * width < count; ++panel) {
      kernels_.pack_columns[type](key_at(key + panel * width), p_.key_token, std::min(width, count - panel * width),
                                  p_.dim, memory_ + plan_.keys + panel * width * p_.dim);
    }
    for (std::size_t panel = 0; panel < plan_.value_panels; ++panel) {
      kernels_.copy_columns[type](value_at(key, panel * width), p_.value_token,
                                  std::min(width, p_.value_dim - panel * width), count,
                                  memory_ + plan_.values + panel * width * kKeys);
    }
  }

  /// Turns scores of some rows into weights, and scales what these rows have summed so far to their new maximum.
  void weigh(std::size_t key, std::size_t count, std::size_t first, std::size_t rows) {
    float* const scores = memory_ + plan_.scores;
    for (std::size_t row = first; row < first + rows; ++row) {
      const std::size_t token = token_ + row / plan_.group;
      const std::size_t begin = first_key(token), end = p_.offset + token + 1;
      SoftmaxRow& state = softmax_[row];
      kernels_.softmax(scores + row * kKeys, begin > key ? std::min(begin - key, kKeys) : 0,
                       end > key ? std::min(end - key, count) : 0, kKeys, state);
      if (state.correction != 1.0f) {
        float* const sums = memory_ + plan_.sums + row * plan_.value_width;
        kernels_.scale(sums, state.correction, plan_.value_width, sums);
      }
    }
  }

  void finish() {
    for (std::size_t row = 0; row < rows_; ++row) {
      const auto token = static_cast<std::ptrdiff_t>(token_ + row / plan_.group);
      float* y = p_.y + token * p_.y_token + static_cast<std::ptrdiff_t>(query_head(row)) * p_.y_head;
      kernels_.scale(memory_ + plan_.sums + row * plan_.value_width, 1.0f / softmax_[row].total, p_.value_dim, y);
    }
  }

  const Kernels& kernels_;
  const Attention& p_;
  const Plan& plan_;
  std::size_t head_, token_, tokens_, rows_;
  float* memory_;
  SoftmaxRow* softmax_;
};

}  // namespace

std::size_t attention_workspace(const Kernels& kernels, const Attention& p, unsigned threads) noexcept {
  const Plan plan(kernels, p);
  return slots(threads, plan.blocks * p.kv_heads) * plan.size * sizeof(float) + 64;
}

void attention(const Kernels& kernels, const Attention& p, unsigned threads, void* workspace) noexcept {
  if (p.tokens == 0 || p.heads == 0) {
    return;
  }
  const Plan plan(kernels, p);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  float* const memory = reinterpret_cast<float*>((address + 63) / 64 * 64);
  parallel(threads, plan.blocks * p.kv_heads, [&](std::size_t index, unsigned slot) noexcept {
    Block(kernels, p, plan, index, memory + slot * plan.size).run();
  });
}

}  // namespace mlxcel::kernels
