#include "linear.h"

#include <algorithm>

#include "threads.h"

namespace mlxcel::kernels {
namespace {

/// The depth of packed panels: one of weights fills a first-level cache of 32 KiB and stays in the second.
constexpr std::size_t kDepth = 256;

/// Rows of x that go over a panel of weights before it is made again: with `kDepth` columns they take 384 KiB.
constexpr std::size_t kHeight = 384;

/// The widest tile of any instruction set.
constexpr std::size_t kMostColumns = 32;

/// Bytes of weights that a thread takes at a time where rows are few: enough to pay for taking them.
constexpr std::size_t kStretch = 128 * 1024;

float* aligned(void* workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

/// `count` equal runs, but for the last, of `total` things, each of at most `most`.
struct Runs {
  Runs(std::size_t total, std::size_t most)
      : total(total),
        count((total + most - 1) / most),
        length(count == 0 ? 0 : (total + count - 1) / count) {}

  std::size_t begin(std::size_t index) const {
    return std::min(index * length, total);
  }
  std::size_t end(std::size_t index) const {
    return std::min((index + 1) * length, total);
  }

  std::size_t total, count, length;
};

void fill_with_bias(const Product& p, std::size_t n_begin, std::size_t n_end, std::size_t m_begin, std::size_t m_end) {
  float values[kMostColumns];
  for (std::size_t n = n_begin; n < n_end; ++n) {
    values[n - n_begin] = p.bias == nullptr ? 0.0f : read(p.bias, p.bias_type, n);
  }
  for (std::size_t m = m_begin; m < m_end; ++m) {
    float* y = p.y + static_cast<std::ptrdiff_t>(m) * p.y_stride + n_begin;
    std::copy(values, values + (n_end - n_begin), y);
  }
}

/// Bytes for x arranged; none where it may stay as it is.
std::size_t few_workspace(std::size_t m, std::size_t k, unsigned bits) {
  return m == 1 && bits != 4 ? 0 : m * ((k + kMostWidth - 1) / kMostWidth * kMostWidth) * sizeof(float) + 64;
}

/// The product as few rows against weights in `group`s of `bits`-bit numbers (plain ones where 0), with x arranged.
FewRows few_rows(const Kernels& kernels, const Product& p, unsigned bits, unsigned group, void* workspace) {
  FewRows few = {p.x, p.m, p.k, nullptr, 0, p.bias, p.bias_type, p.y, p.y_stride};
  if (few_workspace(p.m, p.k, bits) > 0) {
    float* const arranged = aligned(workspace);
    kernels.arrange(p.x, p.x_stride, p.m, p.k, bits, group, arranged);
    few.x = arranged;
  }
  return few;
}

/// Shares the rows of weights of `row_bytes` each among threads; `body(first, last)` computes their outputs.
template <class Body>
void share_weight_rows(std::size_t n, std::size_t row_bytes, unsigned threads, const Body& body) {
  // Also at least four pieces a thread, so that none waits long for another, and multiples of 16 rows.
  const std::size_t by_bytes = std::max<std::size_t>(kStretch / std::max<std::size_t>(row_bytes, 1), 1);
  const std::size_t by_share = n / (4 * std::size_t{threads}) + 1;
  const std::size_t piece = (std::min(by_bytes, by_share) + 15) / 16 * 16;
  parallel(threads, (n + piece - 1) / piece, [&](std::size_t index, unsigned) noexcept {
    body(index * piece, std::min(n, (index + 1) * piece));
  });
}

/// Many rows. `pack(n, columns, k, depth, panel)` makes a panel of weights.
template <class Pack>
void many_rows(const Kernels& kernels, const Product& p, unsigned threads, void* workspace, const Pack& pack) {
  const std::size_t width = kernels.tile_columns;
  const Runs panels(p.m, kernels.tile_rows);
  const std::size_t depths = (p.k + kDepth - 1) / kDepth;
  float* const packed = aligned(workspace);

  // Panels of x, one after the other: [depths][panels][depth][rows].
  parallel(threads, depths * panels.count, [&](std::size_t index, unsigned) noexcept {
    const std::size_t k = index / panels.count * kDepth;
    const std::size_t depth = std::min(kDepth, p.k - k);
    const std::size_t m = panels.begin(index % panels.count);
    const std::size_t rows = panels.end(index % panels.count) - m;
    const float* from = p.x + static_cast<std::ptrdiff_t>(m) * p.x_stride + k;
    kernels.pack_rows(from, p.x_stride, rows, p.m - m, depth, packed + k * p.m + m * depth);
  });

  // Whole panels of rows make up a block.
  const Runs blocks(panels.count, std::max<std::size_t>(kHeight / kernels.tile_rows, 1));
  const std::size_t columns_count = (p.n + width - 1) / width;
  parallel(threads, blocks.count * columns_count, [&](std::size_t index, unsigned) noexcept {
    alignas(64) float weights[kDepth * kMostColumns];
    const std::size_t block = index / columns_count;
    const std::size_t n = index % columns_count * width;
    const std::size_t columns = std::min(width, p.n - n);
    if (p.bias != nullptr) {
      fill_with_bias(p, n, n + columns, panels.begin(blocks.begin(block)), panels.end(blocks.end(block) - 1));
    }
    for (std::size_t k = 0; k < p.k; k += kDepth) {
      const std::size_t depth = std::min(kDepth, p.k - k);
      pack(n, columns, k, depth, weights);
      for (std::size_t panel = blocks.begin(block); panel < blocks.end(block); ++panel) {
        const std::size_t m = panels.begin(panel);
        kernels.tile({
            .rows = panels.end(panel) - m,
            .columns = columns,
            .depth = depth,
            .a = packed + k * p.m + m * depth,
            .b = weights,
            .c = p.y + static_cast<std::ptrdiff_t>(m) * p.y_stride + n,
            .c_stride = p.y_stride,
            .accumulate = k > 0 || p.bias != nullptr,
        });
      }
    }
  });
}

}  // namespace

std::size_t linear_workspace(std::size_t m, std::size_t k) noexcept {
  return m <= kFewRows ? few_workspace(m, k, 0) : m * k * sizeof(float) + 64;
}

std::size_t affine_linear_workspace(std::size_t m, std::size_t k, unsigned bits) noexcept {
  return m <= kFewRows ? few_workspace(m, k, bits) : m * k * sizeof(float) + 64;
}

void linear(const Kernels& kernels, const Product& p, const Dense& w, unsigned threads, void* workspace) noexcept {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  if (p.k == 0) {
    for (std::size_t n = 0; n < p.n; n += kMostColumns) {
      fill_with_bias(p, n, std::min(n + kMostColumns, p.n), 0, p.m);
    }
    return;
  }
  const auto type = static_cast<std::size_t>(w.type);
  if (p.m <= kFewRows) {
    FewRows few = few_rows(kernels, p, 0, 0, workspace);
    few.w = w.w;
    few.w_stride = w.stride;
    share_weight_rows(p.n, p.k * size_of(w.type), threads, [&](std::size_t first, std::size_t last) noexcept {
      kernels.few_rows[type](few, first, last);
    });
    return;
  }
  many_rows(kernels, p, threads, workspace,
            [&](std::size_t n, std::size_t columns, std::size_t k, std::size_t depth, float* panel) {
              const auto start = static_cast<std::ptrdiff_t>(n) * w.stride + static_cast<std::ptrdiff_t>(k);
              kernels.pack_columns[type](at(w.w, w.type, start), w.stride, columns, depth, panel);
            });
}

void affine_linear(const Kernels& kernels, const Product& p, const Affine& w, unsigned threads,
                   void* workspace) noexcept {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  if (p.m <= kFewRows) {
    const FewRows few = few_rows(kernels, p, w.bits, w.group, workspace);
    share_weight_rows(p.n, p.k * w.bits / 8, threads, [&](std::size_t first, std::size_t last) noexcept {
      kernels.few_rows_affine(few, w, first, last);
    });
    return;
  }
  many_rows(kernels, p, threads, workspace,
            [&](std::size_t n, std::size_t columns, std::size_t k, std::size_t depth, float* panel) {
              float rows[kMostColumns][kDepth];
              for (std::size_t j = 0; j < columns; ++j) {
                kernels.unpack(w, n + j, k, depth, rows[j]);
              }
              kernels.pack_columns[static_cast<std::size_t>(Element::f32)](rows, kDepth, columns, depth, panel);
            });
}

}  // namespace mlxcel::kernels
