#include "tessera/checkpoint/merge.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/state/fields.h"

namespace tessera::checkpoint {

namespace {

std::int64_t count(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    elements *= size;
  }
  return elements;
}

// The pieces stored under one name: either one whole tensor, or all slices of one.
struct Pieces {
  std::vector<std::pair<const TensorRecord*, int>> records; // with rank
};

std::string problem_of(const std::string& name, const Pieces& pieces) {
  const auto& [first, first_rank] = pieces.records.front();
  std::int64_t held = 0;
  for (std::size_t i = 0; i < pieces.records.size(); ++i) {
    const auto& [record, rank] = pieces.records[i];
    held += count(record->shape);
    if (i == 0) {
      continue;
    }
    if (record->slice.whole() || first->slice.whole() ||
        record->slice.offset == pieces.records[i - 1].first->slice.offset) {
      return str(
          "\n  ",
          name,
          " is written by rank ",
          pieces.records[i - 1].second,
          " and by rank ",
          rank,
          "; one of them must leave it out");
    }
    if (record->slice.global_shape != first->slice.global_shape || record->dtype != first->dtype) {
      return str(
          "\n  ranks ",
          first_rank,
          " and ",
          rank,
          " hold slices of ",
          name,
          " that differ in global shape or dtype");
    }
  }
  if (!first->slice.whole() && held != count(first->slice.global_shape)) {
    return str(
        "\n  the slices of ",
        name,
        " hold ",
        held,
        " of its ",
        count(first->slice.global_shape),
        " elements");
  }
  return "";
}

std::vector<TensorRecord> merge_tensors(
    const std::vector<RankFiles>& ranks,
    std::vector<TensorRecord> RankFiles::*list,
    std::string& problems) {
  std::map<std::string, Pieces> by_name;
  for (const auto& rank : ranks) {
    for (const auto& record : rank.*list) {
      by_name[record.name].records.emplace_back(&record, rank.rank);
    }
  }
  std::vector<TensorRecord> merged;
  for (auto& [name, pieces] : by_name) {
    std::stable_sort(
        pieces.records.begin(), pieces.records.end(), [](const auto& a, const auto& b) {
          return a.first->slice.offset < b.first->slice.offset;
        });
    problems += problem_of(name, pieces);
    for (const auto& [record, rank] : pieces.records) {
      merged.push_back(*record);
    }
  }
  return merged;
}

OptimizerRecord merge_optimizers(const std::vector<RankFiles>& ranks, std::string& problems) {
  OptimizerRecord merged;
  std::set<std::string> numbers;
  std::vector<std::set<std::string>> names;
  int kind_rank = 0;
  for (const auto& rank : ranks) {
    const OptimizerRecord& part = rank.optimizer;
    if (part.kind.empty()) {
      continue;
    }
    if (merged.kind.empty()) {
      merged.kind = part.kind;
      kind_rank = rank.rank;
    } else if (merged.kind != part.kind) {
      problems +=
          str("\n  rank ",
              kind_rank,
              " has the optimizer ",
              merged.kind,
              ", rank ",
              rank.rank,
              " has ",
              part.kind);
      continue;
    }
    numbers.insert(part.number_fields.begin(), part.number_fields.end());
    for (std::size_t i = 0; i < part.groups.size(); ++i) {
      const auto& group = part.groups[i];
      if (i == merged.groups.size()) {
        merged.groups.push_back({{}, group.options});
        names.emplace_back();
      }
      auto& whole = merged.groups[i];
      if (!state::same_fields(whole.options, group.options)) {
        problems +=
            str("\n  options of optimizer group ",
                i,
                " differ between rank ",
                kind_rank,
                " and rank ",
                rank.rank,
                "; set learning rates alike on all ranks");
      }
      for (const auto& name : group.parameters) {
        // Ranks of a tensor-parallel group each hold a slice of it.
        if (names[i].insert(name).second) {
          whole.parameters.push_back(name);
        }
      }
    }
  }
  // Any order of ranks and parameters gives the same record.
  for (auto& group : merged.groups) {
    std::sort(group.parameters.begin(), group.parameters.end());
  }
  merged.number_fields.assign(numbers.begin(), numbers.end());
  return merged;
}

} // namespace

void merge_ranks(const std::vector<RankFiles>& ranks, Meta& meta) {
  std::string problems;
  std::set<std::string> files;
  for (const auto& rank : ranks) {
    for (const auto& file : rank.files) {
      if (!files.insert(file.name).second) {
        problems +=
            str("\n  rank ",
                rank.rank,
                " wrote ",
                file.name,
                ", as another rank did; give every rank its own coordinates");
      }
      meta.files.push_back(file);
    }
  }
  std::sort(meta.files.begin(), meta.files.end(), [](const FileEntry& a, const FileEntry& b) {
    return a.name < b.name;
  });
  meta.tensors = merge_tensors(ranks, &RankFiles::model, problems);
  meta.optimizer_tensors = merge_tensors(ranks, &RankFiles::optimizer_tensors, problems);
  meta.optimizer = merge_optimizers(ranks, problems);
  if (!problems.empty()) {
    throw CheckpointError("the ranks' parts do not make one:" + problems);
  }
  meta.parameter_hash = combined_hash(meta.tensors);
  meta.optimizer_hash = combined_hash(meta.optimizer_tensors, meta.optimizer);
}

} // namespace tessera::checkpoint
