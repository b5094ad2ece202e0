#pragma once

#include "cli/doctor/facts.h"

namespace tessera::cli::doctor::test {

/// A rank that has nothing to mend.
inline RankFacts healthy(int rank, int local_size = 1) {
  RankFacts facts;
  facts.rank = rank;
  facts.local_rank = rank % local_size;
  facts.local_size = local_size;
  facts.host = rank < local_size ? "north" : "south";
  facts.mpi = "Open MPI v4.1.4 (MPI 3.1)";
  facts.thread_level = "multiple";
  facts.processor = "Processor";
  facts.features = {"avx2", "fma"};
  facts.cores = 4;
  facts.threads = 2;
  facts.products.provider = "/usr/lib/libopenblas.so.0";
  facts.products.optimised = true;
  facts.products.kernel = "Haswell";
  facts.products.f32_gflops = 80.5;
  facts.products.bf16_gflops = 12.25;
  facts.products.f32_error = 1e-6;
  facts.memory.total = std::int64_t{16} << 30;
  facts.memory.available = std::int64_t{12} << 30;
  facts.copy_bytes_per_s = 1e10;
  return facts;
}

} // namespace tessera::cli::doctor::test
