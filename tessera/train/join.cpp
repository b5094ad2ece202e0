#include "tessera/train/join.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/model/model_core.h"
#include "tessera/train/engine.h"
#include "tessera/train/model_access.h"
#include "tessera/train/session.h"

namespace tessera {

namespace {

/// What every rank of the world has said: the first rank of its MP_GROUP, whether it has data, and
/// how many samples its replica takes of a step.
struct Said {
  explicit Said(bool has_batch, bool again) {
    comm::ProcessGroup& world = train::engine().context().group(Group::kWorld);
    const std::vector<int>& samples = config_in_force().replica_samples;
    const std::vector<std::int64_t> own = {
        group_ranks(Group::kMP).front(),
        has_batch ? 1 : 0,
        again ? 1 : 0,
        samples.empty() ? 1 : samples.at(rdp_rank())};
    numbers = at::empty({world.size(), static_cast<std::int64_t>(own.size())}, at::kLong);
    world.all_gather(numbers, at::tensor(own, at::kLong));
  }
  std::int64_t first_of(int rank) const {
    return numbers[rank][0].item<std::int64_t>();
  }
  bool has_batch(int rank) const {
    return numbers[rank][1].item<std::int64_t>() != 0;
  }
  bool has_again(int rank) const {
    return numbers[rank][2].item<std::int64_t>() != 0;
  }
  std::int64_t samples(int rank) const {
    return numbers[rank][3].item<std::int64_t>();
  }
  int size() const {
    return static_cast<int>(numbers.size(0));
  }
  at::Tensor numbers;
};

/// Whether each replica has data, by the first rank of its MP_GROUP.
std::map<std::int64_t, bool> replicas(const Said& said) {
  std::map<std::int64_t, bool> has;
  for (int rank = 0; rank < said.size(); ++rank) {
    const auto [replica, is_new] = has.emplace(said.first_of(rank), said.has_batch(rank));
    if (said.has_again(rank)) {
      throw UserError(
          str("Join::next: rank ",
              rank,
              " has a batch again after it was out of data; it takes no part any more"));
    }
    if (!is_new && replica->second != said.has_batch(rank)) {
      throw UserError(
          str("Join::next: rank ",
              rank,
              said.has_batch(rank) ? " has" : " has not",
              " a batch and rank ",
              said.first_of(rank),
              " of the same MP_GROUP",
              replica->second ? " has" : " has not",
              "; ranks of a pipeline, and of a TP_GROUP, need equally many batches"));
    }
  }
  return has;
}

/// What gradients of replicas with data are multiplied by to be divided by their samples alone.
double part_of_active(const Said& said, const std::map<std::int64_t, bool>& has) {
  std::int64_t all = 0;
  std::int64_t active = 0;
  for (const auto& [rank, has_batch] : has) {
    const std::int64_t samples = said.samples(static_cast<int>(rank));
    all += samples;
    active += has_batch ? samples : 0;
  }
  return static_cast<double>(all) / static_cast<double>(active);
}

/// The first rank of this rank's group that has data, by its number in the group.
int first_with_data(const Said& said, Group group) {
  const std::vector<int> ranks = group_ranks(group);
  const auto found =
      std::find_if(ranks.begin(), ranks.end(), [&](int rank) { return said.has_batch(rank); });
  return static_cast<int>(found - ranks.begin());
}

} // namespace

Join::Join(const Model& model, const JoinOptions& options)
    : Join(std::vector<std::reference_wrapper<const Model>>{model}, options) {}

Join::Join(
    const std::vector<std::reference_wrapper<const Model>>& models,
    const JoinOptions& options)
    : options_(options) {
  for (const Model& model : models) {
    models_.push_back(train::ModelAccess::core(model));
  }
}

Join::~Join() {
  for (const auto& held : models_) {
    if (const auto model = held.lock()) {
      model->end_replica_part();
    }
  }
}

bool Join::next(bool has_batch) {
  if (ended_) {
    throw ConfigError("Join::next was called after it had returned false; make a Join anew");
  }
  const Said said(has_batch, joined_ && has_batch);
  const std::map<std::int64_t, bool> has = replicas(said);
  const std::int64_t active =
      std::count_if(has.begin(), has.end(), [](const auto& entry) { return entry.second; });
  const auto all = static_cast<std::int64_t>(has.size());
  joined_ = !has_batch;
  if (active != std::exchange(active_, active)) {
    // Another replica's will count from now on, and it goes on from those that counted before.
    for (const auto& held : models_) {
      if (const auto model = held.lock()) {
        model->share_buffers();
      }
    }
  }
  if (active == 0) {
    ended_ = true;
    return false;
  }
  if (options_.throw_on_early_termination && active < all) {
    throw UserError(
        str("Join::next: ",
            all - active,
            " of ",
            all,
            " replicas are out of data (throw_on_early_termination)"));
  }
  const double given = options_.divide_by_initial_world_size ? 1 : part_of_active(said, has);
  for (const auto& held : models_) {
    if (const auto model = held.lock()) {
      model->set_replica_part(
          {.weight = has_batch ? given : 0,
           .first_dp = first_with_data(said, Group::kDP),
           .first_rdp = first_with_data(said, Group::kRDP)});
    }
  }
  return true;
}

} // namespace tessera
