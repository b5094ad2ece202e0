#include "tessera/nn/replace/replace.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/replace/builtin.h"
#include "tessera/nn/replace/follow_mode.h"

namespace tessera::nn {

namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

constexpr const char* kInside = "is inside a module that is";
constexpr const char* kWhole = "stays whole, as \"tensor_parallel_degree_of\" says";

std::string shown(const std::string& path) {
  return path.empty() ? "the model" : path;
}

// Records which modules hold each parameter and each module of the model.
class Holders {
 public:
  explicit Holders(const ModulePtr& root) {
    enter(root, "");
  }

  /// Returns what `module` shares with modules outside of it; "" for nothing.
  std::string shared_with(const ModulePtr& module) const {
    std::unordered_set<const torch::nn::Module*> inside{module.get()};
    for (const auto& inner : module->modules(/*include_self=*/false)) {
      inside.insert(inner.get());
    }
    for (const auto& inner : module->modules(/*include_self=*/false)) {
      for (const auto& [parent, path] : parents_.at(inner.get())) {
        if (inside.count(parent) == 0) {
          return str("shares its module ", path, " with ", shown(path_of(parent)));
        }
      }
    }
    for (const auto& item : module->named_parameters()) {
      if (!item.value().defined()) {
        continue;
      }
      for (const auto& [holder, name] : parameters_.at(item.value().unsafeGetTensorImpl())) {
        if (inside.count(holder) == 0) {
          return str("shares its parameter ", item.key(), " with ", name);
        }
      }
    }
    return "";
  }

 private:
  void enter(const ModulePtr& module, const std::string& path) {
    if (!paths_.emplace(module.get(), path).second) {
      return;
    }
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      if (item.value().defined()) {
        parameters_[item.value().unsafeGetTensorImpl()].emplace_back(
            module.get(), join_path(path, item.key()));
      }
    }
    for (const auto& child : module->named_children()) {
      const std::string child_path = join_path(path, child.key());
      parents_[child.value().get()].emplace_back(module.get(), child_path);
      enter(child.value(), child_path);
    }
  }

  std::string path_of(const torch::nn::Module* module) const {
    return paths_.at(module);
  }

  using Named = std::vector<std::pair<const torch::nn::Module*, std::string>>;
  std::unordered_map<const torch::nn::Module*, std::string> paths_;
  std::unordered_map<const torch::nn::Module*, Named> parents_;
  std::unordered_map<const void*, Named> parameters_;
};

// The dtype and device of the original's floating-point tensors, and whether
// they need gradients.
void make_alike(torch::nn::Module& module, const torch::nn::Module& original) {
  const auto first_of = [](const torch::nn::Module& of) {
    for (const auto& parameter : of.parameters()) {
      if (parameter.defined() && parameter.is_floating_point()) {
        return parameter;
      }
    }
    return at::Tensor();
  };
  const at::Tensor there = first_of(original);
  const at::Tensor here = first_of(module);
  if (there.defined() && here.defined()) {
    if (here.scalar_type() != there.scalar_type()) {
      module.to(there.scalar_type());
    }
    if (here.device() != there.device() && !there.is_meta()) {
      module.to(there.device());
    }
  }
  for (const auto& parameter : original.parameters()) {
    if (parameter.defined() && !parameter.requires_grad()) {
      for (at::Tensor frozen : module.parameters()) {
        frozen.set_requires_grad(false); // all of the original's are frozen
      }
      break;
    }
  }
  module.train(original.is_training());
}

std::string not_uniform(const torch::nn::Module& module) {
  std::set<at::ScalarType> types;
  std::set<bool> trained;
  for (const auto& parameter : module.parameters()) {
    if (parameter.defined()) {
      types.insert(parameter.scalar_type());
      trained.insert(parameter.requires_grad());
    }
  }
  if (types.size() > 1) {
    return "has parameters of several dtypes";
  }
  return trained.size() > 1 ? "has trained and frozen parameters" : "";
}

// Modules that are made inside get the manual partition of the original, if it has one.
class InheritedPartition {
 public:
  explicit InheritedPartition(const torch::nn::Module& module)
      : previous_(std::exchange(mark_defaults().partition, manual_partition(module))) {}
  ~InheritedPartition() {
    mark_defaults().partition = previous_;
  }
  InheritedPartition(const InheritedPartition&) = delete;
  InheritedPartition& operator=(const InheritedPartition&) = delete;

 private:
  int previous_;
};

// `out->weight = in->weight` ties two layers through a member, past what is registered.
std::string tied_through_member(const torch::nn::Module& module) {
  const auto differs = [&](const at::Tensor& member) {
    const at::Tensor* registered = module.named_parameters(/*recurse=*/false).find("weight");
    return member.defined() && registered != nullptr && !member.is_same(*registered);
  };
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    return differs(linear->weight) ? "weight" : "";
  }
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    return differs(embedding->weight) ? "weight" : "";
  }
  return "";
}

