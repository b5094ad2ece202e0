#include "tessera/config/transfer_variables.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/config/keys.h"

namespace tessera::config {

namespace {

bool says_nothing(const char* text) {
  return text == nullptr || *text == '\0';
}

bool read_switch(const char* variable, std::string_view text) {
  if (text == "1" || text == "true") {
    return true;
  }
  if (text == "0" || text == "false") {
    return false;
  }
  throw ConfigError(str(variable, " is \"", text, "\"; write 0, 1, false or true"));
}

std::int64_t read_bytes(const char* variable, std::string_view text) {
  std::int64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size() || bytes < 1) {
    throw ConfigError(str(variable, " is \"", text, "\"; write a number of bytes of 1 or more"));
  }
  return bytes;
}

std::int64_t smallest_buffer() {
  return static_cast<std::int64_t>(find_key("transport_buffer_bytes")->min);
}

} // namespace

Launched
with_transfer_variables(const Config& given, const char* disable, const char* buffer_bytes) {
  Launched launched{given, {}};
  Config& config = launched.config;
  if (!says_nothing(disable) && read_switch(kDisableTransferVariable, disable) &&
      config.same_node_backend != SameNodeBackend::kMpi) {
    launched.changes.push_back(
        str("\"same_node_backend\" is \"mpi\" by ",
            kDisableTransferVariable,
            ", not \"",
            config.same_node_backend.text(),
            "\""));
    config.same_node_backend = SameNodeBackend::kMpi;
  }
  if (!says_nothing(buffer_bytes)) {
    const std::int64_t bytes =
        std::max(smallest_buffer(), read_bytes(kTransferBufferVariable, buffer_bytes));
    if (bytes != config.transport_buffer_bytes) {
      launched.changes.push_back(
          str("\"transport_buffer_bytes\" is ",
              bytes,
              " by ",
              kTransferBufferVariable,
              ", not ",
              config.transport_buffer_bytes));
      config.transport_buffer_bytes = bytes;
    }
  }
  return launched;
}

} // namespace tessera::config
