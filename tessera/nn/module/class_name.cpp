#include "tessera/nn/module/class_name.h"

#include <c10/util/Type.h>

namespace tessera::nn {

std::string class_name(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
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
