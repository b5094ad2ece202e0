#include <algorithm>
#include <cmath>
#include <set>

#include "tessera/base/error.h"
#include "tessera/report/format.h"

#include "cli/doctor/facts.h"

namespace tessera::cli::doctor {

namespace {

// An optimised library reaches 20 GFLOP/s on any core of the last ten years;
// the reference one 1 to 4.
constexpr double kSlowGflopsPerThread = 8;
// A product over 256 elements of f32 is off by some 1e-6; a broken kernel by 1.
constexpr double kWrongProduct = 1e-3;
constexpr double kWorthwhile = 1.15;
constexpr std::int64_t kLeastMemory = std::int64_t{256} << 20;
// Timelines of several hosts are laid over each other by their clocks.
constexpr double kClockOffsetUs = 1000;

class Findings {
 public:
  void add(int rank, bool fatal, const std::string& what, const std::string& advice) {
    for (Finding& finding : list_) {
      if (finding.what == what && finding.advice == advice) {
        finding.ranks.push_back(rank);
        return;
      }
    }
    list_.push_back({fatal, what, advice, {rank}});
  }
  void warn(int rank, const std::string& what, const std::string& advice) {
    add(rank, false, what, advice);
  }
  std::vector<Finding> take() {
    std::stable_sort(list_.begin(), list_.end(), [](const auto& a, const auto& b) {
      return a.fatal && !b.fatal;
    });
    return std::move(list_);
  }

 private:
  std::vector<Finding> list_;
};

void judge_mpi(const RankFacts& facts, const RankFacts& first, Findings& out) {
  if (facts.thread_level != "multiple") {
    out.add(
        facts.rank,
        true,
        str("MPI grants thread level '", facts.thread_level, "' where 'multiple' is needed"),
        "use an MPI built with thread support (Debian packages "
        "libopenmpi-dev, openmpi-bin)");
  }
  if (facts.mpi != first.mpi) {
    out.warn(
        facts.rank,
        str("MPI is ", facts.mpi, " here and ", first.mpi, " on rank 0"),
        "install the same version on all hosts");
  }
}

void judge_products(const RankFacts& facts, Findings& out) {
  const ProductFacts& products = facts.products;
  if (!(products.f32_error <= kWrongProduct)) {
    out.add(
        facts.rank,
        true,
        str("products in f32 are wrong: relative error ",
            report::format_number(products.f32_error, 3),
            " with ",
            products.provider),
        "choose another BLAS (update-alternatives --list "
        "libblas.so.3-x86_64-linux-gnu) or kernel (OPENBLAS_CORETYPE=Haswell)");
  }
  if (!products.optimised) {
    out.warn(
        facts.rank,
        str("the BLAS in use is the reference one (", products.provider, ")"),
        "install the Debian package libopenblas0-openmp: products are about "
        "20 times faster");
  } else if (products.f32_gflops < kSlowGflopsPerThread * std::max(1, facts.threads)) {
    out.warn(
        facts.rank,
        "products in f32 run below 8 GFLOP/s a thread",
        "look for other programs on this machine, and at OPENBLAS_CORETYPE "
        "and OMP_NUM_THREADS");
  }
  if (products.trial && products.trial->f32_gflops > kWorthwhile * products.f32_gflops) {
    out.warn(
        facts.rank,
        str("OpenBLAS picked its kernel '",
            products.kernel,
            "'; '",
            products.trial->kernel,
            "' is faster on this processor"),
        str("set OPENBLAS_CORETYPE=",
            products.trial->kernel,
            "; tessera launch does so when it starts ranks on one machine"));
  }
}

void judge_machine(const RankFacts& facts, const RankFacts& first, Findings& out) {
  const int wanted = facts.threads * facts.local_size;
  if (facts.local_size > facts.cores) {
    out.warn(
        facts.rank,
        str("host ", facts.host, " has ", facts.cores, " cores for ", facts.local_size, " ranks"),
        "expect ranks to take turns: use fewer ranks or more hosts for speed");
  } else if (wanted > facts.cores) {
    out.warn(
        facts.rank,
        str("host ",
            facts.host,
            ": ",
            facts.local_size,
            " ranks with ",
            facts.threads,
            " threads each want more than its ",
            facts.cores,
            " cores"),
        str("start with tessera launch, or set OMP_NUM_THREADS=",
            std::max(1, facts.cores / facts.local_size)));
  }
  if (facts.processor != first.processor) {
    out.warn(
        facts.rank,
        str("host ",
            facts.host,
            " has another processor (",
            facts.processor,
            ") than rank 0's (",
            first.processor,
            ")"),
        "the slowest rank sets the pace of every step");
  }
  const std::int64_t free_bytes = facts.memory.free();
  if (free_bytes < kLeastMemory * facts.local_size) {
    out.warn(
        facts.rank,
        str("host ",
            facts.host,
            " has ",
            report::format_bytes(static_cast<double>(std::max<std::int64_t>(free_bytes, 0))),
            " of memory left for ",
            facts.local_size,
            facts.local_size == 1 ? " rank" : " ranks"),
        "end other programs, raise the container's memory limit, or use fewer "
        "ranks a host");
  }
  if (std::abs(facts.clock_offset_us) > kClockOffsetUs + facts.clock_error_us) {
    out.warn(
        facts.rank,
        str("the clock of host ",
            facts.host,
            " is off against rank 0's by ",
            report::format_seconds(std::abs(facts.clock_offset_us) * 1e-6)),
        "run a time service (Debian package chrony); timelines of the two "
        "hosts do not line up");
  }
}

} // namespace

std::vector<Finding> judge(const Examination& examination) {
  Findings out;
  if (examination.ranks.empty()) {
    return {};
  }
  const RankFacts& first = examination.ranks.front();
  for (const RankFacts& facts : examination.ranks) {
    judge_mpi(facts, first, out);
    judge_products(facts, out);
    judge_machine(facts, first, out);
  }
  return out.take();
}

bool any_fatal(const std::vector<Finding>& findings) {
  return std::any_of(
      findings.begin(), findings.end(), [](const Finding& finding) { return finding.fatal; });
}

} // namespace tessera::cli::doctor
