#include "models/data/token_file.h"

#include <bit>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

static_assert(
    std::endian::native == std::endian::little,
    "token files are little-endian and mapped as they are");

constexpr char kMagic[] = "TSRTOKEN";
constexpr std::uint32_t kVersion = 1;

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t token_bytes;
  std::uint64_t count;
  std::uint64_t vocab_size;
  std::uint64_t checksum;
  std::uint64_t zeros[3];
};
static_assert(sizeof(FileHeader) == 64);

FileHeader header_of(const MappedFile& file) {
  FileHeader header;
  std::memcpy(&header, file.bytes(), sizeof(header));
  return header;
}

} // namespace

TokenFileWriter::TokenFileWriter(const std::string& path, std::int64_t vocab_size)
    : path_(path), file_(path), vocab_size_(vocab_size), token_bytes_(vocab_size <= 65536 ? 2 : 4) {
  const FileHeader unknown{};
  file_.append(&unknown, sizeof(unknown));
}

void TokenFileWriter::append(std::int32_t token) {
  if (token < 0 || token >= vocab_size_) {
    throw ConfigError(
        str(path_, ": token ", token, " is outside of the vocabulary of ", vocab_size_));
  }
  // Little-endian: the first bytes of an id are its low ones.
  file_.append(&token, token_bytes_);
  hash_ = hash_bytes(&token, token_bytes_, hash_);
  ++count_;
}

void TokenFileWriter::append(const std::vector<std::int32_t>& tokens) {
  for (const auto token : tokens) {
    append(token);
  }
}

void TokenFileWriter::finish() {
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(header.magic));
  header.version = kVersion;
  header.token_bytes = token_bytes_;
  header.count = count_;
  header.vocab_size = static_cast<std::uint64_t>(vocab_size_);
  header.checksum = hash_;
  file_.overwrite_start(&header, sizeof(header));
  file_.finish();
}

void write_token_file(
    const std::string& path,
    const std::vector<std::int32_t>& tokens,
    std::int64_t vocab_size) {
  TokenFileWriter writer(path, vocab_size);
  writer.append(tokens);
  writer.finish();
}

TokenDataset::TokenDataset(const std::string& path, bool verify)
    : file_(path, "token file", sizeof(FileHeader)) {
  check_header();
  if (verify && hash_bytes(data(), count_ * token_bytes_) != content_hash()) {
    throw ConfigError(
        str(path,
            " has changed since it was written (checksum differs); remove it "
            "and run `tessera data prepare` again"));
  }
}

void TokenDataset::check_header() {
  const FileHeader header = header_of(file_);
  if (std::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) {
    throw ConfigError(str(path(), " is no token file: it does not begin with ", kMagic));
  }
  if (header.version != kVersion || (header.token_bytes != 2 && header.token_bytes != 4)) {
    throw ConfigError(
        str(path(),
            " has version ",
            header.version,
            " and ",
            header.token_bytes,
            " bytes per token; this program reads version ",
            kVersion,
            " with 2 or 4"));
  }
  if (header.vocab_size == 0 || header.vocab_size > std::uint64_t{1} << 31U) {
    throw ConfigError(
        str(path(), " is damaged: its header says a vocabulary of ", header.vocab_size));
  }
  const auto room = (file_.size_bytes() - sizeof(FileHeader)) / header.token_bytes;
  if (header.count > room) {
    throw ConfigError(
        str(path(), " is truncated: its header says ", header.count, " tokens, there are ", room));
  }
  count_ = header.count;
  token_bytes_ = header.token_bytes;
  vocab_size_ = static_cast<std::int64_t>(header.vocab_size);
}

const unsigned char* TokenDataset::data() const {
  return file_.bytes() + sizeof(FileHeader);
}

std::uint64_t TokenDataset::content_hash() const {
  return header_of(file_).checksum;
}

void TokenDataset::copy(std::uint64_t begin, std::uint64_t count, std::int64_t* out) const {
  TESSERA_CHECK(
      begin <= count_ && count <= count_ - begin,
      path(),
      ": tokens ",
      begin,
      " to ",
      begin + count,
      " of ",
      count_);
  const auto convert = [&](auto value) {
    const unsigned char* at = data() + begin * sizeof(value);
    for (std::uint64_t i = 0; i < count; ++i, at += sizeof(value)) {
      std::memcpy(&value, at, sizeof(value));
      out[i] = value;
    }
  };
  if (token_bytes_ == 2) {
    convert(std::uint16_t{});
  } else {
    convert(std::uint32_t{});
  }
}

} // namespace tessera::data
