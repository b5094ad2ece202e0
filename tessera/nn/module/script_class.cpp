#include "tessera/nn/module/script_class.h"

#include <c10/util/Type.h>

namespace tessera::nn {

const std::type_info& script_class(const torch::nn::Module& module) {
  const auto* made = dynamic_cast<const ScriptClass*>(&module);
  return made == nullptr ? typeid(module) : made->script_class();
}

std::string script_class_name(const torch::nn::Module& module) {
  return c10::demangle(script_class(module).name());
}

std::string type_name(const torch::nn::Module& module) {
  std::string name = script_class_name(module);
  const auto arguments = name.find('<');
  const auto scope = name.rfind("::", arguments);
  if (scope != std::string::npos) {
    name = name.substr(scope + 2);
  }
  if (name.size() > 4 && name.ends_with("Impl")) {
    name.resize(name.size() - 4);
  }
  return name;
}

} // namespace tessera::nn
