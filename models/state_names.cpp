#include "models/state_names.h"

#include <numeric>
#include <utility>

#include <ATen/ATen.h>

namespace tessera::models {

namespace {

at::Tensor turned(bool transposed, const at::Tensor& tensor) {
  // A bias is the same either way.
  return transposed && tensor.dim() == 2 ? tensor.t() : tensor;
}

/// [rows, ...] as [turns, rows of a turn, ...].
at::Tensor in_turns(const at::Tensor& tensor, std::int64_t rows) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] /= rows;
  sizes.insert(sizes.begin() + 1, rows);
  return tensor.reshape(sizes);
}

at::Tensor dealt_out(const std::vector<at::Tensor>& parts, const std::vector<std::int64_t>& rows) {
  std::vector<at::Tensor> turns;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    turns.push_back(in_turns(parts[i], rows[i]));
  }
  return at::cat(turns, 1).flatten(0, 1);
}

std::vector<at::Tensor> gathered(const at::Tensor& joined, const std::vector<std::int64_t>& rows) {
  const std::int64_t turn = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  const at::Tensor turns = in_turns(joined, turn);
  std::vector<at::Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t count : rows) {
    parts.push_back(turns.narrow(1, start, count).flatten(0, 1));
    start += count;
  }
  return parts;
}

} // namespace

StateTranslation& StateTranslation::tensor(
    const std::string& original,
    const std::string& distributed,
    bool transposed) {
  renamed_.push_back({original, distributed, transposed});
  return *this;
}

StateTranslation& StateTranslation::linear(
    const std::string& original,
    const std::string& distributed,
    bool transposed) {
  for (const char* name : {".weight", ".bias"}) {
    tensor(original + name, distributed + name, transposed);
  }
  return *this;
}

StateTranslation& StateTranslation::joined(
    std::vector<std::string> originals,
    const std::string& distributed) {
  joined_.push_back({std::move(originals), distributed});
  return *this;
}

StateTranslation& StateTranslation::dealt(
    std::vector<std::string> originals,
    std::vector<std::int64_t> rows,
    const std::string& distributed) {
  joined_.push_back({std::move(originals), distributed, std::move(rows)});
  return *this;
}

StateTranslation& StateTranslation::part(
    const std::string& original,
    const std::string& distributed,
    const StateTranslation& of) {
  for (const Renamed& name : of.renamed_) {
    tensor(original + name.original, distributed + name.distributed, name.transposed);
  }
  for (Joined join : of.joined_) {
    for (std::string& name : join.originals) {
      name = original + name;
    }
    join.distributed = distributed + join.distributed;
    joined_.push_back(std::move(join));
  }
  return *this;
}

nn::StateMap StateTranslation::to_distributed(const nn::StateMap& state) const {
  nn::StateMap result;
  for (const Renamed& name : renamed_) {
    const auto found = state.find(name.original);
    if (found != state.end()) {
      result[name.distributed] = turned(name.transposed, found->second);
    }
  }
  for (const Joined& join : joined_) {
    std::vector<at::Tensor> parts;
    for (const std::string& name : join.originals) {
      parts.push_back(state.at(name));
    }
    result[join.distributed] = join.rows.empty() ? at::cat(parts) : dealt_out(parts, join.rows);
  }
  return result;
}

nn::StateMap StateTranslation::to_original(const nn::StateMap& state) const {
  nn::StateMap result;
  for (const Renamed& name : renamed_) {
    const auto found = state.find(name.distributed);
    if (found != state.end()) {
      result[name.original] = turned(name.transposed, found->second);
    }
  }
  for (const Joined& join : joined_) {
    const at::Tensor& together = state.at(join.distributed);
    const auto parts = join.rows.empty()
                           ? together.chunk(static_cast<std::int64_t>(join.originals.size()))
                           : gathered(together, join.rows);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      result[join.originals[i]] = parts[i];
    }
  }
  return result;
}

} // namespace tessera::models
