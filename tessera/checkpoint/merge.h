#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/records.h"

namespace tessera::checkpoint {

// This header is private to this folder's sources.

/// Joins the records of all ranks: files, tensors, optimizer groups, hashes.
/// Throws: CheckpointError that lists tensors written twice, tensors whose parts do not form a
/// whole, and groups whose options differ between ranks.
void merge_ranks(const std::vector<RankFiles>& ranks, Meta& meta);

} // namespace tessera::checkpoint
