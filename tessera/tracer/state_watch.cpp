#include "tessera/tracer/state_watch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/nn/module/remote_tensor.h"
#include "tessera/tensor/value.h"

namespace tessera::tracer {

namespace {

void mix_in(std::uint64_t& hash, std::uint64_t word) {
  hash = mix_bits(hash + kMixStep + word);
}

// Hashes a tensor by words rather than bytes, because all that a model computes is hashed here.
void mix_in(std::uint64_t& hash, const at::Tensor& tensor) {
  mix_in(hash, static_cast<std::uint64_t>(tensor.scalar_type()));
  for (const std::int64_t size : tensor.sizes()) {
    mix_in(hash, static_cast<std::uint64_t>(size));
  }
  if (tensor.is_meta() || tensor.layout() != at::kStrided || nn::remote_tensor(tensor) != nullptr) {
    return;
  }
  const at::Tensor host = tensor.detach().cpu().contiguous();
  const auto* bytes = static_cast<const char*>(host.data_ptr());
  const std::size_t size = host.nbytes();
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, size - i));
    mix_in(hash, word);
  }
}

void mix_in(std::uint64_t& hash, const c10::IValue& result) {
  const DispatchScope unseen(nullptr);
  const at::NoGradGuard no_grad;
  for_each_tensor(result, [&](const at::Tensor& tensor) {
    if (tensor.defined()) {
      mix_in(hash, tensor);
    }
  });
}

} // namespace

StateWatch::StateWatch(const std::vector<torch::nn::Module*>& roots)
    : roots_(roots), writes_(roots) {
  for (const torch::nn::Module* root : roots_) {
    for (const WatchedModule& watched : watched_modules(*root)) {
      names_.emplace(watched.module, watched);
    }
  }
}

void StateWatch::observe(const std::function<c10::IValue()>& run, bool look) {
  looks_ = look;
  at_start_.clear();
  for (const torch::nn::Module* root : roots_) {
    at_start_.push_back({root, ObjectBytes(*root)});
  }
  for (const auto& [module, name] : names_) {
    at_start_.push_back({module, ObjectBytes(*module)});
  }
  outer_ = nn::current_interceptor();
  const std::uint64_t kept_outcome = std::exchange(outcome_, 0);
  try {
    const nn::InterceptorScope scope(this);
    mix_in(outcome_, run());
  } catch (...) {
    outer_ = nullptr;
    writes_.undo(); // a script may catch the error and go on with the model
    throw;
  }
  outcome_ = look ? outcome_ : kept_outcome;
  outer_ = nullptr;
  for (const torch::nn::Module* owner : writes_.undo()) {
    note(owner);
  }
  for (const Watched& watched : at_start_) {
    look_at(watched);
  }
}

void StateWatch::operate(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    const std::function<void()>& run) {
  look_at_running();
  look_for_reads(op, *stack);
  writes_.operate(op, stack, run, [&](const at::Tensor& tensor) { return owner_of(tensor); });
}

void StateWatch::look_at(const Watched& watched) {
  if (looks_ && watched.before.changed()) {
    note(watched.module);
  }
}

// Looks at the running module, to find members that its forward sets and clears before it ends.
void StateWatch::look_at_running() {
  if (!path_.empty()) {
    look_at(path_.back());
    return;
  }
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    look_at(at_start_[i]);
  }
}

// Finds operators that read a tensor which a module keeps in a member and which was neither
// argument nor result of its call. Outside of the module's calls such a tensor can come only from
// the member.
void StateWatch::look_for_reads(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const torch::nn::Module* reader = path_.empty() ? nullptr : path_.back().module;
  for (const torch::nn::Module* holder : found_) {
    const auto runs = [&](const Watched& call) { return call.module == holder; };
    const auto known = [&](const Read& r) { return r.holder == holder && r.reader == reader; };
    if (!looks_ || std::find(roots_.begin(), roots_.end(), holder) != roots_.end() ||
        std::any_of(path_.begin(), path_.end(), runs) ||
        std::any_of(reads_.begin(), reads_.end(), known)) {
      continue;
    }
    const auto start =
        std::find_if(at_start_.begin(), at_start_.end(), [&](const Watched& watched) {
          return watched.module == holder;
        });
    const ObjectBytes now(*holder);
    bool reads = false;
    for (const c10::IValue& argument : arguments_of(op, stack)) {
      for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
        const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
        reads = reads || (tensor.defined() && now.holds(impl) && !start->before.holds(impl) &&
                          !travel_[holder].contains(impl));
      });
    }
    if (reads) {
      reads_.push_back({holder, reader, operator_name(op)});
    }
  }
}

