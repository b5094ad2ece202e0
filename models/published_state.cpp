#include "models/published_state.h"

#include <mutex>

#include <torch/torch.h>

#include "tessera/nn/module/state_translation.h"

#include "models/bert.h"
#include "models/decoder.h"
#include "models/gpt.h"
#include "models/load.h"
#include "models/t5.h"

namespace tessera::models {

namespace {

bool is_published(const torch::nn::Module& module) {
  return dynamic_cast<const GptImpl*>(&module) != nullptr ||
         dynamic_cast<const DecoderImpl*>(&module) != nullptr ||
         dynamic_cast<const BertImpl*>(&module) != nullptr ||
         dynamic_cast<const RobertaImpl*>(&module) != nullptr ||
         dynamic_cast<const T5Impl*>(&module) != nullptr;
}

nn::TranslateState translation_of(const torch::nn::Module& module) {
  if (!is_published(module)) {
    return nullptr;
  }
  return [wanted = wanted_parameters(module)](
             const std::map<std::string, at::Tensor>& state, bool strict) {
    return in_form_of(wanted, state, strict, "load_state_dict: the state");
  };
}

} // namespace

void take_published_states() {
  static std::once_flag once;
  std::call_once(once, [] { nn::register_state_translation(translation_of); });
}

} // namespace tessera::models
