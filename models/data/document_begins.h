#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/document_index.h"
#include "models/data/mixture_part.h"
#include "models/data/token_file.h"

namespace tessera::data {

/// The index at `path`, which is that of these tokens. Reads all of it. Not collective.
/// Throws: ConfigError of DocumentIndex, and when the two do not belong together.
DocumentIndex index_of(const TokenDataset& tokens, const std::string& path);

/// The same of a folder's tokens. `file` is kTrainDocumentsFile or kValidationDocumentsFile;
/// `asked_by` names the key or option that needs the index, for messages. Not collective.
/// Throws: as index_of; ConfigError that names a folder which has none.
DocumentIndex open_index_beside(
    const std::string& folder,
    const TokenDataset& tokens,
    const char* file,
    const std::string& asked_by);

/// The same of several folders.
std::vector<DocumentIndex> open_indexes(
    const std::vector<MixturePart>& parts,
    const std::vector<TokenDataset>& tokens,
    const char* file,
    const std::string& asked_by);

/// For each of the tokens [begin, begin + count) the place, counted from `begin`, where its
/// document begins: 0 also where that is before them. Tokens before the first document are one of
/// their own. Not collective. Cost: a search in the index, then one comparison a token.
void document_begins(
    const DocumentIndex& index,
    std::uint64_t begin,
    std::uint64_t count,
    std::int64_t* out);

} // namespace tessera::data
