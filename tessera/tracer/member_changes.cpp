#include "tessera/tracer/member_changes.h"

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"

namespace tessera::tracer {

namespace {

bool is_own(const torch::nn::Module& module) {
  return nn::script_class_name(module).starts_with("tessera::nn::");
}

} // namespace

std::vector<WatchedModule> watched_modules(const torch::nn::Module& root) {
  std::vector<WatchedModule> watched = {{&root, "", str("the model (", nn::type_name(root), ")")}};
  for (const auto& child : root.named_modules(std::string(), false)) {
    const torch::nn::Module& module = *child.value();
    if (nn::object_size(module) > 0 && !is_own(module)) {
      watched.push_back(
          {&module, child.key(), str("'", child.key(), "' (", nn::type_name(module), ")")});
    }
  }
  return watched;
}

MemberChanges::MemberChanges(const std::vector<torch::nn::Module*>& roots) {
  for (const torch::nn::Module* root : roots) {
    for (const WatchedModule& watched : watched_modules(*root)) {
      watched_.push_back({watched.name, ObjectBytes(*watched.module)});
    }
  }
}

std::vector<std::string> MemberChanges::found() const {
  std::vector<std::string> names;
  for (const Watched& watched : watched_) {
    if (watched.before.changed()) {
      names.push_back(watched.name);
    }
  }
  return names;
}

} // namespace tessera::tracer