class Replacing {
 public:
  Replacing(
      const ModulePtr& root,
      const std::set<std::string>& whole,
      const std::function<
          std::shared_ptr<DistributedModule>(const torch::nn::Module&, const Make&)>& around)
      : holders_(root), whole_(whole), around_(around) {
    register_builtin_tp_rules();
    result_.root = root;
    visit(root, "", nullptr, "", true);
    check_options();
    check_whole();
  }

  /// Throws: ConfigError where one of the paths is not divided.
  void check_divided(const std::set<std::string>& divided) const {
    for (const std::string& path : divided) {
      if (replaced_around(path) != nullptr) {
        continue;
      }
      const auto whole = std::find_if(stayed_.begin(), stayed_.end(), [&](const auto& stayed) {
        return path.starts_with(stayed + ".");
      });
      throw ConfigError(
          str("tensor_parallel_degree_of, \"",
              path,
              whole != stayed_.end()
                  ? str("\": it lies inside of \"",
                        *whole,
                        "\", which stays whole with all inside of it; leave one of the two out")
                  : "\": no module of this path is divided" + what_to_write(path)));
    }
  }

  Replacements take() {
    return std::move(result_);
  }

 private:
  // `marked_above`: the parent is marked, for modules that cannot be.
  void visit(
      const ModulePtr& module,
      const std::string& path,
      torch::nn::Module* parent,
      const std::string& name,
      bool marked_above) {
    const auto known = replaced_.find(module.get());
    if (known != replaced_.end()) {
      parent->replace_module(name, known->second); // a second parent
      return;
    }
    if (!seen_.insert(module.get()).second ||
        dynamic_cast<DistributedModule*>(module.get()) != nullptr) {
      return;
    }
    const bool marked = is_marked_tensor_parallel(*module);
    if (marked) {
      marked_.push_back(path);
    }
    if (marked && whole_.contains(path)) {
      stayed_.insert(path);
      keep(*module, path, kWhole);
      return;
    }
    if (marked) {
      const std::string reason = try_replace(module, path, parent, name);
      if (reason.empty()) {
        return;
      }
      keep(*module, path, reason);
    } else if (
        marked_above && parent != nullptr && !is_interceptable(*module) &&
        find_tp_rule(*module) != nullptr) {
      keep(
          *module,
          path,
          "is held by a holder of libtorch, not of this library; write tessera::nn in place of "
          "torch::nn where it is made");
    }
    for (const auto& child : module->named_children()) {
      visit(child.value(), join_path(path, child.key()), module.get(), child.key(), marked);
    }
  }

  /// Returns why the module was not replaced; "" when it was.
  std::string try_replace(
      const ModulePtr& module,
      const std::string& path,
      torch::nn::Module* parent,
      const std::string& name) {
    const auto rule = find_tp_rule(*module);
    if (rule == nullptr) {
      return "has no distributed implementation";
    }
    for (const std::string& reason : {holders_.shared_with(module), not_uniform(*module)}) {
      if (!reason.empty()) {
        return reason;
      }
    }
    if (const std::string member = tied_through_member(*module); !member.empty()) {
      throw ConfigError(str(
          shown(path),
          " (",
          type_name(*module),
          ") is marked for tensor parallelism, but its member '",
          member,
          "' is another tensor than the parameter that it has registered: a layer that is tied "
          "so would be divided with values of its own; leave both layers undivided "
          "(tessera::set_tensor_parallelism(layer, false)), or tie them with a module that both "
          "use"));
    }
    const GivenOptions options(tensor_parallel_options(*module));
    if (!rule->loses.empty()) {
      throw ConfigError(
          str(shown(path),
              " (",
              type_name(*module),
              ") cannot be replaced by ",
              rule->distributed,
              ": ",
              rule->loses));
    }
    std::shared_ptr<DistributedModule> made;
    try {
      const InheritedPartition here(*module);
      const TensorParallelismScope plain(false);
      made = around_(*module, [&] { return rule->make(*module, options); });
    } catch (const ShapeError& error) {
      return str("cannot be distributed: ", error.what());
    }
    make_alike(*made, *module);
    set_replacement(
        module, made, [call = rule->call](torch::nn::Module& target, const c10::IValue& args) {
          const ForwardScope present(dynamic_cast<const DistributedModule&>(target));
          return call(target, args);
        });
    for (const auto& [option, value] : tensor_parallel_options(*module)) {
      given_.insert(option);
    }
    taken_.insert(options.taken().begin(), options.taken().end());
    if (parent == nullptr) {
      result_.root = made;
    } else {
      parent->replace_module(name, ModulePtr(made));
    }
    replaced_.emplace(module.get(), made);
    ReplacedModule entry;
    entry.path = path;
    entry.type = type_name(*module);
    entry.original = module;
    entry.module = made;
    entry.rule = rule;
    entry.tensors = named_state(*module);
    result_.replaced.push_back(std::move(entry));
    keep_inside(*module, path);
    follow_mode(module, made);
    return "";
  }

