#pragma once

#include <string>
#include <typeinfo>

namespace tessera::nn {

/// Class name without namespace, template arguments' scopes and "Impl", for people: "GPTBlock".
std::string class_name(const std::type_info& type);

} // namespace tessera::nn
