#include <torch/torch.h>

#include "tessera/base/error.h"

#include "models/objectives/kinds.h"
#include "models/objectives/span_corruption.h"
#include "models/t5.h"

namespace tessera::models {

namespace {

constexpr std::int64_t kSentinels = 100; // as many as T5 has

class SpanCorruption : public Objective {
 public:
  SpanCorruption(
      ObjectiveFacts facts,
      const T5Options& options,
      const SpanLengths& lengths,
      const SpanTokens& marks)
      : Objective(std::move(facts)), options_(options), lengths_(lengths), marks_(marks) {}

  Examples make(const at::Tensor& tokens, const std::vector<std::uint64_t>& keys) const override {
    const at::Tensor ids = torch::empty({tokens.size(0), lengths_.inputs}, at::kLong);
    const at::Tensor targets = torch::empty({tokens.size(0), lengths_.targets}, at::kLong);
    for (std::int64_t row = 0; row < tokens.size(0); ++row) {
      corrupt_sample(
          lengths_,
          marks_,
          tokens[row].data_ptr<std::int64_t>(),
          Draws(keys.at(static_cast<std::size_t>(row))),
          ids[row].data_ptr<std::int64_t>(),
          targets[row].data_ptr<std::int64_t>());
    }
    return {{ids, shift_right(targets, options_)}, {targets}};
  }

 private:
  T5Options options_;
  SpanLengths lengths_;
  SpanTokens marks_;
};

/// Sentinels of the tokenizer have to count down from the first one, as T5's do.
void check_sentinels(const TokenTable& table, std::int64_t first, std::int64_t spans) {
  for (std::int64_t i = 0; i < spans; ++i) {
    const std::string name = str("<extra_id_", i, ">");
    const auto found = table.find({name.c_str()});
    if (found != first - i) {
      throw ConfigError(
          str("span corruption: the tokenizer's ",
              name,
              found ? str(" is id ", *found) : str(" is missing"),
              ", expected id ",
              first - i,
              ": samples of this sequence need ",
              spans,
              " sentinels that count down; write a shorter data.sequence or take a tokenizer with "
              "all of them, or with none"));
    }
  }
}

} // namespace

std::unique_ptr<Objective> span_corruption_objective(
    const T5Options& options,
    const TokenTable& table,
    std::int64_t sequence) {
  const SpanLengths lengths = span_lengths(sequence);
  ObjectiveFacts facts;
  facts.name = "span corruption";
  facts.vocabulary = table.tokens;
  facts.window = {lengths.tokens, lengths.tokens};
  facts.decoder_positions = lengths.targets;
  facts.targets = lengths.targets;
  SpanTokens marks;
  if (const auto first = table.find({"<extra_id_0>"})) {
    marks.first_sentinel = *first;
    check_sentinels(table, *first, lengths.spans);
  } else {
    if (lengths.spans > kSentinels) {
      throw ConfigError(
          str("span corruption: samples of ",
              sequence,
              " positions have ",
              lengths.spans,
              " runs that are cut out, and there are ",
              kSentinels,
              " sentinels; write a shorter data.sequence"));
    }
    marks.first_sentinel = facts.vocabulary + kSentinels - 1;
    facts.notes.push_back(
        str("the tokenizer has no <extra_id_0>: ids ",
            facts.vocabulary,
            " to ",
            marks.first_sentinel,
            " are reserved for ",
            kSentinels,
            " sentinels"));
    facts.vocabulary += kSentinels;
  }
  if (const auto end = table.find({"</s>"})) {
    marks.end = *end;
  } else {
    facts.notes.push_back(
        str("the tokenizer has no </s>: id ", facts.vocabulary, " is reserved for it"));
    marks.end = facts.vocabulary++;
  }
  // A decoder begins with the padding; without one, with the end of the text before.
  facts.options["decoder_start_token_id"] = table.find({"<pad>"}).value_or(marks.end);
  return std::make_unique<SpanCorruption>(std::move(facts), options, lengths, marks);
}

} // namespace tessera::models
