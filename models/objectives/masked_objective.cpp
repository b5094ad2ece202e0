#include <torch/torch.h>

#include "tessera/base/error.h"

#include "models/layers.h"
#include "models/objectives/kinds.h"
#include "models/objectives/masked.h"

namespace tessera::models {

namespace {

class Masked : public Objective {
 public:
  Masked(ObjectiveFacts facts, TokenTable table, const MaskTokens& marks)
      : Objective(std::move(facts)), table_(std::move(table)), marks_(marks) {}

  Examples make(const at::Tensor& tokens, const std::vector<std::uint64_t>& keys) const override {
    const std::int64_t sequence = facts().window.length + 2;
    const at::Tensor ids = torch::empty({tokens.size(0), sequence}, at::kLong);
    const at::Tensor targets = torch::empty_like(ids);
    for (std::int64_t row = 0; row < tokens.size(0); ++row) {
      mask_sample(
          table_,
          marks_,
          tokens[row].data_ptr<std::int64_t>(),
          sequence,
          Draws(keys.at(static_cast<std::size_t>(row))),
          kIgnoredTarget,
          ids[row].data_ptr<std::int64_t>(),
          targets[row].data_ptr<std::int64_t>());
    }
    return {{ids}, {targets}};
  }

 private:
  TokenTable table_;
  MaskTokens marks_;
};

/// The tokenizer's id, or the next one behind all; then a note says so.
std::int64_t
found_or_reserved(std::optional<std::int64_t> found, const char* what, ObjectiveFacts& facts) {
  if (found) {
    return *found;
  }
  facts.notes.push_back(
      str("the tokenizer has no ", what, ": id ", facts.vocabulary, " is reserved for it"));
  return facts.vocabulary++;
}

} // namespace

std::unique_ptr<Objective>
masked_objective(const BertOptions& options, const TokenTable& table, std::int64_t sequence) {
  constexpr std::int64_t kShortest = 3;
  if (sequence < kShortest) {
    throw ConfigError(
        str("masked tokens: a sequence of ",
            sequence,
            " positions has no room for a token between begin and end; write ",
            kShortest,
            " or more"));
  }
  ObjectiveFacts facts;
  facts.name = "masked tokens";
  facts.vocabulary = table.tokens;
  facts.window = {sequence - 2, sequence - 2};
  facts.targets = masked_positions(sequence);
  MaskTokens marks;
  marks.begin = found_or_reserved(table.find({"[CLS]", "<s>"}), "[CLS] or <s>", facts);
  marks.end = found_or_reserved(table.find({"[SEP]", "</s>"}), "[SEP] or </s>", facts);
  marks.mask = found_or_reserved(table.find({"[MASK]", "<mask>"}), "[MASK] or <mask>", facts);
  const auto padding = table.find({"[PAD]", "<pad>"});
  // A RoBERTa has a row of positions for each id up to the padding's, so none is reserved there.
  facts.options["pad_token_id"] =
      padding || options.roberta
          ? padding
          : std::optional(found_or_reserved(padding, "[PAD] or <pad>", facts));
  TokenTable own = table;
  own.special.resize(static_cast<std::size_t>(table.tokens));
  for (const std::int64_t id :
       {marks.begin,
        marks.end,
        marks.mask,
        padding.value_or(marks.mask),
        static_cast<std::int64_t>(options.pad_token_id)}) {
    if (id >= 0 && id < table.tokens) {
      own.special[static_cast<std::size_t>(id)] = true;
    }
  }
  return std::make_unique<Masked>(std::move(facts), std::move(own), marks);
}

} // namespace tessera::models
