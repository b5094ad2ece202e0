#pragma once

#include <string>

#include "tessera/comm/world.h"

#include "cli/doctor/facts.h"

namespace tessera::cli::doctor {

/// Measures which BLAS is in use, and the speed and correctness of matrix products with this
/// process's threads.
ProductFacts measure_products();

/// Measures the kernel that may be better than `picked` in a process of its own, started as
/// `program` doctor --products-only. Returns nothing when `picked` uses the widest vectors of the
/// processor.
std::optional<KernelTrial> try_better_kernel(const std::string& picked, const std::string& program);

/// Measures a copy of 64 MiB by one thread. Units: bytes copied a second.
double measure_copy();

/// Fills the clock fields of `facts`. Collective over the world.
void measure_clock(comm::World& world, RankFacts& facts);

/// Measures how many bytes of a 16 MiB f32 tensor an all-reduce sums in a second; 0 for one rank.
/// Collective over the group.
double measure_all_reduce(comm::ProcessGroup& group);

/// Collects the facts of all ranks on rank 0. Collective over the world.
void gather(
    comm::World& world,
    const comm::ProcessGroup& group,
    const RankFacts& facts,
    Examination& examination);

} // namespace tessera::cli::doctor
