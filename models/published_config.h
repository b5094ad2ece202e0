#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/options.h"
#include "models/presets.h"

namespace tessera::models {

/// Options of a GPT-2 from the text of a Hugging Face config.json. Every field
/// of the file is one of four: an option here; one that does not change what
/// the model computes (names, tokens, settings of generation); one that does,
/// with the one value that is implemented; or an error. Fields that are left
/// out have the defaults of transformers.
///
/// The three dropout probabilities of such a file are one here: training needs
/// them equal, `dropout` is taken only then.
/// Throws: ConfigError that begins with `origin` and names field, value and
/// what to do.
GptOptions gpt_from_published(const std::string& text, const std::string& origin);

/// The same of a Llama, GPT-J, GPT-Neo or GPT-NeoX, by the file's model_type.
DecoderOptions decoder_from_published(const std::string& text, const std::string& origin);

/// The same of a BERT or RoBERTa, by the file's model_type, and of a T5. A BERT whose architectures
/// are BertForMaskedLM has no head for pairs of sentences.
BertOptions bert_from_published(const std::string& text, const std::string& origin);
T5Options t5_from_published(const std::string& text, const std::string& origin);

/// Of whichever of these it is; without a model_type it is a GPT-2. An NCF, which transformers does
/// not have, is the model_type "ncf" with the options of NcfOptions.
Options options_from_published(const std::string& text, const std::string& origin);

/// The options as a config.json that transformers loads, with a line end.
/// `end_of_document` begins and ends a text; none: not known.
std::string to_published(
    const GptOptions& options,
    std::optional<std::int32_t> end_of_document = std::nullopt);
std::string to_published(
    const DecoderOptions& options,
    std::optional<std::int32_t> end_of_document = std::nullopt);
std::string to_published(
    const BertOptions& options,
    std::optional<std::int32_t> end_of_document = std::nullopt);
std::string to_published(
    const T5Options& options,
    std::optional<std::int32_t> end_of_document = std::nullopt);
/// Of whichever of these it is; an ncf in the form that `options_from_published` reads.
std::string to_published(
    const Options& options,
    std::optional<std::int32_t> end_of_document = std::nullopt);

} // namespace tessera::models
