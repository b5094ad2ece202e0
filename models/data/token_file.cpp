#include "models/data/token_file.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fcntl.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"

#include "models/data/files.h"

namespace tessera::data {

namespace {

static_assert(
    std::endian::native == std::endian::little,
    "token files are little-endian and mapped as they are");

constexpr char kMagic[] = "TSRTOKEN";
constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t token_bytes;
  std::uint64_t count;
  std::uint64_t vocab_size;
  std::uint64_t checksum;
  std::uint64_t zeros[3];
};
static_assert(sizeof(Header) == 64);

template <typename T>
std::string to_bytes(const std::vector<std::int32_t>& tokens) {
  std::string bytes(tokens.size() * sizeof(T), '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const T value = static_cast<T>(tokens[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

} // namespace

void write_token_file(
    const std::string& path,
    const std::vector<std::int32_t>& tokens,
    std::int64_t vocab_size) {
  for (const auto token : tokens) {
    if (token < 0 || token >= vocab_size) {
      throw ConfigError(
          str(path, ": token ", token, " is outside of the vocabulary of ", vocab_size));
    }
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(header.magic));
  header.version = kVersion;
  header.token_bytes = vocab_size <= 65536 ? 2 : 4;
  header.count = tokens.size();
  header.vocab_size = static_cast<std::uint64_t>(vocab_size);
  const std::string data =
      header.token_bytes == 2 ? to_bytes<std::uint16_t>(tokens) : to_bytes<std::uint32_t>(tokens);
  header.checksum = hash_text(data);
  std::string content(sizeof(header), '\0');
  std::memcpy(content.data(), &header, sizeof(header));
  write_file(path, content + data);
}

TokenDataset::TokenDataset(const std::string& path, bool verify) : path_(path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) {
    const int reason = errno;
    if (file >= 0) {
      close(file);
    }
    throw ConfigError(
        str("cannot open token file ",
            path,
            ": ",
            std::strerror(reason),
            "; `tessera data prepare` writes it"));
  }
  mapped_bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (mapped_bytes_ < sizeof(Header)) {
    close(file);
    throw ConfigError(
        str(path,
            " is no token file: it has ",
            mapped_bytes_,
            " bytes, its header alone has ",
            sizeof(Header)));
  }
  mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, file, 0);
  const int reason = errno;
  close(file);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw ConfigError(str("cannot map token file ", path, ": ", std::strerror(reason)));
  }
  try {
    check_header();
    Header header;
    std::memcpy(&header, mapping_, sizeof(header));
    if (verify && hash_bytes(data(), count_ * token_bytes_) != header.checksum) {
      throw ConfigError(
          str(path,
              " has changed since it was written (checksum differs); remove it "
              "and run `tessera data prepare` again"));
    }
  } catch (...) {
    munmap(mapping_, mapped_bytes_);
    throw;
  }
}

void TokenDataset::check_header() {
  Header header;
  std::memcpy(&header, mapping_, sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) {
    throw ConfigError(str(path_, " is no token file: it does not begin with ", kMagic));
  }
  if (header.version != kVersion || (header.token_bytes != 2 && header.token_bytes != 4)) {
    throw ConfigError(
        str(path_,
            " has version ",
            header.version,
            " and ",
            header.token_bytes,
            " bytes per token; this program reads version ",
            kVersion,
            " with 2 or 4"));
  }
  const auto room = (mapped_bytes_ - sizeof(Header)) / header.token_bytes;
  if (header.count > room) {
    throw ConfigError(
        str(path_, " is truncated: its header says ", header.count, " tokens, there are ", room));
  }
  count_ = header.count;
  token_bytes_ = header.token_bytes;
  vocab_size_ = static_cast<std::int64_t>(header.vocab_size);
}

TokenDataset::~TokenDataset() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapped_bytes_);
  }
}

TokenDataset::TokenDataset(TokenDataset&& other) noexcept {
  *this = std::move(other);
}

TokenDataset& TokenDataset::operator=(TokenDataset&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(count_, other.count_);
  std::swap(token_bytes_, other.token_bytes_);
  std::swap(vocab_size_, other.vocab_size_);
  return *this;
}

const unsigned char* TokenDataset::data() const {
  return static_cast<const unsigned char*>(mapping_) + sizeof(Header);
}

std::uint64_t TokenDataset::content_hash() const {
  Header header;
  std::memcpy(&header, mapping_, sizeof(header));
  return header.checksum;
}

void TokenDataset::copy(std::uint64_t begin, std::uint64_t count, std::int64_t* out) const {
  TESSERA_CHECK(
      begin <= count_ && count <= count_ - begin,
      path_,
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
