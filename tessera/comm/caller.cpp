#include "tessera/comm/caller.h"

#include <algorithm>

namespace tessera::comm {

namespace {

thread_local Caller t_caller;

} // namespace

Caller Caller::of(std::string_view name) {
  Caller caller;
  const std::size_t most = caller.text.size() - 1; // a zero ends it
  name.remove_prefix(name.size() - std::min(name.size(), most));
  std::copy(name.begin(), name.end(), caller.text.begin());
  return caller;
}

std::string_view Caller::name() const {
  const auto* end = std::find(text.begin(), text.end(), '\0');
  return {text.data(), static_cast<std::size_t>(end - text.begin())};
}

std::uint32_t Caller::hash() const {
  std::uint32_t hash = 2166136261U; // FNV-1a
  for (const char c : name()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return hash;
}

const Caller& current_caller() {
  return t_caller;
}

CallerScope::CallerScope(const Caller& caller) : previous_(t_caller) {
  t_caller = caller;
}

CallerScope::~CallerScope() {
  t_caller = previous_;
}

} // namespace tessera::comm
