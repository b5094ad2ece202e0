#include "tessera/base/error.h"

#include "models/published_config.h"
#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

std::vector<std::string> seeds() {
  models::GptOptions other;
  other.n_inner = 100;
  other.activation_function = "relu";
  other.tie_word_embeddings = false;
  return {
      models::to_published(models::GptOptions()),
      models::to_published(other, 2),
      R"({"hidden_size": 64, "num_attention_heads": 4, "add_cross_attention": false,
          "pruned_heads": {}, "task_specific_params": {"a": {"b": 1}}, "n_ctx": 8})",
      models::to_published(models::decoder_defaults("llama")),
      models::to_published(models::decoder_defaults("gptj"), 2),
      models::to_published(models::decoder_defaults("gpt_neo")),
      models::to_published(models::decoder_defaults("gpt_neox")),
      R"({"model_type": "gpt_neo", "num_layers": 4, "window_size": 8,
          "attention_types": [[["global", "local"], 2]]})",
      R"({"model_type": "gpt_neox", "hidden_size": 24, "num_attention_heads": 4,
          "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}})"};
}

void check_decoder(const std::string& text) {
  const models::DecoderOptions options = models::decoder_from_published(text, "fuzz");
  const std::string written = models::to_published(options);
  if (models::to_published(models::decoder_from_published(written, "again")) != written) {
    broken("a decoder that was accepted is written as it was read");
  }
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    if (std::holds_alternative<models::DecoderOptions>(
            models::options_from_published(text, "fuzz"))) {
      fuzz::check_decoder(text);
      fuzz::count(true);
      return 0;
    }
    const models::GptOptions options = models::gpt_from_published(text, "fuzz");
    const std::string written = models::to_published(options);
    if (models::to_json(models::gpt_from_published(written, "again")) != models::to_json(options)) {
      fuzz::broken("what was accepted is written as it was read");
    }
    if (options.n_embd % options.n_head != 0) {
      fuzz::broken("heads divide the width");
    }
    fuzz::count(true);
  } catch (const ConfigError&) {
    fuzz::count(false);
  }
  return 0;
}
