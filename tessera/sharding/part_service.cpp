#include "tessera/sharding/part_service.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>

#include <pthread.h>

#include "tessera/base/error.h"

namespace tessera::sharding {

namespace {

// It answers whoever needs a part, so it looks for the end of its own life rarely.
constexpr std::chrono::milliseconds kLookForEnd{100};
// Ranks of one node send each other nothing but that they leave.
constexpr std::int64_t kBufferBytes = 64 << 10;

} // namespace

/// What stands in a message's fixed fields.
struct PartService::Fields {
  enum class Kind : std::int32_t { kRequest, kReply, kLeave };
  Kind kind = Kind::kLeave;
  std::int32_t parameter = 0;
  std::int64_t number = 0; // of the gathering, on the rank that asks

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

PartService::PartService(
    comm::World& world,
    std::vector<int> ranks,
    ShardNodes nodes,
    std::vector<Local> parameters,
    const Options& options)
    : ranks_(std::move(ranks)),
      nodes_(std::move(nodes)),
      rank_(position_of(world.rank())),
      parameters_(std::move(parameters)),
      options_(options),
      transport_(transport::make_transport(world, ranks_, {.buffer_bytes = kBufferBytes})),
      thread_([this] { run(); }) {}

PartService::~PartService() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  thread_.join();
}

int PartService::position_of(int global_rank) const {
  return static_cast<int>(
      std::lower_bound(ranks_.begin(), ranks_.end(), global_rank) - ranks_.begin());
}

std::shared_ptr<PartService::Gathering> PartService::start(int parameter) {
  const Local& local = parameters_[parameter];
  auto gathering = std::make_shared<Gathering>();
  gathering->parameter = parameter;
  gathering->whole =
      at::empty({static_cast<std::int64_t>(local.part_bytes * ranks_.size())}, at::kByte);
  auto* whole = static_cast<std::byte*>(gathering->whole.data_ptr());
  const std::vector<int>& own = nodes_.members[nodes_.own];
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::memcpy(
        whole + own[i] * local.part_bytes, local.numbers + i * local.part_bytes, local.part_bytes);
  }
  // Every rank of a node asks another one of the other node, so that they share the answers.
  std::vector<int> asked;
  for (std::size_t node = 0; node < nodes_.members.size(); ++node) {
    const std::vector<int>& members = nodes_.members[node];
    if (node == nodes_.own) {
      continue;
    }
    if (options_.by_node) {
      asked.push_back(members[nodes_.position(rank_) % members.size()]);
    } else {
      asked.insert(asked.end(), members.begin(), members.end());
    }
  }
  gathering->missing = static_cast<int>(asked.size());
  Fields fields{Fields::Kind::kRequest, parameter, 0};
  {
    const std::lock_guard lock(mutex_);
    fields.number = next_number_++;
    under_way_.emplace(fields.number, gathering);
  }
  for (const int position : asked) {
    transport_->send(ranks_[position], fields.header(), {});
  }
  return gathering;
}

template <typename Until>
void PartService::wait_until(
    std::unique_lock<std::mutex>& lock,
    const Until& until,
    const std::string& what) {
  changed_.wait_for(lock, options_.timeout, [&] { return failure_ != nullptr || until(); });
  if (until()) {
    return;
  }
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
  throw CommError(
      str("rank ",
          ranks_[rank_],
          " has waited ",
          options_.timeout.count() / 1000.0,
          " s for ",
          what,
          ", of which ranks of other nodes keep parts (sharded_data_parallel_degree); see whether "
          "one of them has ended, or write a longer timeout_seconds"));
}

void PartService::wait(const Gathering& gathering) {
  std::unique_lock lock(mutex_);
  wait_until(
      lock,
      [&] { return gathering.missing == 0; },
      str("the parameter '", parameters_[gathering.parameter].name, "'"));
}

void PartService::release(Gathering& gathering) {
  const std::lock_guard lock(mutex_);
  gathering.whole = at::Tensor();
}

void PartService::drain() {
  std::unique_lock lock(mutex_);
  wait_until(
      lock, [this] { return under_way_.empty(); }, "parameters that were gathered ahead of use");
}

void PartService::leave() {
  for (const int rank : ranks_) {
    transport_->send(rank, Fields{Fields::Kind::kLeave, 0, 0}.header(), {});
  }
}

std::int64_t PartService::messages() const {
  const std::lock_guard lock(mutex_);
  return messages_;
}

void PartService::run() {
  ::pthread_setname_np(::pthread_self(), "tessera-parts");
  std::size_t left = 0;
  try {
    while (left < ranks_.size()) {
      {
        const std::lock_guard lock(mutex_);
        if (stop_) {
          return;
        }
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
      } else {
        ++left;
      }
    }
    parameters_.clear(); // nobody asks for them any more
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

/// Parts do not change while a rank may ask for them (DividedParameters::before_writing).
void PartService::answer(int source, const Fields& request) {
  const Local& local = parameters_.at(request.parameter);
  const std::size_t count = options_.by_node ? nodes_.members[nodes_.own].size() : 1;
  const std::size_t first = options_.by_node ? 0 : nodes_.position(rank_);
  const at::Tensor parts = at::from_blob(
      const_cast<std::byte*>(local.numbers + first * local.part_bytes), // it is only read
      {static_cast<std::int64_t>(count * local.part_bytes)},
      at::kByte);
  transport_->send(
      source, Fields{Fields::Kind::kReply, request.parameter, request.number}.header(), parts);
}

void PartService::take(int source, const Fields& reply, const at::Tensor& parts) {
  std::shared_ptr<Gathering> gathering;
  at::Tensor whole; // a release may come between
  {
    const std::lock_guard lock(mutex_);
    gathering = under_way_.at(reply.number);
    whole = gathering->whole;
  }
  if (whole.defined()) {
    const int from = position_of(source);
    const auto node = std::find_if(
        nodes_.members.begin(), nodes_.members.end(), [&](const std::vector<int>& members) {
          return std::binary_search(members.begin(), members.end(), from);
        });
    const std::size_t bytes = parameters_[reply.parameter].part_bytes;
    const std::vector<int> positions = options_.by_node ? *node : std::vector<int>{from};
    TESSERA_CHECK(parts.numel() == static_cast<std::int64_t>(positions.size() * bytes));
    const auto* part = static_cast<const std::byte*>(parts.data_ptr());
    auto* to = static_cast<std::byte*>(whole.data_ptr());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(to + bytes * positions[i], part + bytes * i, bytes);
    }
  }
  const std::lock_guard lock(mutex_);
  ++messages_;
  if (--gathering->missing == 0) {
    under_way_.erase(reply.number);
    changed_.notify_all();
  }
}

} // namespace tessera::sharding
