#include "tessera/sharding/part_service.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include <pthread.h>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::sharding {

namespace {

// Messages wake it, so it looks for its end rarely.
constexpr std::chrono::milliseconds kLookForEnd{100};
constexpr std::chrono::milliseconds kLongestEnd = std::chrono::seconds(10);
// Ranks of one node send each other nothing but that they leave.
constexpr std::int64_t kBufferBytes = 64 << 10;

at::Tensor bytes_at(std::byte* at, std::size_t bytes) {
  return at::from_blob(at, {static_cast<std::int64_t>(bytes)}, at::kByte);
}

} // namespace

/// What stands in a message's fixed fields.
struct PartService::Fields {
  enum class Kind : std::int32_t {
    kRequest,
    kReply,
    kLeave, // the sender asks for nothing of this model any more
    kEnd, // the sender's last message
  };
  Kind kind = Kind::kEnd;
  std::int32_t model = 0;
  std::int32_t parameter = 0;

  transport::Header header() const {
    transport::Header header{};
    static_assert(sizeof(Fields) <= sizeof(transport::Header));
    std::memcpy(header.data(), this, sizeof(Fields));
    return header;
  }
  static Fields of(const transport::Header& header) {
    Fields fields;
    std::memcpy(&fields, header.data(), sizeof(Fields));
    return fields;
  }
};

PartService::PartService(comm::World& world, std::vector<int> ranks)
    : ranks_(std::move(ranks)),
      rank_(static_cast<int>(
          std::lower_bound(ranks_.begin(), ranks_.end(), world.rank()) - ranks_.begin())),
      timeout_(world.options().timeout),
      transport_(transport::make_transport(world, ranks_, {.buffer_bytes = kBufferBytes})),
      thread_([this] { run(); }) {}

/// No message may be under way to a transport that ends: the next one that is made between these
/// ranks would take it for its own.
PartService::~PartService() {
  ending_.store(true);
  try {
    for (const int rank : ranks_) {
      transport_->send(rank, Fields{}.header(), {});
    }
  } catch (const std::exception& error) {
    log::warning(str("ranks of a shard group do not learn that this one ends: ", error.what()));
  }
  thread_.join();
}

int PartService::add(Model model) {
  const std::lock_guard lock(mutex_);
  models_.emplace(next_model_, std::make_shared<Served>(Served{std::move(model), 0}));
  return next_model_++;
}

void PartService::leave(int model) {
  for (const int rank : ranks_) {
    transport_->send(rank, Fields{Fields::Kind::kLeave, model, 0}.header(), {});
  }
}

std::shared_ptr<PartService::Served> PartService::served(int model) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(model);
  return found == models_.end() ? nullptr : found->second;
}

/// Whose parts this rank of the group sends in a message, as positions in the group.
std::vector<int> PartService::positions_sent_by(const Model& model, int position) const {
  if (!model.by_node) {
    return {position};
  }
  return *std::find_if(
      model.nodes.members.begin(), model.nodes.members.end(), [&](const std::vector<int>& node) {
        return std::binary_search(node.begin(), node.end(), position);
      });
}

