#include "models/data/input/documents.h"

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

namespace tessera::data {

namespace {

constexpr std::size_t kMostPieceBytes = std::size_t{1} << 20; // of lines without an end
constexpr std::size_t kMostJsonLineBytes = std::size_t{1} << 28;
constexpr std::size_t kKeysInMessage = 8;

bool is_json_lines(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".jsonl.gz") ||
         path.ends_with(".ndjson.gz");
}

/// Hands out the sections of a text that is there.
class TextSections {
 public:
  void set(std::string text) {
    text_ = std::move(text);
    rest_ = split_sections(text_);
    at_ = 0;
  }
  bool next(Section& section) {
    if (at_ == rest_.size()) {
      return false;
    }
    section.begins = at_ == 0;
    section.text = rest_[at_++];
    section.ends = at_ == rest_.size();
    return true;
  }

 private:
  std::string text_;
  std::vector<std::string_view> rest_;
  std::size_t at_ = 0;
};

class MemoryDocuments : public Documents {
 public:
  explicit MemoryDocuments(const std::vector<Document>& documents) : documents_(documents) {}

  bool next(Section& section) override {
    while (!sections_.next(section)) {
      if (at_ == documents_.size()) {
        return false;
      }
      sections_.set(documents_[at_].text);
      position_ += documents_[at_++].text.size();
    }
    return true;
  }
  std::uint64_t position_bytes() const override {
    return position_;
  }

 private:
  const std::vector<Document>& documents_;
  std::size_t at_ = 0;
  std::uint64_t position_ = 0;
  TextSections sections_;
};

/// One file: what is left of it.
class FileReader {
 public:
  virtual ~FileReader() = default;
  virtual bool next(Section& section) = 0;
  virtual std::uint64_t position_bytes() const = 0;
  virtual std::uint64_t empty_documents() const {
    return 0;
  }
};

class PlainText : public FileReader {
 public:
  explicit PlainText(const std::string& path) : lines_(path, kMostPieceBytes) {
    advance();
    if (!ahead_) {
      throw ConfigError(str(path, " is empty, expected a text file in UTF-8"));
    }
  }

  bool next(Section& section) override {
    if (!ahead_) {
      return false;
    }
    section.text.clear();
    section.begins = !begun_;
    begun_ = true;
    while (ahead_) {
      section.text += *ahead_;
      advance();
      // What has no line end is a piece of a long line, or the last line.
      if (section.text.size() > kSectionBytes) {
        break;
      }
    }
    section.ends = !ahead_;
    if (section.ends && !section.text.ends_with('\n')) {
      section.text += '\n';
    }
    return true;
  }
  std::uint64_t position_bytes() const override {
    return lines_.source().position_bytes();
  }

 private:
  void advance() {
    std::string_view line;
    if (lines_.next(line)) {
      ahead_ = std::string(line);
      std::erase(*ahead_, '\r');
    } else {
      ahead_.reset();
    }
  }

  LineReader lines_;
  std::optional<std::string> ahead_;
  bool begun_ = false;
};

class JsonLines : public FileReader {
 public:
  JsonLines(const std::string& path, const std::string& field)
      : lines_(path, kMostJsonLineBytes), field_(field) {}

  bool next(Section& section) override {
    while (!sections_.next(section)) {
      std::string_view line;
      if (!lines_.next(line)) {
        if (!any_) {
          throw ConfigError(str(lines_.source().path(), " has no line with a document"));
        }
        return false;
      }
      if (line.find_first_not_of(" \t\r\n") == std::string_view::npos) {
        continue;
      }
      any_ = true;
      std::string text = text_of(line);
      empty_ += text.empty() ? 1 : 0;
      sections_.set(std::move(text));
    }
    return true;
  }
  std::uint64_t position_bytes() const override {
    return lines_.source().position_bytes();
  }
  std::uint64_t empty_documents() const override {
    return empty_;
  }

