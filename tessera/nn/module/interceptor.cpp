#include "tessera/nn/module/interceptor.h"

#include <mutex>
#include <unordered_map>

#include <c10/util/Type.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"

namespace tessera::nn {

namespace {

thread_local Interceptor* t_interceptor = nullptr;

struct KnownCall {
  std::string name;
  Invoker invoker = nullptr;
  bool ambiguous = false;
};

struct InvokerTable {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, KnownCall> entries;
};

// Function-local: registrations run during static initialisation, in no order.
InvokerTable& invokers() {
  static auto* table = new InvokerTable;
  return *table;
}

} // namespace

CallKey register_invoker(const std::string& name, Invoker invoker) {
  CallKey key{name, hash_text(name)};
  InvokerTable& table = invokers();
  const std::lock_guard lock(table.mutex);
  const auto [entry, added] = table.entries.emplace(key.hash, KnownCall{name, invoker});
  KnownCall& known = entry->second;
  TESSERA_CHECK(added || known.name == name, "two calls hash alike: ", name, " and ", known.name);
  // This is no error yet: it runs before main, and a call that stays on its rank
  // needs no unique name.
  known.ambiguous = known.ambiguous || known.invoker != invoker;
  return key;
}

Invoker find_invoker(std::uint64_t hash) {
  InvokerTable& table = invokers();
  const std::lock_guard lock(table.mutex);
  const auto entry = table.entries.find(hash);
  TESSERA_CHECK(
      entry != table.entries.end(),
      "a module call that this program does not contain was asked for; do all "
      "ranks run the same binary?");
  if (entry->second.ambiguous) {
    throw PlanError(
        str("two module classes of this program have the name ",
            c10::demangle(entry->second.name.c_str()),
            ", so a call cannot say which of them to run on another rank; give "
            "them different names (classes in anonymous namespaces of two "
            "files share theirs)"));
  }
  return entry->second.invoker;
}

Interceptor* current_interceptor() {
  return t_interceptor;
}

at::Tensor Interceptor::tensor_named(const torch::nn::Module& module, const std::string& name) {
  TESSERA_CHECK(false, "nobody knows tensor '", name, "' of a ", type_name(module));
  return {};
}

InterceptorScope::InterceptorScope(Interceptor* interceptor) : previous_(t_interceptor) {
  t_interceptor = interceptor;
}

InterceptorScope::~InterceptorScope() {
  t_interceptor = previous_;
}

} // namespace tessera::nn
