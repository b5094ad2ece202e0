#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/document_index.h"
#include "models/data/mixture_part.h"
#include "models/data/token_file.h"

namespace tessera::data {

/// Opens the index at `path` and checks that it is the index of these tokens. Reads all of it. Not
/// collective. Throws: ConfigError of DocumentIndex, and when the two do not belong together.
DocumentIndex index_of(const TokenDataset& tokens, const std::string& path);

/// Opens the index of a folder's tokens. `file` is kTrainDocumentsFile or kValidationDocumentsFile;
/// `asked_by` names the key or option that needs the index, for messages. Not collective.
/// Throws: as index_of; ConfigError that names a folder which has none.
DocumentIndex open_index_beside(
    const std::string& folder,
    const TokenDataset& tokens,
    const char* file,
    const std::string& asked_by);

/// Opens the indexes of several folders.
std::vector<DocumentIndex> open_indexes(
    const std::vector<MixturePart>& parts,
    const std::vector<TokenDataset>& tokens,
    const char* file,
    const std::string& asked_by);

/// Returns for each of the tokens [begin, begin + count) where its document begins, as a distance
/// from `begin`; 0 also for a document that begins before them. Tokens before the first document
/// count as one document. Not collective. Cost: a search in the index, then one comparison a token.
void document_begins(
    const DocumentIndex& index,
    std::uint64_t begin,
    std::uint64_t count,
    std::int64_t* out);

} // namespace tessera::data
