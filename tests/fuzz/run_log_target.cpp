#include "tessera/base/error.h"
#include "tessera/report/run_log.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  const std::string run =
      R"({"type":"run","version":1,"model":"m","started":"2026-01-02T03:04:05Z","data":"d",)"
      R"("precision":"f32","schedule":"simple","world_size":2,"pipeline_parallel_degree":2,)"
      R"("tensor_parallel_degree":1,"data_parallel_degree":1,"microbatches":2,"parameters":10,)"
      R"("tokens_per_step":64,"first_step":0,"hosts":["a","a"],"config":{"seed":1},"plan":null})";
  const std::string step =
      R"({"type":"step","step":0,"loss":2.5,"tokens_per_second":10,"step_seconds":6.4,"lr":0.001,)"
      R"("grad_norm":1,"bubble_share":0.25,"memory_bytes":[100,200]})";
  const std::string rest = R"({"type":"validation","step":0,"loss":null})"
                           "\n"
                           R"({"type":"traffic","step":0,"group":"dp","calls":3,"bytes":100})"
                           "\n"
                           R"({"type":"sample","step":0,"prompt":"a","text":"b"})"
                           "\n";
  return {run + "\n", run + "\n" + step + "\n" + rest, run + "\n" + step + "\n" + run + "\n{\"to"};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const report::RunLog log = report::parse_run_log(text, "fuzz");
    if (log.run.world_size < 1) {
      fuzz::broken("a run has ranks");
    }
    fuzz::count(true);
  } catch (const Error&) {
    fuzz::count(false);
  }
  return 0;
}
