#include "models/data/document_index.h"

#include <bit>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

static_assert(std::endian::native == std::endian::little, "indexes are mapped as they are");

constexpr char kIndexMagic[] = "TSRDOCUM";
constexpr std::uint32_t kIndexVersion = 1;

struct IndexHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t zero;
  std::uint64_t count;
  std::uint64_t tokens;
  std::uint64_t checksum;
  std::uint64_t zeros[3];
};
static_assert(sizeof(IndexHeader) == 64);

} // namespace

DocumentIndexWriter::DocumentIndexWriter(const std::string& path) : file_(path) {
  const IndexHeader unknown{};
  file_.append(&unknown, sizeof(unknown));
}

void DocumentIndexWriter::begin_at(std::uint64_t token) {
  if (pending_ && last_ != token) {
    TESSERA_CHECK(last_ < token, "documents begin one after the other");
    write_pending();
  }
  pending_ = true;
  last_ = token;
}

void DocumentIndexWriter::write_pending() {
  file_.append(&last_, sizeof(last_));
  hash_ = hash_bytes(&last_, sizeof(last_), hash_);
  ++written_;
  pending_ = false;
}

void DocumentIndexWriter::finish(std::uint64_t tokens) {
  if (pending_ && last_ < tokens) {
    write_pending();
  }
  IndexHeader header{};
  std::memcpy(header.magic, kIndexMagic, sizeof(header.magic));
  header.version = kIndexVersion;
  header.count = written_;
  header.tokens = tokens;
  header.checksum = hash_;
  file_.overwrite_start(&header, sizeof(header));
  file_.finish();
}

DocumentIndex::DocumentIndex(const std::string& path)
    : file_(path, "index of documents", sizeof(IndexHeader)) {
  IndexHeader header;
  std::memcpy(&header, file_.bytes(), sizeof(header));
  if (std::memcmp(header.magic, kIndexMagic, sizeof(header.magic)) != 0) {
    throw ConfigError(str(path, " is no index of documents: it does not begin with ", kIndexMagic));
  }
  if (header.version != kIndexVersion) {
    throw ConfigError(
        str(path, " has version ", header.version, "; this program reads version ", kIndexVersion));
  }
  const auto room = (file_.size_bytes() - sizeof(IndexHeader)) / sizeof(std::uint64_t);
  if (header.count > room) {
    throw ConfigError(
        str(path, " is truncated: its header says ", header.count, " documents, there are ", room));
  }
  count_ = header.count;
  tokens_ = header.tokens;
  if (hash_bytes(file_.bytes() + sizeof(IndexHeader), count_ * sizeof(std::uint64_t)) !=
      header.checksum) {
    throw ConfigError(
        str(path,
            " has changed since it was written (checksum differs); run `tessera data prepare "
            "--force` again"));
  }
  for (std::uint64_t i = 0; i < count_; ++i) {
    if (begin_of(i) >= tokens_ || (i > 0 && begin_of(i) <= begin_of(i - 1))) {
      throw ConfigError(
          str(path,
              ": document ",
              i,
              " begins at token ",
              begin_of(i),
              " of ",
              tokens_,
              ", not behind the one before"));
    }
  }
}

std::uint64_t DocumentIndex::begin_of(std::uint64_t document) const {
  TESSERA_CHECK(document < count_, file_.path(), ": document ", document, " of ", count_);
  std::uint64_t begin = 0;
  std::memcpy(
      &begin, file_.bytes() + sizeof(IndexHeader) + document * sizeof(begin), sizeof(begin));
  return begin;
}

} // namespace tessera::data
