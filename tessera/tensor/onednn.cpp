#include "tessera/tensor/onednn.h"

#include <cstdlib>

#include <torch/version.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tessera {

namespace {

bool has_amx_bf16() {
#if defined(__x86_64__)
  constexpr unsigned kAmxBf16 = 1U << 22U; // leaf 7, EDX
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
#else
  return false;
#endif
}

} // namespace

void avoid_faulty_amx() {
  if (TORCH_VERSION_MAJOR < 2 && has_amx_bf16()) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
    ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
  }
}

} // namespace tessera
