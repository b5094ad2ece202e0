#include "tessera/nn/module/operation_scopes.h"

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"

namespace tessera::nn {

namespace {

struct OpenScopes {
  std::vector<ScopeName> names;
  int unnamed = 0; // that were opened
  bool recorded = false; // the thread runs a forward whose operators are recorded
};

OpenScopes& open_scopes() {
  thread_local OpenScopes scopes;
  return scopes;
}

void refuse_scope_without_effect(const std::string& scope) {
  // Only the code of a step has an interceptor; a script of one process has none.
  if (open_scopes().recorded || current_interceptor() == nullptr) {
    return;
  }
  throw UserError(str(
      scope,
      " is opened inside a step where it has no effect: scopes place operators in the forward "
      "of a model that is called with \"partition_mode\": \"operations\" (a backward runs where "
      "its forward did), and modules where these are made. Open it there, or leave it out"));
}

} // namespace

std::string text_of(const ScopeName& scope) {
  return scope.name.empty() ? str("tessera::colocation number ", scope.number, " without a name")
                            : str("tessera::colocation(\"", scope.name, "\")");
}

std::string text_of(const OperatorWish& wish) {
  std::string text = wish.rank < 0 ? "" : str("tessera::partition(", wish.rank, ")");
  for (const ScopeName& scope : wish.together) {
    text += (text.empty() ? "" : ", ") + text_of(scope);
  }
  return text.empty() ? "in no scope" : "in " + text;
}

PartitionScope::PartitionScope(int index) : previous_(mark_defaults().partition) {
  if (index < 0) {
    throw ConfigError(str("partition(", index, "): write an index of 0 or more"));
  }
  refuse_scope_without_effect(str("tessera::partition(", index, ")"));
  mark_defaults().partition = index;
}

PartitionScope::~PartitionScope() {
  mark_defaults().partition = previous_;
}

ColocationScope::ColocationScope() {
  OpenScopes& scopes = open_scopes();
  const ScopeName scope{.number = scopes.unnamed};
  refuse_scope_without_effect(text_of(scope));
  ++scopes.unnamed;
  scopes.names.push_back(scope);
}

ColocationScope::ColocationScope(const std::string& name) {
  if (name.empty()) {
    throw ConfigError(
        "tessera::colocation(\"\"): write a name, or none for operators of this scope alone");
  }
  refuse_scope_without_effect(text_of(ScopeName{.name = name}));
  open_scopes().names.push_back({.name = name});
}

ColocationScope::~ColocationScope() {
  open_scopes().names.pop_back();
}

RecordedForward::RecordedForward() {
  const OperatorWish open{mark_defaults().partition, open_scopes().names};
  if (open != OperatorWish{}) {
    throw UserError(
        str("partition_mode \"operations\": the model is called ",
            text_of(open),
            ", which counts inside of its forward only; open it there. A whole model is placed by "
            "tessera::set_partition, with \"auto_partition\": false"));
  }
  open_scopes() = {.recorded = true};
}

RecordedForward::~RecordedForward() {
  open_scopes() = {};
}

OperatorWish RecordedForward::wish() {
  return {mark_defaults().partition, open_scopes().names};
}

} // namespace tessera::nn
