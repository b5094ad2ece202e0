#include "tessera/optim/settings.h"

#include <charconv>
#include <set>
#include <typeindex>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/optim/optimizer_access.h"
#include "tessera/state/optimizer_registry.h"

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

// The shortest that reads back as the same number: ranks compare these texts.
std::string text_of(double number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

std::string text_of(const c10::IValue& value) {
  if (value.isDouble()) {
    return text_of(value.toDouble());
  }
  if (value.isInt()) {
    return std::to_string(value.toInt());
  }
  if (value.isBool()) {
    return value.toBool() ? "true" : "false";
  }
  if (value.isString()) {
    return value.toStringRef();
  }
  std::string text;
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      text += (text.empty() ? "" : ", ") + text_of(element);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      text += (text.empty() ? "" : ", ") + text_of(element);
    }
  }
  return "(" + text + ")";
}

// All but the learning rate, "weight_decay 0.1, ...".
std::string other_options(const torch::optim::OptimizerOptions& options) {
  std::string text;
  const state::OptimizerCodec* codec = state::find_codec(options);
  if (codec == nullptr || !codec->options_are_visited) {
    return text;
  }
  for (const auto& [name, value] : codec->option_fields(options)) {
    if (name != "lr" && !value.isTensor()) {
      text += (text.empty() ? "" : ", ") + name + " " + text_of(value);
    }
  }
  return text;
}

bool comparable(const OptimizerSettings& a, const OptimizerSettings& b) {
  return a.parameters == b.parameters && a.rates.size() == b.rates.size();
}

bool rates_differ(const OptimizerSettings& a, const OptimizerSettings& b) {
  return comparable(a, b) && a.rates != b.rates;
}

// The first parameter group whose options differ, -1 where none does.
int group_of_other_options(const OptimizerSettings& a, const OptimizerSettings& b) {
  if (comparable(a, b) && a.options.size() == b.options.size()) {
    for (std::size_t i = 0; i < a.options.size(); ++i) {
      if (a.options[i] != b.options[i]) {
        return static_cast<int>(i);
      }
    }
  }
  return -1;
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
    "; make optimizers, call optimizer.step() and schedulers, and set learning rates and other "
    "options on every rank alike, not under a condition such as rank() == 0";

} // namespace

Settings settings_of(const std::vector<DistributedOptimizer*>& optimizers) {
  Settings settings;
  for (DistributedOptimizer* optimizer : optimizers) {
    OptimizerSettings one;
    one.parameters = static_cast<std::int64_t>(OptimizerAccess::given_parameters(*optimizer));
    one.updates = OptimizerAccess::updates(*optimizer);
    for (const auto& group : optimizer->param_groups()) {
      one.rates.push_back(rate_of(group));
      one.options.push_back(other_options(group.options()));
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
    for (const std::string& options : one.options) {
      hash = hash_bytes(options.data(), options.size() + 1, hash); // the 0 ends it
    }
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
    if (const int group = group_of_other_options(mine[i], theirs[i]); group >= 0) {
      return str(
          "ranks have different options of one optimizer",
          mine.size() > 1 ? str(", number ", i + 1, " of ", mine.size()) : "",
          ": parameter group ",
          group,
          " has ",
          theirs[i].options[group],
          " on rank ",
          their_rank,
          " and ",
          mine[i].options[group],
          " on rank ",
          my_rank,
          kWhatToDo);
    }
  }
  return "";
}

} // namespace tessera::optim
