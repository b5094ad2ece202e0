#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/json.h"
#include "tessera/checkpoint/records.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

namespace {

checkpoint::TensorRecord tensor(const std::string& name) {
  checkpoint::TensorRecord record;
  record.name = name;
  record.dtype = "F32";
  record.shape = {2, 3};
  record.slice = {{4, 3}, {2, 0}};
  record.file = "model_0.safetensors";
  record.hash = 12345;
  return record;
}

std::string without_checksum(const std::string& sealed) {
  auto object = nlohmann::json::parse(sealed);
  object.erase("checksum");
  return object.dump();
}

} // namespace

std::vector<std::string> seeds() {
  checkpoint::Meta empty;
  empty.tag = "step_1";
  checkpoint::Meta full;
  full.torch_version = "1.13.1";
  full.tag = "step_20";
  full.sequence = 7;
  full.model = "gpt";
  full.degrees = {.pipeline = 2, .tensor = 1, .reduced_data = 2};
  full.partition = {{"", 0}, {"head", 1}};
  full.user_content = R"({"step": 20})";
  full.files = {{"model_0.safetensors", 400, 99}};
  full.tensors = {tensor("a"), tensor("b")};
  full.parameter_hash = checkpoint::combined_hash(full.tensors);
  return {
      without_checksum(checkpoint::to_json(empty)), without_checksum(checkpoint::to_json(full))};
}

} // namespace tessera::fuzz

// The input is a checkpoint's meta.json without its checksum, which is put on
// here: random changes of the sealed text would all end at the seal. The text
// is read as it is too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    checkpoint::meta_from_json(text, "fuzz");
  } catch (const CheckpointError&) {
    // nearly always: no checksum
  }
  try {
    const nlohmann::json object = checkpoint::parse_json(text, "fuzz");
    if (!object.is_object()) {
      fuzz::count(false);
      return 0;
    }
    const checkpoint::Meta meta = checkpoint::meta_from_json(checkpoint::seal(object), "fuzz");
    const std::string written = checkpoint::to_json(meta);
    if (checkpoint::to_json(checkpoint::meta_from_json(written, "again")) != written) {
      fuzz::broken("what was accepted is written as it was read");
    }
    fuzz::count(true);
  } catch (const CheckpointError&) {
    fuzz::count(false);
  }
  return 0;
}
