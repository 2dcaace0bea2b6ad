#include "mlxcel-mlx/cpp/memory.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <typeinfo>

#include "mlx/memory.h"

namespace mlxcel {

namespace alloc = mlx::core::allocator;

namespace {

// MLX's allocator on a CPU answers a null buffer where malloc failed, and its operations write to that. There is no
// way to register another allocator, so the one that there is gets another function in its table: this class's
// malloc, which throws instead. (The few bytes of MLX's own bookkeeping are beyond it: where those are missing, the
// process ends.) Of the table, the Itanium C++ ABI (every compiler on Linux and macOS) defines the layout: two words
// ahead of the address point, then the virtual functions in the order of their declaration.
constexpr size_t kHeader = 2;
constexpr size_t kFunctions = 7; // malloc, free, size, make_buffer, release, and two destructors

void* g_table[kHeader + kFunctions];
size_t g_limit = 0;

using Malloc = alloc::Buffer (*)(alloc::Allocator*, size_t);
Malloc g_malloc = nullptr;

// From here on an allocation is tried before MLX counts it: a failed one stays in its count for ever.
constexpr size_t kProbed = size_t{64} << 20;

class Guard final : public alloc::Allocator {
 public:
  // Runs with `this` being MLX's allocator, of which only the address is used.
  alloc::Buffer malloc(size_t size) override {
    size_t active = mlx::core::get_active_memory();
    if (size > g_limit || active > g_limit - size) {
      throw std::bad_alloc();
    }
    if (size >= kProbed) {
      void* probe = std::malloc(size + sizeof(size_t));
      if (probe == nullptr) {
        throw std::bad_alloc();
      }
      // Through a volatile pointer, or compilers remove the pair.
      void* volatile kept = probe;
      std::free(kept);
    }
    alloc::Buffer buffer = g_malloc(this, size);
    if (buffer.ptr() == nullptr && size > 0) {
      throw std::bad_alloc();
    }
    return buffer;
  }
  void free(alloc::Buffer) override {}
  size_t size(alloc::Buffer) const override {
    return 0;
  }
};

void** table_of(const alloc::Allocator& allocator) {
  void** table = nullptr;
  std::memcpy(&table, static_cast<const void*>(&allocator), sizeof(table));
  return table;
}

void install() {
  alloc::Allocator& allocator = alloc::allocator();
  static Guard guard;
  void** original = table_of(allocator);
  std::memcpy(g_table, original - kHeader, sizeof(g_table));
  g_malloc = reinterpret_cast<Malloc>(original[0]);
  g_table[kHeader] = table_of(guard)[0];
  void** replaced = g_table + kHeader;
  std::memcpy(static_cast<void*>(&allocator), &replaced, sizeof(replaced));
}

// The allocators of Metal and CUDA throw by themselves, and count other memory than the host's.
bool is_cpu_allocator() {
  return std::strstr(typeid(alloc::allocator()).name(), "CommonAllocator") != nullptr;
}

} // namespace

void guard_allocator(size_t limit) {
  static std::once_flag once;
  std::call_once(once, [limit] {
    g_limit = limit;
    if (is_cpu_allocator()) {
      install();
    }
  });
}

bool lends_directly() {
  return is_cpu_allocator();
}

mlx::core::array lend(const uint8_t* data, mlx::core::Shape shape, mlx::core::Dtype dtype,
                      std::function<void()> release) {
  // A buffer of this allocator is a size and then the data, and the size is looked at now and then. So the buffer
  // begins with the lent memory, whose first bytes are taken for a size, and the array begins ahead of what the
  // buffer calls its data. The size matters only where a buffer is given back to the allocator or may be written, and
  // a lent one is neither.
  auto buffer = alloc::Buffer(const_cast<uint8_t*>(data));
  auto lent = alloc::Data(buffer, [release = std::move(release)](alloc::Buffer) { release(); });
  auto a = mlx::core::array(std::move(shape), dtype, nullptr, {});
  a.set_data(std::move(lent), a.size(), a.strides(), a.flags(), -static_cast<int64_t>(sizeof(size_t)));
  a.set_status(mlx::core::array::Status::available);
  return a;
}

} // namespace mlxcel
