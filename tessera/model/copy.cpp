#include "tessera/model/copy.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/context/agreement.h"

namespace tessera::model {

namespace {

struct Pair {
  at::Tensor to;
  at::Tensor from;
  bool parameter = true;
};

// The arithmetic of the plain script: the average of one process has the same bits.
void blend(const std::vector<Pair>& pairs, double decay) {
  const at::NoGradGuard no_grad;
  for (const Pair& pair : pairs) {
    const at::Tensor to = pair.to.detach();
    if (pair.parameter && decay != 0) {
      to.mul_(decay).add_(pair.from.to(to.scalar_type()), 1 - decay);
    } else {
      to.copy_(pair.from);
    }
  }
}

/// Matches tensors by name and notes what does not fit.
class Matching {
 public:
  void add(const std::string& name, const at::Tensor& to, const TensorMap& state, bool parameter) {
    const auto found = state.find(name);
    if (found == state.end()) {
      problems_.insert(tessera::str("'", name, "' is not in the model that is copied"));
      return;
    }
    seen_.insert(name);
    if (found->second.sizes() != to.sizes()) {
      problems_.insert(tessera::str(
          "'",
          name,
          "' has shape ",
          to.sizes(),
          ", in the model that is copied ",
          found->second.sizes()));
      return;
    }
    pairs_.push_back({to, found->second, parameter});
  }

  /// `state`: all that is copied. Collective over the world. Throws: CheckpointError.
  std::vector<Pair> agree(const Context& context, const TensorMap& state) {
    for (const auto& [name, tensor] : state) {
      if (!seen_.contains(name)) {
        problems_.insert(tessera::str("'", name, "' is not in the model that is copied to"));
      }
    }
    const auto problems =
        all_problems(*context.world, context.group(Group::kWorld), std::move(problems_));
    if (!problems.empty()) {
      throw CheckpointError(listed("copy_to: the models do not fit:", problems));
    }
    return std::move(pairs_);
  }

 private:
  std::vector<Pair> pairs_;
  std::set<std::string> problems_;
  std::set<std::string> seen_;
};

bool same_place(const ModelCore& a, const ModelCore& b) {
  const auto paths = [](const ModelCore& core) {
    std::vector<std::string> list;
    for (const nn::ReplacedModule& replaced : core.replacements().replaced) {
      list.push_back(replaced.path);
    }
    return list;
  };
  return a.plan().partition == b.plan().partition && paths(a) == paths(b);
}

} // namespace

void check_decay(double decay) {
  if (!(decay >= 0 && decay < 1)) {
    throw ConfigError(tessera::str(
        "copy_to: decay is ",
        decay,
        "; write a number from 0 (a copy) to less than 1 (an average)"));
  }
}

void copy_into(const ModelCore& from, torch::nn::Module& to, double decay) {
  const TensorMap state = from.state_dict(false);
  Matching matching;
  std::set<const void*> seen;
  const auto add = [&](const auto& list, bool parameter) {
    for (const auto& entry : list) {
      // A shared tensor is in a state under its first name.
      if (seen.insert(entry.value().unsafeGetTensorImpl()).second) {
        matching.add(entry.key(), entry.value(), state, parameter);
      }
    }
  };
  add(to.named_parameters(), true);
  add(to.named_buffers(), false);
  blend(matching.agree(from.context(), state), decay);
}

void copy_into(const ModelCore& from, ModelCore& to, double decay) {
  // What ranks hold together is not written to tensor by tensor.
  if (to.shards() == nullptr && same_place(from, to)) {
    const TensorMap state = from.local_state_dict();
    Matching matching;
    for (const auto& [name, tensor] : to.local_parameters()) {
      matching.add(name, tensor, state, true);
    }
    for (const auto& [name, tensor] : to.local_buffers()) {
      matching.add(name, tensor, state, false);
    }
    blend(matching.agree(from.context(), state), decay);
    return;
  }
  TensorMap state = from.state_dict(false);
  if (decay != 0) {
    const std::set<std::string> parameters = [&] {
      std::set<std::string> names;
      for (int part = 0; part < to.state_layout().parts(); ++part) {
        for (const auto& entry : to.state_layout().wanted(part)) {
          if (entry.parameter) {
            names.insert(entry.name);
          }
        }
      }
      return names;
    }();
    const TensorMap own = to.state_dict(false);
    std::vector<Pair> pairs;
    for (auto& [name, tensor] : state) {
      const auto found = own.find(name);
      if (parameters.contains(name) && found != own.end() &&
          found->second.sizes() == tensor.sizes()) {
        pairs.push_back({found->second, tensor, true});
        tensor = found->second;
      }
    }
    blend(pairs, decay);
  }
  to.load_state_dict(std::move(state), true);
}

} // namespace tessera::model
