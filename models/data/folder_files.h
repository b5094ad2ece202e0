#pragma once

#include <string>

namespace tessera::data {

/// Files of a prepared folder.
constexpr const char* kTokenizerFile = "tokenizer.model"; // SentencePiece, or
constexpr const char* kJsonTokenizerFile = "tokenizer.json"; // of Hugging Face
constexpr const char* kInteractionsFile = "interactions.json"; // or of pairs (interactions.h)
constexpr const char* kTrainFile = "train.tokens";
constexpr const char* kValidationFile = "validation.tokens";
constexpr const char* kTrainDocumentsFile = "train.documents";
constexpr const char* kValidationDocumentsFile = "validation.documents";
constexpr const char* kManifestFile = "data.json";
/// It exists while the others are being written.
constexpr const char* kUnfinishedFile = "data.json.unfinished";

/// Returns the path of the file that says what the ids of a folder mean: tokenizer.model, else
/// tokenizer.json, else interactions.json. Where none of them exists, it is that of the first.
std::string tokenizer_path(const std::string& folder);

} // namespace tessera::data
