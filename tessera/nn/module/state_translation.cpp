#include "tessera/nn/module/state_translation.h"

#include <mutex>
#include <utility>
#include <vector>

namespace tessera::nn {

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<MakeStateTranslation> makers;
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

} // namespace

void register_state_translation(MakeStateTranslation make) {
  const std::lock_guard lock(registry().mutex);
  registry().makers.push_back(std::move(make));
}

TranslateState state_translation_of(const torch::nn::Module& module) {
  const std::lock_guard lock(registry().mutex);
  for (const MakeStateTranslation& make : registry().makers) {
    if (TranslateState found = make(module)) {
      return found;
    }
  }
  return nullptr;
}

} // namespace tessera::nn
