// Streams of the CPU, which threads take over from each other.
#include "mlxcel-mlx/cpp/streams.h"

#include <cstddef>
#include <mutex>
#include <vector>

#include "mlx/device.h"
#include "mlx/stream.h"

namespace mlxcel {

namespace mx = mlx::core;

namespace {

struct Idle {
  std::mutex mutex;
  // With room for all that were made, so that giving one back cannot fail.
  std::vector<mx::Stream> streams;
  size_t made = 0;
};

// Never destroyed: threads may end after the process has begun to.
Idle& idle() {
  static auto* idle = new Idle;
  return *idle;
}

mx::Stream take() {
  std::lock_guard lock(idle().mutex);
  auto& streams = idle().streams;
  if (!streams.empty()) {
    auto stream = streams.back();
    streams.pop_back();
    return stream;
  }
  streams.reserve(idle().made + 1);
  auto stream = mx::new_thread_unsafe_stream(mx::Device::cpu);
  idle().made += 1;
  return stream;
}

// A thread's stream, given back when the thread ends.
class Borrowed {
 public:
  Borrowed() : stream_(take()) {
    mx::set_default_stream(stream_);
  }

  ~Borrowed() {
    std::lock_guard lock(idle().mutex);
    idle().streams.push_back(stream_);
  }

 private:
  mx::Stream stream_;
};

} // namespace

void borrow_cpu_stream() {
  thread_local Borrowed borrowed;
}

} // namespace mlxcel
