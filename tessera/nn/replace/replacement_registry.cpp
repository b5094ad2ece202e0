#include "tessera/nn/replace/replacement_registry.h"

#include <mutex>
#include <unordered_map>

#include "tessera/nn/module/class_name.h"

namespace tessera {

std::string detail::short_type_name(const std::type_info& type) {
  return nn::class_name(type);
}

namespace nn {

namespace {

struct RuleTable {
  std::mutex mutex;
  std::unordered_map<std::type_index, std::shared_ptr<const TpRule>> rules;
};

// Function-local: registrations run during static initialisation, in no order.
RuleTable& rule_table() {
  static auto* table = new RuleTable;
  return *table;
}

} // namespace

void set_tp_rule(std::type_index original, TpRule rule) {
  RuleTable& table = rule_table();
  const std::lock_guard lock(table.mutex);
  auto& known = table.rules[original];
  if (known == nullptr || known->built_in || !rule.built_in) {
    known = std::make_shared<const TpRule>(std::move(rule));
  }
}

std::shared_ptr<const TpRule> find_tp_rule(const torch::nn::Module& module) {
  RuleTable& table = rule_table();
  const std::lock_guard lock(table.mutex);
  const auto found = table.rules.find(script_class(module));
  return found == table.rules.end() ? nullptr : found->second;
}

} // namespace nn
} // namespace tessera
