// Threads that share the work of one kernel.
#pragma once

#include <cstddef>
#include <type_traits>

namespace mlxcel::kernels {

/// The most threads that one kernel is shared among.
inline constexpr unsigned kMostThreads = 256;

/// How many of `threads` asked for take part in `count` pieces of work; also how many different slots those see.
unsigned slots(unsigned threads, std::size_t count) noexcept;

/// Work of a kernel: piece `index`, run by the thread in place `slot`. Pieces with one slot never run at once.
using Work = void (*)(const void* context, std::size_t index, unsigned slot);

/// Runs pieces 0 to count-1, in any order, on the calling thread and up to `threads`-1 others, and returns when all
/// are done. Calls from several threads take turns; a call from within a piece runs its own pieces there.
///
/// The other threads are started when first needed and live as long as the process. After work they watch for more
/// for some tens of microseconds, which spans the gaps between the kernels of a decoding step, and then sleep. Where
/// a thread cannot be started, fewer share the work.
void run_parallel(unsigned threads, std::size_t count, Work work, const void* context) noexcept;

/// `run_parallel` of a function object `body(index, slot)`, which must not throw.
template <class Body>
void parallel(unsigned threads, std::size_t count, const Body& body) noexcept {
  static_assert(std::is_nothrow_invocable_v<const Body&, std::size_t, unsigned>);
  run_parallel(
      threads,
      count,
      [](const void* context, std::size_t index, unsigned slot) {
        (*static_cast<const Body*>(context))(index, slot);
      },
      &body);
}

}  // namespace mlxcel::kernels
