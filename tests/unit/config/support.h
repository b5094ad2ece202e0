#pragma once

#include <string>

#include "tessera/base/error.h"
#include "tessera/config/config.h"

namespace tessera::config::test {

/// The message of the ConfigError that `call` throws, or "no error".
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// The message that parsing this text gives.
inline std::string parse_error(const std::string& json_text) {
  return error_of([&] { parse_config(json_text, "test.json"); });
}

} // namespace tessera::config::test