// Returns the module whose state the tensor is. Outside of every call, that is a root that has it
// as a member; otherwise the tensor is the step function's own.
const torch::nn::Module* StateWatch::owner_of(const at::Tensor& tensor) const {
  if (!path_.empty()) {
    return path_.back().module;
  }
  for (const torch::nn::Module* root : roots_) {
    if (ObjectBytes(*root).holds(tensor.unsafeGetTensorImpl())) {
      return root;
    }
  }
  return nullptr;
}

void StateWatch::note(const torch::nn::Module* module) {
  if (module != nullptr && std::find(found_.begin(), found_.end(), module) == found_.end()) {
    found_.push_back(module);
  }
}

std::vector<std::string> StateWatch::found(const torch::nn::Module& root) const {
  std::vector<std::string> names;
  const auto modules = root.modules(false);
  for (const torch::nn::Module* module : found_) {
    const bool inside = std::any_of(
        modules.begin(), modules.end(), [&](const auto& child) { return child.get() == module; });
    if (module == &root || inside) {
      names.push_back(names_.at(module).name);
    }
  }
  return names;
}

std::vector<MemberRead> StateWatch::reads(const torch::nn::Module& root) const {
  std::vector<MemberRead> below;
  const auto modules = root.modules(false);
  for (const Read& read : reads_) {
    const bool inside = std::any_of(modules.begin(), modules.end(), [&](const auto& child) {
      return child.get() == read.holder;
    });
    if (inside) {
      const WatchedModule& holder = names_.at(read.holder);
      const bool same = read.reader != nullptr &&
                        std::any_of(modules.begin(), modules.end(), [&](const auto& child) {
                          return child.get() == read.reader;
                        });
      const std::string reader = same ? names_.at(read.reader).path : std::string();
      below.push_back({holder.path, reader, holder.name, read.op});
    }
  }
  return below;
}

bool StateWatch::wants(const torch::nn::Module& module) {
  return outer_ != nullptr && outer_->wants(module);
}

int StateWatch::range_end(const torch::nn::Module& sequential, int first) {
  return outer_->range_end(sequential, first);
}

c10::IValue StateWatch::call(
    torch::nn::Module& module,
    const nn::CallKey& key,
    const c10::IValue& args,
    int first,
    int last) {
  look_at_running();
  if (!looks_ || first >= 0 || !names_.contains(&module)) {
    return outer_->call(module, key, args, first, last);
  }
  struct Running { // ends the call in `path_` even if the forward throws
    explicit Running(std::vector<Watched>& path) : path(path) {}
    ~Running() {
      path.pop_back();
    }
    std::vector<Watched>& path;
  };
  path_.push_back({&module, ObjectBytes(module)});
  const Running running(path_);
  const c10::IValue result = outer_->call(module, key, args, first, last);
  look_at(path_.back());
  auto& travels = travel_[&module];
  travels.clear();
  for (const c10::IValue* value : {&args, &result}) {
    for_each_tensor(
        *value, [&](const at::Tensor& tensor) { travels.insert(tensor.unsafeGetTensorImpl()); });
  }
  mix_in(outcome_, result);
  return result;
}

void refuse_carried_state(const std::vector<std::string>& modules) {
  std::string names;
  for (const std::string& name : modules) {
    names += (names.empty() ? "" : ", ") + name;
  }
  throw UserError(
      str("the forward of ",
          names,
          " carries state from call to call in a member that is no registered buffer. The first "
          "step runs its function once more, to trace it, and this pass has changed the member: "
          "two passes over the same numbers gave different results. Give a state of each sample (a "
          "hidden state) to the step as an argument and take it as a result, which divides it with "
          "the batch. Register a state of the model (an average) as a buffer and write into it "
          "(state = register_buffer(\"state\", ...); state.copy_(...)): then it is put back after "
          "the pass and is part of checkpoints. Or set it inside of the step function, before the "
          "model is called; or write \"skip_tracing\": true"));
}

} // namespace tessera::tracer
