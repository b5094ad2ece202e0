#include "tessera/base/error.h"

#include "cli/train/job.h"
#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  return {
      R"({"data": {"directory": "data"}})",
      R"({
  // Comments and last commas may stand here.
  "parallel": {"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": true},
  "model": {"name": "gpt-mini", "options": {"dropout": 0.1}},
  "data": {"directory": "data", "sequence": 256, "batch": 16},
  "optimizer": {"type": "adamw", "learning_rate": 1e-3, "warmup_steps": 20, "decay": "cosine"},
  "checkpoint": {"directory": "checkpoints", "every": 100, "keep": 2, "full": false},
  "bad_steps": {"not_finite": "skip", "spike": 4, "most_skipped": 3},
  "validation": {"every": 50, "batches": 4},
  "sample": {"prompt": "In the beginning", "tokens": 40, "temperature": 0.8, "top_k": 40},
  "strategy": "given", "steps": 200, "accumulation": 1, "precision": "f32", "log_every": 10,
})",
      R"({"data": {"directory": "d"}, "strategy": "auto", "parallel": {"seed": 3}})"};
}

} // namespace tessera::fuzz

// A job file. What is accepted is accepted again as the log holds it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const cli::Job job = cli::parse_job(text, "fuzz");
    const cli::Job again = cli::parse_job(cli::effective_job(job), "again");
    if (!(again.parallel == job.parallel) || again.steps != job.steps ||
        again.data.batch != job.data.batch ||
        again.optimizer.rate.peak != job.optimizer.rate.peak) {
      fuzz::broken("a job as it runs says what its file says");
    }
    fuzz::count(true);
  } catch (const ConfigError&) {
    fuzz::count(false);
  }
  return 0;
}