 private:
  std::string text_of(std::string_view line) const {
    if (line.size() + 4 > kMostJsonLineBytes) {
      throw ConfigError(
          str(lines_.place(), " has more than ", kMostJsonLineBytes >> 20U, " MiB; divide it"));
    }
    OrderedJson json;
    try {
      json = parse_json(line, lines_.place());
    } catch (const JsonError& error) {
      throw ConfigError(error.what());
    }
    if (!json.is_object()) {
      throw ConfigError(str(lines_.place(), ": expected an object, found ", briefly(json)));
    }
    const auto found = json.find(field_);
    if (found == json.end()) {
      std::string keys;
      std::size_t named = 0;
      for (const auto& item : json.items()) {
        if (named++ < kKeysInMessage) {
          keys += str(keys.empty() ? "" : ", ", quoted_briefly(item.key()));
        }
      }
      throw ConfigError(
          str(lines_.place(),
              ": there is no field \"",
              field_,
              "\"; the object has ",
              keys.empty() ? "none" : keys,
              named > kKeysInMessage ? ", ..." : "",
              ": name the one with the text with --field"));
    }
    if (!found->is_string()) {
      throw ConfigError(
          str(lines_.place(),
              ": the field \"",
              field_,
              "\" is ",
              briefly(*found),
              ", expected a text"));
    }
    auto text = found->get<std::string>();
    if (text.find('\0') != std::string::npos) {
      throw ConfigError(str(lines_.place(), ": the field \"", field_, "\" has a NUL character"));
    }
    return text;
  }

  LineReader lines_;
  const std::string& field_;
  TextSections sections_;
  bool any_ = false;
  std::uint64_t empty_ = 0;
};

class FileDocuments : public Documents {
 public:
  FileDocuments(std::vector<std::string> files, std::string field)
      : files_(std::move(files)), field_(std::move(field)) {
    for (const std::string& file : files_) {
      if (file.ends_with(".json") || file.ends_with(".json.gz")) {
        throw ConfigError(
            str(file,
                " is called .json, which is neither plain text nor JSON lines; when each of its "
                "lines is an object, call it .jsonl"));
      }
    }
  }

  bool next(Section& section) override {
    while (!file_ || !file_->next(section)) {
      if (file_) {
        position_ += file_->position_bytes();
        empty_ += file_->empty_documents();
        file_.reset();
      }
      if (at_ == files_.size()) {
        return false;
      }
      const std::string& path = files_[at_++];
      if (is_json_lines(path)) {
        file_ = std::make_unique<JsonLines>(path, field_);
      } else {
        file_ = std::make_unique<PlainText>(path);
      }
    }
    return true;
  }
  std::uint64_t position_bytes() const override {
    return position_ + (file_ ? file_->position_bytes() : 0);
  }
  std::uint64_t empty_documents() const override {
    return empty_ + (file_ ? file_->empty_documents() : 0);
  }

 private:
  std::vector<std::string> files_;
  std::string field_;
  std::size_t at_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t empty_ = 0;
  std::unique_ptr<FileReader> file_;
};

} // namespace

std::unique_ptr<Documents> documents_of(const std::vector<Document>& documents) {
  return std::make_unique<MemoryDocuments>(documents);
}

std::unique_ptr<Documents> documents_in(std::vector<std::string> files, std::string field) {
  return std::make_unique<FileDocuments>(std::move(files), std::move(field));
}

// A section ends after the first line end at or beyond the wanted size.
std::vector<std::string_view> split_sections(std::string_view text) {
  std::vector<std::string_view> sections;
  while (!text.empty()) {
    auto end = text.size();
    if (text.size() > kSectionBytes) {
      const auto newline = text.find('\n', kSectionBytes);
      end = newline == std::string_view::npos ? text.size() : newline + 1;
    }
    if (end > kMostPieceBytes) {
      end = kMostPieceBytes;
      while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
        --end; // not inside a character
      }
    }
    sections.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return sections;
}

} // namespace tessera::data