void PartService::fetch(int number, int index) {
  throw_if_failed();
  const auto served = this->served(number);
  TESSERA_CHECK(served != nullptr);
  const Model& model = served->model;
  const Parameter& parameter = model.parameters.at(index);
  if (parameter.whole != parameter.parts) {
    for (const int position : model.nodes.members[model.nodes.own]) {
      const std::size_t place = position * parameter.part_bytes;
      std::memcpy(parameter.whole + place, parameter.parts + place, parameter.part_bytes);
    }
  }
  // Every rank of a node asks another one of the other node, so that they share the answers.
  std::vector<int> asked;
  for (std::size_t node = 0; node < model.nodes.members.size(); ++node) {
    const std::vector<int>& members = model.nodes.members[node];
    if (node == model.nodes.own) {
      continue;
    }
    if (model.by_node) {
      asked.push_back(members[model.nodes.position(rank_) % members.size()]);
    } else {
      asked.insert(asked.end(), members.begin(), members.end());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    const bool added = under_way_.emplace(std::pair(number, index), asked.size()).second;
    TESSERA_CHECK(added);
  }
  for (const int position : asked) {
    const Fields fields{Fields::Kind::kRequest, number, index};
    transport_->send(ranks_[position], fields.header(), {});
  }
}

void PartService::drain(int model) {
  std::unique_lock lock(mutex_);
  const auto none = [&] {
    const auto next = under_way_.lower_bound({model, 0});
    return next == under_way_.end() || next->first.first != model;
  };
  changed_.wait_for(lock, timeout_, [&] { return failure_ != nullptr || none(); });
  if (none()) {
    return;
  }
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
  throw CommError(
      str("rank ",
          ranks_[rank_],
          " has waited ",
          timeout_.count() / 1000.0,
          " s for parameters that it gathered ahead of their use, of which ranks of other nodes "
          "keep parts (sharded_data_parallel_degree); see whether one of them has ended, or write "
          "a longer timeout_seconds"));
}

void PartService::throw_if_failed() const {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

PartService::Counts PartService::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void PartService::run() {
  ::pthread_setname_np(::pthread_self(), "tessera-parts");
  std::size_t ended = 0;
  std::optional<Deadline> end;
  try {
    while (ended < ranks_.size()) {
      if (ending_.load() && !end) {
        end.emplace(std::min(timeout_, kLongestEnd));
      }
      if (end && end->passed()) {
        log::warning(
            str("of ",
                ranks_.size(),
                " ranks of a shard group only ",
                ended,
                " have ended in time, and this one goes on without them"));
        return;
      }
      const auto parcel = transport_->receive(kLookForEnd);
      if (!parcel) {
        continue;
      }
      const Fields fields = Fields::of(parcel->header);
      if (fields.kind == Fields::Kind::kRequest) {
        answer(parcel->source, fields);
      } else if (fields.kind == Fields::Kind::kReply) {
        take(parcel->source, fields, parcel->body.toTensor());
      } else if (fields.kind == Fields::Kind::kLeave) {
        count_leave(fields.model);
      } else {
        ++ended;
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

/// Parts do not change while a rank may ask for them (DividedParameters::before_writing).
void PartService::answer(int source, const Fields& request) {
  const auto served = this->served(request.model);
  TESSERA_CHECK(served != nullptr); // whoever asks has not left
  const Parameter& parameter = served->model.parameters.at(request.parameter);
  std::vector<at::Tensor> parts;
  for (const int position : positions_sent_by(served->model, rank_)) {
    parts.push_back(
        bytes_at(parameter.parts + position * parameter.part_bytes, parameter.part_bytes));
  }
  const Fields fields{Fields::Kind::kReply, request.model, request.parameter};
  transport_->send_packed(source, fields.header(), parts);
}

void PartService::take(int source, const Fields& reply, const at::Tensor& parts) {
  const auto served = this->served(reply.model);
  std::vector<int> positions;
  if (served != nullptr) { // all may have left it, with a parameter on its way here
    const Parameter& parameter = served->model.parameters.at(reply.parameter);
    const auto from = std::lower_bound(ranks_.begin(), ranks_.end(), source) - ranks_.begin();
    positions = positions_sent_by(served->model, static_cast<int>(from));
    const std::vector<std::int64_t> places = transport::packed_places(std::vector<std::int64_t>(
        positions.size(), static_cast<std::int64_t>(parameter.part_bytes)));
    TESSERA_CHECK(parts.numel() == places.back());
    const auto* bytes = static_cast<const std::byte*>(parts.data_ptr());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(
          parameter.whole + positions[i] * parameter.part_bytes,
          bytes + places[i],
          parameter.part_bytes);
    }
  }
  const std::lock_guard lock(mutex_);
  ++counts_.messages;
  counts_.parts += static_cast<std::int64_t>(positions.size());
  counts_.bytes += parts.numel();
  const auto under_way = under_way_.find({reply.model, reply.parameter});
  TESSERA_CHECK(under_way != under_way_.end());
  if (--under_way->second > 0) {
    return;
  }
  // One step for `fetch`, which may be called for it as soon as it is announced, and for `drain`.
  if (served != nullptr) {
    served->model.arrived(reply.parameter);
  }
  under_way_.erase(under_way);
  changed_.notify_all();
}

void PartService::count_leave(int model) {
  std::shared_ptr<Served> gone; // its memory goes without the lock
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(model);
  TESSERA_CHECK(found != models_.end());
  if (++found->second->left == ranks_.size()) {
    gone = found->second;
    models_.erase(found);
  }
}

} // namespace tessera::sharding
