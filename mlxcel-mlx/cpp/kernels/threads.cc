#include "threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>

namespace mlxcel::kernels {
namespace {

/// How long a thread watches for work before it sleeps. Waking a sleeping thread costs about as much.
constexpr auto kWatch = std::chrono::microseconds(50);

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Whether this thread is running a piece of work.
thread_local bool inside = false;

/// The job's state is one word: bit 32 and up count jobs, bit 31 says that the job may be joined, the bits below it
/// count the helpers that are in it. A helper joins by adding one, which succeeds only while the job is open; the
/// caller closes the job when no piece is left and waits for those inside. So a helper that wakes late costs nothing,
/// and none can touch a job that has ended.
class Pool {
 public:
  void run(unsigned threads, std::size_t count, Work work, const void* context) noexcept {
    const std::lock_guard<std::mutex> turn(turn_);
    const unsigned helpers = started(threads - 1);
    work_ = work;
    context_ = context;
    count_ = count;
    helpers_ = helpers;
    next_.store(0, std::memory_order_relaxed);
    if (helpers > 0) {
      open();
    }
    inside = true;
    work_through(0);
    inside = false;
    if (helpers > 0) {
      close();
    }
  }

 private:
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kInside = kOpen - 1;
  static constexpr std::uint64_t kJob = std::uint64_t{1} << 32;

  /// Starts threads until there are `wanted`; answers how many of these there are.
  unsigned started(unsigned wanted) noexcept {
    while (running_ < wanted) {
      try {
        // Detached: the pool is never destroyed, and its threads end with the process.
        std::thread([this, place = running_] { serve(place); }).detach();
      } catch (...) {
        break;
      }
      ++running_;
    }
    return std::min(wanted, running_);
  }

  void open() noexcept {
    const std::uint64_t job = (state_.load(std::memory_order_relaxed) & ~(kJob - 1)) + kJob;
    // Sequentially consistent with `sleeping_`: either a helper sees this job before it sleeps, or it is seen asleep.
    state_.store(job | kOpen, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      { const std::lock_guard<std::mutex> lock(sleep_); }
      wake_.notify_all();
    }
  }

  void close() noexcept {
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    unsigned turns = 0;
    while ((state_.load(std::memory_order_acquire) & kInside) != 0) {
      // On a crowded machine the helper that is waited for may need this very core.
      if (++turns % 1024 == 0) {
        std::this_thread::yield();
      }
      relax();
    }
  }

  void work_through(unsigned slot) noexcept {
    for (;;) {
      const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count_) {
        return;
      }
      work_(context_, index, slot);
    }
  }

  [[noreturn]] void serve(unsigned place) noexcept {
    inside = true;
    std::uint64_t seen = 0;
    for (;;) {
      seen = wait_for_job(seen);
      if (join(seen)) {
        if (place < helpers_) {
          work_through(place + 1);
        }
        state_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  /// Waits for a job other than `seen`, and answers which.
  std::uint64_t wait_for_job(std::uint64_t seen) noexcept {
    const auto is_new = [&](std::uint64_t state) { return (state & kOpen) != 0 && state / kJob != seen; };
    std::uint64_t state = state_.load(std::memory_order_acquire);
    const auto end = std::chrono::steady_clock::now() + kWatch;
    for (unsigned turns = 1; !is_new(state); ++turns) {
      relax();
      state = state_.load(std::memory_order_acquire);
      if (turns % 64 == 0 && std::chrono::steady_clock::now() >= end) {
        break;
      }
    }
    if (!is_new(state)) {
      std::unique_lock<std::mutex> lock(sleep_);
      sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] {
        state = state_.load(std::memory_order_seq_cst);
        return is_new(state);
      });
      sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    return state / kJob;
  }

  /// Enters the job unless it has closed.
  bool join(std::uint64_t job) noexcept {
    std::uint64_t state = state_.load(std::memory_order_acquire);
    while ((state & kOpen) != 0 && state / kJob == job) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
        return true;
      }
    }
    return false;
  }

  std::mutex turn_;
  unsigned running_ = 0;

  // The job. Written before it opens and, but for `next_`, not before everyone has left it.
  Work work_ = nullptr;
  const void* context_ = nullptr;
  std::size_t count_ = 0;
  unsigned helpers_ = 0;
  alignas(64) std::atomic<std::size_t> next_{0};

  alignas(64) std::atomic<std::uint64_t> state_{0};

  alignas(64) std::atomic<unsigned> sleeping_{0};
  std::mutex sleep_;
  std::condition_variable wake_;
};

/// Never destroyed: its threads may still look at it while the process ends.
Pool& pool() {
  alignas(Pool) static std::byte place[sizeof(Pool)];
  static Pool* const instance = new (place) Pool;
  return *instance;
}

}  // namespace

unsigned slots(unsigned threads, std::size_t count) noexcept {
  const std::size_t most = std::min<std::size_t>(std::clamp(threads, 1u, kMostThreads), count);
  return static_cast<unsigned>(std::max<std::size_t>(most, 1));
}

void run_parallel(unsigned threads, std::size_t count, Work work, const void* context) noexcept {
  const unsigned sharing = slots(threads, count);
  if (sharing == 1 || inside) {
    for (std::size_t index = 0; index < count; ++index) {
      work(context, index, 0);
    }
    return;
  }
  pool().run(sharing, count, work, context);
}

}  // namespace mlxcel::kernels
