#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/autotune/probe/pair.h"
#include "tessera/base/host.h"

namespace tessera::cli::doctor {

/// A kernel of OpenBLAS that was tried in a process of its own.
struct KernelTrial {
  std::string kernel;
  double f32_gflops = 0;
};

/// Dense products as training runs them. Units: 1e9 floating-point operations
/// a second, with this rank's number of threads, all ranks at the same time.
struct ProductFacts {
  std::string provider; // file that holds sgemm_
  bool optimised = false; // false: the reference BLAS
  std::string kernel; // what OpenBLAS picked, "" for other libraries
  double f32_gflops = 0;
  double bf16_gflops = 0;
  double f32_error = 0; // largest relative error against f64
  std::optional<KernelTrial> trial;
};

/// What one rank found about itself and its machine.
struct RankFacts {
  int rank = 0;
  int local_rank = 0;
  int local_size = 1;
  std::string host;
  std::string mpi; // library and version
  std::string thread_level; // that MPI granted
  std::string processor;
  std::vector<std::string> features; // of those that matter here
  int cores = 1; // physical, that this rank may use
  int threads = 1; // of this rank's products
  ProductFacts products;
  HostMemory memory;
  double copy_bytes_per_s = 0; // read and written once each
  double clock_offset_us = 0; // against rank 0; within +- clock_error_us
  double clock_error_us = 0;
};

using autotune::PairFacts;

struct Finding {
  bool fatal = false; // training is impossible
  std::string what;
  std::string advice;
  std::vector<int> ranks;
};

struct Examination {
  std::vector<RankFacts> ranks; // by rank
  std::vector<PairFacts> pairs;
  std::vector<int> unmeasured; // ranks left out of the pairs
  double all_reduce_bytes_per_s = 0; // 16 MiB f32 over all ranks; 0: one rank
  std::vector<Finding> findings;
};

/// Serialise one rank's facts for a message between ranks, and read them again.
/// Throws: Error when the text was not made by to_text.
std::string to_text(const RankFacts& facts);
RankFacts rank_facts_from_text(const std::string& text);

/// Returns the examination as JSON for programs; its keys are the names of the fields above.
std::string to_json(const Examination& examination);

/// Applies the rules to what was measured, and to nothing else. Equal findings of several ranks are
/// returned as one.
std::vector<Finding> judge(const Examination& examination);

bool any_fatal(const std::vector<Finding>& findings);

/// Returns the examination as tables for people.
std::string to_tables(const Examination& examination);

} // namespace tessera::cli::doctor