  void keep_inside(const torch::nn::Module& module, const std::string& path) {
    for (const auto& child : module.named_children()) {
      if (!seen_.insert(child.value().get()).second) {
        continue;
      }
      const std::string child_path = join_path(path, child.key());
      if (is_marked_tensor_parallel(*child.value())) {
        keep(*child.value(), child_path, kInside);
        ++result_.replaced.back().modules_inside;
      }
      keep_inside(*child.value(), child_path);
    }
  }

  void keep(const torch::nn::Module& module, const std::string& path, std::string reason) {
    result_.kept.push_back({path, type_name(module), std::move(reason)});
  }

  void check_options() const {
    for (const std::string& option : given_) {
      if (taken_.count(option) == 0) {
        throw ConfigError(
            str("tensor_parallelism was given the option \"",
                option,
                "\", which none of the modules that it replaced knows"));
      }
    }
  }

  void check_whole() const {
    for (const std::string& path : whole_) {
      if (stayed_.contains(path)) {
        continue;
      }
      const ReplacedModule* inside = replaced_around(path);
      throw ConfigError(str(
          "tensor_parallel_degree_of, \"",
          path,
          inside != nullptr && inside->path.empty()
              ? "\": one distributed module comes in place of the whole model, as on a mesh, so "
                "no part of it can stay whole; leave the key out"
          : inside != nullptr
              ? str("\": it lies inside of \"",
                    inside->path,
                    "\", in whose place one distributed module comes; write that path")
              : "\": no module of this path is marked for tensor parallelism" +
                    what_to_write(path)));
    }
  }

  /// Returns the replaced module that has this path or lies above it; nullptr for none.
  const ReplacedModule* replaced_around(const std::string& path) const {
    const auto found = std::find_if(
        result_.replaced.begin(), result_.replaced.end(), [&](const ReplacedModule& replaced) {
          return replaced.path.empty() || path == replaced.path ||
                 path.starts_with(replaced.path + ".");
        });
    return found == result_.replaced.end() ? nullptr : &*found;
  }

  std::string what_to_write(const std::string& path) const {
    return str(
        "; write the path of one that tessera::tensor_parallelism marks, as the lines \"tensor "
        "parallelism\" of a run without the key show them",
        marked_.empty() ? "" : str("; the nearest is \"", nearest(path, marked_), "\""));
  }

  Holders holders_;
  const std::set<std::string>& whole_;
  std::set<std::string> stayed_;
  std::vector<std::string> marked_; // paths
  const std::function<std::shared_ptr<DistributedModule>(const torch::nn::Module&, const Make&)>&
      around_;
  Replacements result_;
  std::unordered_set<const torch::nn::Module*> seen_;
  std::unordered_map<const torch::nn::Module*, ModulePtr> replaced_;
  std::set<std::string> given_;
  std::set<std::string> taken_;
};

// "h.3.attn" -> "h.*.attn"
std::string pattern_of(const std::string& path) {
  std::string pattern;
  std::size_t at = 0;
  while (at <= path.size()) {
    const std::size_t end = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, end - at);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return c >= '0' && c <= '9';
    });
    pattern += (at == 0 ? "" : ".") + (number ? std::string("*") : part);
    at = end + 1;
  }
  return pattern;
}

} // namespace

Replacements replace_marked(
    const ModulePtr& root,
    const std::set<std::string>& whole,
    const std::function<std::shared_ptr<DistributedModule>(const torch::nn::Module&, const Make&)>&
        around,
    const std::set<std::string>& divided) {
  Replacing replacing(root, whole, around);
  replacing.check_divided(divided);
  return replacing.take();
}

std::vector<std::string> text_of(const Replacements& replacements) {
  struct Alike {
    std::string path, type, text;
    int count = 0;
  };
  std::vector<Alike> groups;
  const auto add = [&](const std::string& path, const std::string& type, const std::string& text) {
    const std::string pattern = pattern_of(path);
    for (Alike& group : groups) {
      if (pattern_of(group.path) == pattern && group.type == type && group.text == text) {
        ++group.count;
        return;
      }
    }
    groups.push_back({path, type, text, 1});
  };
  for (const ReplacedModule& entry : replacements.replaced) {
    add(entry.path,
        entry.type,
        entry.modules_inside == 0 ? entry.rule->distributed
                                  : str(entry.rule->distributed,
                                        ", which does the work of ",
                                        entry.modules_inside,
                                        " modules inside it"));
  }
  for (const KeptModule& entry : replacements.kept) {
    if (entry.reason != kInside) {
      add(entry.path, entry.type, "not distributed, " + entry.reason);
    }
  }
  std::vector<std::string> lines;
  for (const Alike& group : groups) {
    lines.push_back(
        group.count == 1 ? str(shown(group.path), " (", group.type, "): ", group.text)
                         : str(pattern_of(group.path),
                               " (",
                               group.type,
                               ", ",
                               group.count,
                               " modules): ",
                               group.text));
  }
  return lines;
}

} // namespace tessera::nn
