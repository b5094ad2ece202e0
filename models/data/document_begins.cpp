#include "models/data/document_begins.h"

#include <filesystem>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

/// The first document that begins after `token`; as many as there are when none does.
std::uint64_t first_document_after(const DocumentIndex& index, std::uint64_t token) {
  std::uint64_t low = 0;
  std::uint64_t high = index.documents();
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (index.begin_of(middle) <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

} // namespace

DocumentIndex index_of(const TokenDataset& tokens, const std::string& path) {
  DocumentIndex index(path);
  if (index.tokens() != tokens.size()) {
    throw ConfigError(
        str(path,
            " is of ",
            index.tokens(),
            " tokens, ",
            tokens.path(),
            " has ",
            tokens.size(),
            ": they do not belong together"));
  }
  return index;
}

DocumentIndex open_index_beside(
    const std::string& folder,
    const TokenDataset& tokens,
    const char* file,
    const std::string& asked_by) {
  const std::string path = (std::filesystem::path(folder) / file).string();
  if (!std::filesystem::exists(path)) {
    throw ConfigError(
        str(asked_by,
            " needs to know where documents begin, and '",
            folder,
            "' has no ",
            file,
            ", as earlier versions prepared folders without; prepare it again from the same texts "
            "(`tessera data prepare --force --output ",
            folder,
            " ...`), or leave ",
            asked_by,
            " out"));
  }
  return index_of(tokens, path);
}

std::vector<DocumentIndex> open_indexes(
    const std::vector<MixturePart>& parts,
    const std::vector<TokenDataset>& tokens,
    const char* file,
    const std::string& asked_by) {
  std::vector<DocumentIndex> indexes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    indexes.push_back(open_index_beside(parts[i].directory, tokens.at(i), file, asked_by));
  }
  return indexes;
}

void document_begins(
    const DocumentIndex& index,
    std::uint64_t begin,
    std::uint64_t count,
    std::int64_t* out) {
  std::uint64_t next = first_document_after(index, begin);
  std::int64_t current = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (next < index.documents() && index.begin_of(next) == begin + i) {
      current = static_cast<std::int64_t>(i);
      ++next;
    }
    out[i] = current;
  }
}

} // namespace tessera::data
