#include "tessera/nn/replace/registry.h"

#include <mutex>
#include <unordered_map>

#include <c10/util/Type.h>

#include "tessera/nn/replace/builtin.h"

namespace tessera {

std::string detail::short_type_name(const std::type_info& type) {
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

namespace nn {

namespace {

struct RuleTable {
  std::recursive_mutex mutex; // the built-in rules are registered inside
  bool complete = false;
  using Rules = std::unordered_map<std::type_index, std::shared_ptr<const TpRule>>;
  Rules rules;
  Rules rules_on_mesh;
};

// Function-local: registrations run during static initialisation, in no order.
RuleTable& rule_table() {
  static auto* table = new RuleTable;
  return *table;
}

// First of all, so that a program's own rule for a class of torch wins.
void complete(RuleTable& table) {
  if (!std::exchange(table.complete, true)) {
    register_builtin_tp_rules();
  }
}

} // namespace

void set_tp_rule(std::type_index original, TpRule rule) {
  RuleTable& table = rule_table();
  const std::lock_guard lock(table.mutex);
  complete(table);
  auto& rules = rule.on_mesh ? table.rules_on_mesh : table.rules;
  rules[original] = std::make_shared<const TpRule>(std::move(rule));
}

std::shared_ptr<const TpRule> find_tp_rule(const torch::nn::Module& module) {
  RuleTable& table = rule_table();
  const std::lock_guard lock(table.mutex);
  complete(table);
  const auto& rules =
      tensor_parallel().distribution == Distribution::kTwoD ? table.rules_on_mesh : table.rules;
  const auto found = rules.find(script_class(module));
  return found == rules.end() ? nullptr : found->second;
}

} // namespace nn
} // namespace tessera
