#include "tessera/optim/settings.h"

#include <algorithm>
#include <span>

#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/optim/optimizer_access.h"

namespace tessera::optim {

namespace {

// An optimizer of the user's own need not say its rate.
double rate_of(const torch::optim::OptimizerParamGroup& group) {
  try {
    return group.options().get_lr();
  } catch (const c10::Error&) {
    return 0;
  }
}

// One optimizer's numbers.
struct One {
  double parameters = 0;
  double updates = 0;
  std::span<const double> rates;
};

std::vector<One> read(const Settings& settings) {
  std::vector<One> all;
  for (std::size_t i = 0; i + 3 <= settings.size();) {
    const auto groups = static_cast<std::size_t>(settings[i + 2]);
    const std::span<const double> rest = std::span(settings).subspan(i + 3);
    all.push_back({settings[i], settings[i + 1], rest.first(std::min(groups, rest.size()))});
    i += 3 + groups;
  }
  return all;
}

bool rates_differ(const One& a, const One& b) {
  return a.parameters == b.parameters && a.rates.size() == b.rates.size() &&
         !std::equal(a.rates.begin(), a.rates.end(), b.rates.begin());
}

std::string text_of(const One& one, int rank) {
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
    const auto& groups = optimizer->param_groups();
    settings.push_back(static_cast<double>(OptimizerAccess::given_parameters(*optimizer)));
    settings.push_back(static_cast<double>(OptimizerAccess::updates(*optimizer)));
    settings.push_back(static_cast<double>(groups.size()));
    for (const auto& group : groups) {
      settings.push_back(rate_of(group));
    }
  }
  return settings;
}

std::uint64_t digest(const Settings& settings) {
  return hash_bytes(settings.data(), settings.size() * sizeof(double));
}

std::string difference(const Settings& mine, int my_rank, const Settings& theirs, int their_rank) {
  const std::vector<One> here = read(mine);
  const std::vector<One> there = read(theirs);
  if (here.size() != there.size()) {
    return str(
        "rank ",
        my_rank,
        " has ",
        here.size(),
        here.size() == 1 ? " optimizer" : " optimizers",
        " and rank ",
        their_rank,
        " ",
        there.size(),
        kWhatToDo);
  }
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i].updates != there[i].updates || rates_differ(here[i], there[i])) {
      return str(
          "ranks have different states of one optimizer",
          here.size() > 1 ? str(", number ", i + 1, " of ", here.size()) : "",
          ": ",
          text_of(there[i], their_rank),
          ", ",
          text_of(here[i], my_rank),
          kWhatToDo);
    }
  }
  return "";
}

} // namespace tessera::optim
