#include "tessera/nn/module/script_class.h"

#include <c10/util/Type.h>

#include "tessera/nn/module/class_name.h"

namespace tessera::nn {

const std::type_info& script_class(const torch::nn::Module& module) {
  const auto* made = dynamic_cast<const ScriptClass*>(&module);
  return made == nullptr ? typeid(module) : made->script_class();
}

std::string script_class_name(const torch::nn::Module& module) {
  return c10::demangle(script_class(module).name());
}

std::string type_name(const torch::nn::Module& module) {
  return class_name(script_class(module));
}

} // namespace tessera::nn
