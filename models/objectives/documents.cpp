#include "models/objectives/documents.h"

#include "tessera/base/error.h"

namespace tessera::models {

void check_takes_documents(
    const Options& options,
    const std::string& family,
    const std::string& asked_by) {
  if (!continues_a_text(options)) {
    throw ConfigError(
        str(asked_by,
            " is for models that learn the next token (gpt, llama, gptj, gpt_neo, gpt_neox); one "
            "of the family ",
            family,
            " attends to all of its sample: leave ",
            asked_by,
            " out"));
  }
}

} // namespace tessera::models
