#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>

#include <ATen/ATen.h>

#include <dlfcn.h>

#include "tessera/base/child_process.h"
#include "tessera/base/error.h"
#include "tessera/base/stopwatch.h"

#include "cli/blas_kernel.h"
#include "cli/doctor/measure.h"
#include "cli/launch/mpirun_command.h"

namespace tessera::cli::doctor {

namespace {

/// The shortest of several runs within some time: other programs only add.
template <typename Function>
double best_seconds(const Function& function, double budget_s = 0.4) {
  function(); // first use builds kernels and touches memory
  double best = 1e9;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    function();
    best = std::min(best, seconds_since(start));
  } while (seconds_since(begin) < budget_s);
  return best;
}

double gflops_of_size(at::ScalarType dtype, std::int64_t size) {
  const at::Tensor a = at::randn({size, size}).to(dtype);
  const at::Tensor b = at::randn({size, size}).to(dtype);
  at::Tensor c = at::empty({size, size}, a.options());
  const double seconds = best_seconds([&] { at::matmul_out(c, a, b); });
  return 2e-9 * static_cast<double>(size * size * size) / seconds;
}

/// A large product, unless that would take long.
double gflops(at::ScalarType dtype) {
  constexpr double kLongS = 0.5;
  const double small = gflops_of_size(dtype, 256);
  const double expected_s = 2e-9 * 1024.0 * 1024.0 * 1024.0 / small;
  return expected_s > kLongS ? small : gflops_of_size(dtype, 1024);
}

double f32_error() {
  const at::Tensor a = at::randn({256, 256}, at::kDouble);
  const at::Tensor b = at::randn({256, 256}, at::kDouble);
  const at::Tensor exact = at::matmul(a, b);
  const at::Tensor found = at::matmul(a.to(at::kFloat), b.to(at::kFloat)).to(at::kDouble);
  return (found - exact).abs().max().item<double>() / exact.abs().max().item<double>();
}

/// The file that holds the sgemm_ which libtorch calls.
std::string blas_library() {
  void* sgemm = dlsym(RTLD_DEFAULT, "sgemm_");
  Dl_info info{};
  if (sgemm == nullptr || dladdr(sgemm, &info) == 0) {
    return "unknown";
  }
  const std::unique_ptr<char, decltype(&std::free)> real(
      realpath(info.dli_fname, nullptr), &std::free);
  return real ? real.get() : info.dli_fname;
}

/// Each optimised library has a function of its own, in the file that holds
/// sgemm_ or in one that this file needs. (Another BLAS may be in the process
/// besides, for somebody else.)
bool is_optimised(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) {
    return false;
  }
  bool found = false;
  for (const char* name :
       {"openblas_get_config", "MKL_Get_Version", "bli_info_get_version_str", "ATL_buildinfo"}) {
    found = found || dlsym(handle, name) != nullptr;
  }
  dlclose(handle);
  return found;
}

} // namespace

ProductFacts measure_products() {
  at::manual_seed(1);
  ProductFacts facts;
  facts.provider = blas_library();
  facts.optimised = is_optimised(facts.provider);
  facts.kernel = facts.optimised ? picked_blas_kernel() : "";
  facts.f32_error = f32_error();
  facts.f32_gflops = gflops(at::kFloat);
  facts.bf16_gflops = gflops(at::kBFloat16);
  return facts;
}

std::optional<KernelTrial> try_better_kernel(
    const std::string& picked,
    const std::string& program) {
  const auto kernel = better_blas_kernel(picked, processor_features());
  if (!kernel) {
    return std::nullopt;
  }
  // A process of its own: OpenBLAS picks when it is loaded.
  const std::vector<std::string> command = {
      "env", "OPENBLAS_CORETYPE=" + *kernel, program, "doctor", "--products-only"};
  ChildProcess child(command, ", which tries a kernel");
  std::istringstream answer(child.read_to_end());
  std::string name;
  double f32_gflops = 0;
  if (!(answer >> name >> f32_gflops)) {
    throw Error(str("doctor: no answer from '", quoted(command), "', which tries a kernel"));
  }
  return KernelTrial{name, f32_gflops};
}

double measure_copy() {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  // A compiler leaves out a copy to memory that nobody reads; it cannot know that of a tensor's.
  const at::Tensor from = at::ones({kBytes}, at::kChar);
  const at::Tensor to = at::zeros({kBytes}, at::kChar);
  const double seconds =
      best_seconds([&] { std::memcpy(to.data_ptr(), from.data_ptr(), kBytes); }, 0.2);
  return static_cast<double>(kBytes) / seconds;
}

} // namespace tessera::cli::doctor
