#include "table.h"

namespace mlxcel::kernels {

namespace generic {
extern const Kernels kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kTable;
}
namespace avx512 {
extern const Kernels kTable;
}
#endif

namespace {

struct Usable {
  const Kernels* kernels[3];
  std::size_t count = 0;

  Usable() {
#if defined(__x86_64__)
    // These ask the operating system too, which must save the registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) {
      kernels[count++] = &avx512::kTable;
    }
    if (avx2) {
      kernels[count++] = &avx2::kTable;
    }
#endif
    kernels[count++] = &generic::kTable;
  }
};

const Usable& usable() {
  static const Usable found;
  return found;
}

}  // namespace

const Kernels& kernels() {
  return *usable().kernels[0];
}

const Kernels* const* every_kernels(std::size_t& count) {
  count = usable().count;
  return usable().kernels;
}

}  // namespace mlxcel::kernels
