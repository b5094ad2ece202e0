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
/// The three dropout probabilities of such a file are one option here: `dropout` is read only where
/// they are equal, and training needs it.
/// Throws: ConfigError that begins with `origin` and names field, value and
/// what to do.
GptOptions gpt_from_published(const std::string& text, const std::string& origin);

/// Reads the options of a Llama, GPT-J, GPT-Neo or GPT-NeoX, by the file's model_type.
DecoderOptions decoder_from_published(const std::string& text, const std::string& origin);

/// Reads the options of a BERT or RoBERTa, by the file's model_type, and of a T5. A BERT whose
/// architectures are BertForMaskedLM has no head for pairs of sentences.
BertOptions bert_from_published(const std::string& text, const std::string& origin);
T5Options t5_from_published(const std::string& text, const std::string& origin);

/// Reads the options of any of these models; without a model_type it is a GPT-2. An NCF, which
/// transformers does not have, is the model_type "ncf" with the options of NcfOptions.
Options options_from_published(const std::string& text, const std::string& origin);

/// Returns the options as the text of a config.json that transformers loads, with a line end.
/// `end_of_document` is the token that begins and ends a text; none when it is not known.
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
/// Writes the options of any of these models; of an ncf in the form that `options_from_published`
/// reads.
std::string to_published(
    const Options& options,
    std::optional<std::int32_t> end_of_document = std::nullopt);

} // namespace tessera::models
