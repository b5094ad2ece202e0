#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/records.h"

namespace tessera::checkpoint {

// Private to this folder's sources.

/// Joins what all ranks wrote: files, tensors, optimizer groups, hashes.
/// Throws: CheckpointError that lists tensors written twice or in parts that do
/// not make a whole, and groups whose options differ between ranks.
void merge_ranks(const std::vector<RankFiles>& ranks, Meta& meta);

} // namespace tessera::checkpoint
