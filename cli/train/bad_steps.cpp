#include "cli/train/bad_steps.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

#include "cli/agreed_error.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kNormsBeforeSpikes = 10;
constexpr double kWeightOfNewNorm = 0.05;

/// "loss nan on ranks 0, 1": the ranks where `value_of` is not finite.
template <typename Value>
std::string
not_finite(const char* what, const std::vector<StepHealth>& ranks, const Value& value_of) {
  std::string list;
  double found = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!std::isfinite(value_of(ranks[rank]))) {
      found = value_of(ranks[rank]);
      list += str(list.empty() ? "" : ", ", rank);
    }
  }
  if (list.empty()) {
    return "";
  }
  const char* name = std::isnan(found) ? "nan" : found > 0 ? "inf" : "-inf";
  return str("the ", what, " is ", name, " (rank ", list, ")");
}

} // namespace

BadStepJudge::BadStepJudge(const BadStepPolicy& policy) : policy_(policy) {
  if (policy_.not_finite != "stop" && policy_.not_finite != "skip") {
    throw ConfigError(
        str("'bad_steps.not_finite' must be stop or skip, found '", policy_.not_finite, "'"));
  }
  if (policy_.spike != 0 && !(policy_.spike > 1 && std::isfinite(policy_.spike))) {
    throw ConfigError(
        str("'bad_steps.spike' must be 0 (never) or more than 1, found ", policy_.spike));
  }
}

std::string BadStepJudge::judge(
    std::int64_t step,
    const std::vector<StepHealth>& ranks,
    const std::function<std::string()>& where) {
  std::string bad = not_finite("loss", ranks, [](const StepHealth& it) { return it.loss; });
  const std::string bad_norm =
      not_finite("gradient norm", ranks, [](const StepHealth& it) { return it.grad_norm; });
  if (!bad_norm.empty()) {
    bad += (bad.empty() ? "" : ", ") + bad_norm;
  }
  in_doubt_ = !bad.empty();
  if (in_doubt_) {
    const std::string found = where();
    bad += found.empty() ? "" : "; " + found;
    if (policy_.not_finite == "stop") {
      throw AgreedError(
          str("step ",
              step,
              ": ",
              bad,
              ". The update was not applied. Lower optimizer.learning_rate, look at the data, or "
              "write \"bad_steps\": {\"not_finite\": \"skip\"} to leave such updates out"));
    }
    return skip(step, bad);
  }
  double norm = 0;
  for (const StepHealth& rank : ranks) {
    norm = std::max(norm, rank.grad_norm);
  }
  if (policy_.spike > 0 && applied_ >= kNormsBeforeSpikes && norm > policy_.spike * running_norm_) {
    return skip(
        step,
        str("the gradient norm is ",
            norm,
            ", the running one ",
            running_norm_,
            " (bad_steps.spike ",
            policy_.spike,
            ")"));
  }
  ++applied_;
  in_a_row_ = 0;
  running_norm_ +=
      (norm - running_norm_) * std::max(1.0 / static_cast<double>(applied_), kWeightOfNewNorm);
  return "";
}

std::string BadStepJudge::skip(std::int64_t step, const std::string& why) {
  ++skipped_;
  ++in_a_row_;
  if (in_a_row_ > policy_.most_skipped) {
    throw AgreedError(
        str("step ",
            step,
            ": ",
            why,
            ". This is update ",
            in_a_row_,
            " in a row that would be left out, bad_steps.most_skipped allows ",
            policy_.most_skipped,
            ". Lower optimizer.learning_rate; to go on from before the update of step ",
            step - in_a_row_,
            ", remove the checkpoints from that step on and pass --resume"));
  }
  return why;
}

template <typename Visit>
void BadStepJudge::describe_state(Visit& visit) {
  constexpr form::Bounds kCount = form::at_least(0);
  visit({.name = "skipped", .bounds = kCount}, skipped_);
  visit({.name = "in_a_row", .bounds = kCount}, in_a_row_);
  visit({.name = "applied", .bounds = kCount}, applied_);
  visit({.name = "running_norm"}, running_norm_);
}

std::string BadStepJudge::to_json() const {
  form::Writer writer;
  // One description serves readers and writers, which change nothing.
  const_cast<BadStepJudge*>(this)->describe_state(writer);
  return writer.object.dump();
}

void BadStepJudge::set_state(const std::string& json, const std::string& origin) {
  const auto state = OrderedJson::parse(json);
  form::Faults faults(origin);
  form::Reader reader(state, faults);
  describe_state(reader);
}

} // namespace tessera::cli
