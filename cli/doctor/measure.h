#pragma once

#include <string>

#include "tessera/comm/world.h"

#include "cli/doctor/facts.h"

namespace tessera::cli::doctor {

/// BLAS in use, speed and correctness of products with this process's threads.
ProductFacts measure_products();

/// Starts `program` doctor --products-only with each kernel that might be
/// better than the one picked; none when the pick is as wide as the processor.
std::optional<KernelTrial> try_better_kernel(const std::string& picked, const std::string& program);

/// One thread copies 64 MiB. Units: bytes copied a second.
double measure_copy();

/// Fills the clock fields of `facts`. Collective over the world.
void measure_clock(comm::World& world, RankFacts& facts);

/// Bytes of a 16 MiB f32 tensor that an all-reduce sums in a second; 0 for one
/// rank. Collective over the group.
double measure_all_reduce(comm::ProcessGroup& group);

/// All ranks' facts on rank 0. Collective over the world.
void gather(
    comm::World& world,
    const comm::ProcessGroup& group,
    const RankFacts& facts,
    Examination& examination);

} // namespace tessera::cli::doctor
