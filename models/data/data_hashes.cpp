#include "models/data/data_hashes.h"

#include "tessera/base/files.h"
#include "tessera/base/hash.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

#include "models/data/folder_files.h"

namespace tessera::data {

std::string hash_of_tokenizer(const std::string& path) {
  return hexadecimal(hash_text(read_file(path)));
}

DataHashes
hashes_of(const TokenDataset& train, const TokenDataset& validation, const std::string& folder) {
  return {
      hexadecimal(train.content_hash()),
      hexadecimal(validation.content_hash()),
      hash_of_tokenizer(tokenizer_path(folder))};
}

template <typename Visit>
void describe(Visit& visit, DataHashes& hashes) {
  visit.allow_unknown();
  visit({.name = "train"}, hashes.train);
  visit({.name = "validation"}, hashes.validation);
  visit({.name = "tokenizer"}, hashes.tokenizer);
}

std::string to_json(const DataHashes& hashes) {
  return form::write(hashes).dump();
}

DataHashes data_hashes_from_json(const std::string& json, const std::string& origin) {
  form::Faults faults(origin);
  DataHashes hashes;
  form::read(OrderedJson::parse(json), hashes, faults);
  return hashes;
}

std::string differences(
    const DataHashes& before,
    const std::string& before_name,
    const DataHashes& now,
    const std::string& now_name) {
  std::string text;
  const auto compare = [&](const char* file, const std::string& was, const std::string& is) {
    if (was != is) {
      text +=
          str(text.empty() ? "" : "\n",
              "  ",
              file,
              ": ",
              before_name,
              " has ",
              was,
              ", ",
              now_name,
              " has ",
              is);
    }
  };
  compare(kTrainFile, before.train, now.train);
  compare(kValidationFile, before.validation, now.validation);
  compare(kTokenizerFile, before.tokenizer, now.tokenizer);
  return text;
}

} // namespace tessera::data
