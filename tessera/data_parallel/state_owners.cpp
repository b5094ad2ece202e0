#include "tessera/data_parallel/state_owners.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include <ATen/ATen.h>

namespace tessera::data_parallel {

std::vector<int> balanced_owners(
    const std::vector<std::int64_t>& elements,
    std::vector<std::int64_t>& loads) {
  std::vector<std::size_t> order(elements.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return elements[a] > elements[b];
  });
  std::vector<int> owners(elements.size());
  for (const std::size_t i : order) {
    const auto emptiest = std::min_element(loads.begin(), loads.end());
    owners[i] = static_cast<int>(emptiest - loads.begin());
    *emptiest += elements[i];
  }
  return owners;
}

StateOwners::StateOwners(
    comm::ProcessGroup& group,
    comm::ProcessGroup& control,
    NamedTensors parameters)
    : group_(group),
      control_(control),
      parameters_(std::move(parameters)),
      owners_(parameters_.size(), -1) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    index_[parameters_[i].second.unsafeGetTensorImpl()] = static_cast<int>(i);
  }
}

void StateOwners::share(const ParameterSet& shared) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(group_.size()));
  // Frozen parameters have no state unless they are thawed, so they come last.
  std::vector<std::size_t> trained;
  std::vector<std::size_t> frozen;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].second;
    if (!shared.contains(tensor.unsafeGetTensorImpl())) {
      owners_[i] = -1;
    } else if (owners_[i] < 0) {
      (tensor.requires_grad() ? trained : frozen).push_back(i);
    } else {
      loads[static_cast<std::size_t>(owners_[i])] += tensor.numel();
    }
  }
  for (const auto* list : {&trained, &frozen}) {
    std::vector<std::int64_t> elements;
    for (const std::size_t i : *list) {
      elements.push_back(parameters_[i].second.numel());
    }
    const std::vector<int> owners = balanced_owners(elements, loads);
    for (std::size_t k = 0; k < list->size(); ++k) {
      owners_[(*list)[k]] = owners[k];
    }
  }
}

int StateOwners::owner_of(const at::Tensor& parameter) const {
  const auto found = index_.find(parameter.unsafeGetTensorImpl());
  return found == index_.end() ? -1 : owners_[static_cast<std::size_t>(found->second)];
}

namespace {

constexpr std::int64_t kTravelsAlone = 256 << 10; // bytes from which a copy costs more than a call
constexpr std::int64_t kPieceBytes = 4 << 20;
constexpr std::size_t kUnderWay = 4;

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

/// Small tensors of one owner and dtype.
struct Piece {
  std::vector<at::Tensor> tensors;
  int owner = 0;
  std::int64_t bytes = 0;
  at::Tensor flat;
  comm::WorkPtr work;
};

std::deque<Piece> pieces_of(const std::vector<OwnedTensor>& tensors) {
  std::deque<Piece> pieces;
  std::map<std::pair<int, at::ScalarType>, Piece*> open;
  for (const auto& [tensor, owner] : tensors) {
    Piece*& piece = open[{owner, tensor.scalar_type()}];
    if (piece == nullptr || piece->bytes + bytes_of(tensor) > kPieceBytes) {
      piece = &pieces.emplace_back();
      piece->owner = owner;
    }
    piece->tensors.push_back(tensor);
    piece->bytes += bytes_of(tensor);
  }
  return pieces;
}

void start(comm::ProcessGroup& group, Piece& piece) {
  const at::Tensor& first = piece.tensors.front();
  std::vector<at::Tensor> rows;
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : piece.tensors) {
    elements += tensor.numel();
    if (group.rank() == piece.owner) {
      rows.push_back(tensor.reshape({-1}));
    }
  }
  piece.flat = rows.empty() ? at::empty({elements}, first.options()) : at::cat(rows);
  piece.work = group.broadcast_async(piece.flat, piece.owner);
}

void finish(comm::ProcessGroup& group, Piece& piece) {
  piece.work->wait();
  std::int64_t at = 0;
  for (const at::Tensor& tensor : piece.tensors) {
    if (group.rank() != piece.owner) {
      tensor.copy_(piece.flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    }
    at += tensor.numel();
  }
}

} // namespace

void send_values(comm::ProcessGroup& group, const std::vector<OwnedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<comm::WorkPtr> alone;
  std::vector<OwnedTensor> small;
  for (const OwnedTensor& entry : tensors) {
    const at::Tensor values = entry.tensor.detach();
    if (values.is_contiguous() && bytes_of(values) >= kTravelsAlone) {
      alone.push_back(group.broadcast_async(values, entry.owner));
    } else {
      small.push_back({values, entry.owner});
    }
  }
  // While these travel, the next ones are put together and the last ones taken apart.
  std::deque<Piece> pieces = pieces_of(small);
  for (std::size_t i = 0; i < pieces.size() + kUnderWay; ++i) {
    if (i >= kUnderWay && i - kUnderWay < pieces.size()) {
      finish(group, pieces[i - kUnderWay]);
      pieces[i - kUnderWay] = Piece();
    }
    if (i < pieces.size()) {
      start(group, pieces[i]);
    }
  }
  for (const comm::WorkPtr& work : alone) {
    work->wait();
  }
}

} // namespace tessera::data_parallel
