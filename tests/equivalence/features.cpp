#include "tests/equivalence/features.h"

#include <map>
#include <sstream>
#include <stdexcept>

namespace tessera::equivalence {

namespace {

const std::map<Feature, const char*>& words() {
  static const std::map<Feature, const char*> kWordsOf = {
      {Feature::kRecompute, "recompute"},
      {Feature::kOffload, "offload"},
      {Feature::kClip, "clip"},
      {Feature::kOptimizer, "optimizer"},
      {Feature::kBetween, "between"},
      {Feature::kUneven, "uneven"},
      {Feature::kShardState, "shard_state"},
      {Feature::kShardParameters, "shard_parameters"},
      {Feature::kTensor, "tensor"},
      {Feature::kHalf, "half"},
      {Feature::kResume, "resume"},
      {Feature::kDropout, "dropout"},
      {Feature::kOperations, "operations"},
      {Feature::kShares, "shares"},
      {Feature::kNormwise, "normwise"},
      {Feature::kHook, "hook"},
      {Feature::kJoin, "join"}};
  return kWordsOf;
}

} // namespace

const std::vector<Feature>& all_features() {
  static const std::vector<Feature> kAll = [] {
    std::vector<Feature> all;
    for (const auto& [feature, word] : words()) {
      all.push_back(feature);
    }
    return all;
  }();
  return kAll;
}

std::string to_text(Feature feature) {
  return words().at(feature);
}

std::string to_text(const Features& features) {
  std::string text;
  for (const Feature feature : features) {
    text += (text.empty() ? "" : ",") + to_text(feature);
  }
  return text.empty() ? "none" : text;
}

Features features_of(const std::string& text) {
  if (text == "all") {
    return {all_features().begin(), all_features().end()};
  }
  Features features;
  std::istringstream in(text == "none" ? "" : text);
  for (std::string word; std::getline(in, word, ',');) {
    bool found = false;
    for (const auto& [feature, name] : words()) {
      if (word == name) {
        features.insert(feature);
        found = true;
      }
    }
    if (!found) {
      throw std::invalid_argument("'" + word + "' is no feature");
    }
  }
  return features;
}

} // namespace tessera::equivalence
