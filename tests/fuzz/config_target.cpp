#include "tessera/base/error.h"
#include "tessera/config/config.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  config::Config changed;
  changed.microbatches = 4;
  changed.ddp = true;
  return {
      config::to_json({}),
      config::to_json(changed),
      R"({"partitions": 2, "microbatches": 2, "ddp": true, "seed": 5})",
      R"({"smdistributed": {"modelparallel": {"enabled": true,
          "parameters": {"memory_weight": 0.5, "ddp": true}}},
          "mpi": {"enabled": true, "processes_per_host": 4}})"};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const config::Config config = config::parse_config(text, "fuzz");
    config::validate(config);
    if (!(config::parse_config(config::to_json(config), "again") == config)) {
      fuzz::broken("what was accepted is written as it was read");
    }
    fuzz::count(true);
  } catch (const ConfigError&) {
    fuzz::count(false);
  }
  return 0;
}
