#include "tessera/optim/settings.h"

#include <set>
#include <typeindex>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/optim/optimizer_access.h"

namespace tessera::optim {

namespace {

// The options of a user's own optimizer need not know a rate; asking them again would make an
// exception in every step.
double rate_of(const torch::optim::OptimizerParamGroup& group) {
  static thread_local std::set<std::type_index> without_rate;
  const auto& options = group.options();
  const std::type_index type(typeid(options));
  if (without_rate.contains(type)) {
    return 0;
  }
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    without_rate.insert(type);
    return 0;
  }
}

bool rates_differ(const OptimizerSettings& a, const OptimizerSettings& b) {
  return a.parameters == b.parameters && a.rates.size() == b.rates.size() && a.rates != b.rates;
}

std::string text_of(const OptimizerSettings& one, int rank) {
  std::string text =
      str("rank ", rank, " has made ", one.updates, " updates and has the learning ");
  text += one.rates.size() == 1 ? "rate" : "rates";
  for (std::size_t i = 0; i < one.rates.size(); ++i) {
    text += str(i == 0 ? " " : ", ", one.rates[i]);
  }
  return text;
}

constexpr const char* kWhatToDo =
    "; make optimizers, call optimizer.step() and schedulers, and set learning rates on every rank "
    "alike, not under a condition such as rank() == 0";

} // namespace

Settings settings_of(const std::vector<DistributedOptimizer*>& optimizers) {
  Settings settings;
  for (DistributedOptimizer* optimizer : optimizers) {
    OptimizerSettings one;
    one.parameters = static_cast<std::int64_t>(OptimizerAccess::given_parameters(*optimizer));
    one.updates = OptimizerAccess::updates(*optimizer);
    for (const auto& group : optimizer->param_groups()) {
      one.rates.push_back(rate_of(group));
    }
    settings.push_back(std::move(one));
  }
  return settings;
}

std::uint64_t digest(const Settings& settings) {
  std::uint64_t hash = kHashSeed;
  for (const OptimizerSettings& one : settings) {
    for (const std::int64_t number : {one.parameters, one.updates}) {
      hash = hash_bytes(&number, sizeof number, hash);
    }
    hash = hash_bytes(one.rates.data(), one.rates.size() * sizeof(double), hash);
  }
  return hash;
}

std::string difference(const Settings& mine, int my_rank, const Settings& theirs, int their_rank) {
  if (mine.size() != theirs.size()) {
    return str(
        "rank ",
        my_rank,
        " has ",
        mine.size(),
        mine.size() == 1 ? " optimizer" : " optimizers",
        " and rank ",
        their_rank,
        " ",
        theirs.size(),
        kWhatToDo);
  }
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].updates != theirs[i].updates || rates_differ(mine[i], theirs[i])) {
      return str(
          "ranks have different states of one optimizer",
          mine.size() > 1 ? str(", number ", i + 1, " of ", mine.size()) : "",
          ": ",
          text_of(theirs[i], their_rank),
          ", ",
          text_of(mine[i], my_rank),
          kWhatToDo);
    }
  }
  return "";
}

} // namespace tessera::optim
