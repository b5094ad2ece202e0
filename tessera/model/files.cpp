#include "tessera/model/files.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "tessera/base/error.h"
#include "tessera/context/agreement.h"

namespace tessera::model {

namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// Writes a tree of modules as torch::nn::Module::save does, with tensors from a whole state; from
/// none: with empty ones.
class TreeWriter {
 public:
  TreeWriter(const TensorMap* state, const nn::Replacements& replacements, bool widened)
      : state_(state), widened_(widened) {
    for (const nn::ReplacedModule& replaced : replacements.replaced) {
      originals_.emplace(replaced.path, replaced.original);
    }
  }

  void write(const torch::nn::Module& given, const std::string& path, OutputArchive& archive) {
    const auto original = originals_.find(path);
    const torch::nn::Module& module = original == originals_.end() ? given : *original->second;
    const std::string prefix = path.empty() ? "" : path + ".";
    for (const auto& parameter : module.named_parameters(false)) {
      const at::Tensor whole = written(find(prefix + parameter.key(), parameter.value()).detach());
      archive.write(
          parameter.key(), whole.set_requires_grad(parameter.value().requires_grad()), false);
    }
    for (const auto& buffer : module.named_buffers(false)) {
      archive.write(buffer.key(), written(find(prefix + buffer.key(), buffer.value())), true);
    }
    for (const auto& child : module.named_children()) {
      if (child.value()->is_serializable()) {
        OutputArchive inside(archive.compilation_unit());
        write(*child.value(), prefix + child.key(), inside);
        archive.write(child.key(), inside);
      }
    }
  }

 private:
  at::Tensor written(const at::Tensor& tensor) const {
    const at::ScalarType type = tensor.scalar_type();
    return widened_ && (type == at::kHalf || type == at::kBFloat16) ? tensor.to(at::kFloat)
                                                                    : tensor;
  }

  // A state has a tensor of several names under the first of them.
  at::Tensor find(const std::string& name, const at::Tensor& held) {
    if (state_ == nullptr) {
      return at::empty({0}, at::dtype(held.scalar_type()));
    }
    const auto [first, is_first] = first_names_.emplace(held.unsafeGetTensorImpl(), name);
    auto found = state_->find(name);
    if (found == state_->end()) {
      found = state_->find(first->second);
    }
    TESSERA_CHECK(found != state_->end(), "the whole state has no tensor '", name, "'");
    return found->second;
  }

  const TensorMap* state_;
  bool widened_; // 16-bit numbers are written as f32
  std::map<std::string, std::shared_ptr<torch::nn::Module>> originals_;
  std::map<const void*, std::string> first_names_; // by tensor
};

void collect(InputArchive& archive, const std::string& prefix, TensorMap& state) {
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    if (value.isTensor()) {
      state[prefix + key] = value.toTensor();
    } else if (value.isModule()) {
      InputArchive inside;
      archive.read(key, inside);
      collect(inside, prefix + key + ".", state);
    }
  }
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

// torch::save takes names that torch::load does not, such as `in`: the classes that it writes do
// not compile then.
void check_names(const ModelCore& core) {
  OutputArchive names;
  TreeWriter(nullptr, core.replacements(), false).write(*core.root(), "", names);
  std::stringstream file;
  names.save_to(file);
  try {
    InputArchive().load_from(file);
  } catch (const std::exception&) {
    throw CheckpointError(
        str("torch::load could not read the name of a module or parameter; rename it: ",
            text_of(std::current_exception())));
  }
}

// Every rank has the whole model still, unless modules were replaced or have no memory.
TensorMap state_before_partition(const ModelCore& core) {
  TensorMap state;
  bool delayed = false;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined()) {
        delayed = delayed || item.value().is_meta();
        state.emplace(item.key(), item.value().detach());
      }
    }
  };
  add(core.root()->named_parameters());
  add(core.root()->named_buffers());
  if (delayed || !core.replacements().replaced.empty()) {
    core.plan(); // throws: there is no whole state before the partition
  }
  return state;
}

/// Returns whether the library has made the model's parameters 16-bit ones. The script's own module
/// has f32 ones, and torch::load puts whatever a file holds into them without looking at the type.
bool is_narrowed(const Config& config) {
  return config.fp16 || config.fp16_params || config.bf16;
}

} // namespace

void save_module(const ModelCore& core, const std::string& path) {
  const Context& context = core.context();
  TensorMap state;
  if (!core.partitioned()) {
    state = state_before_partition(core);
  } else if (context.group(Group::kMP).ranks().front() == 0) {
    state = core.state_dict(true);
  }
  std::optional<std::string> problem;
  if (context.world->rank() == 0) {
    const std::string unfinished = path + ".unfinished";
    try {
      check_names(core);
      OutputArchive archive;
      TreeWriter(&state, core.replacements(), is_narrowed(context.config))
          .write(*core.root(), "", archive);
      archive.save_to(unfinished);
      std::filesystem::rename(unfinished, path);
    } catch (...) {
      problem =
          str("rank 0: save_module cannot write '", path, "': ", text_of(std::current_exception()));
      std::remove(unfinished.c_str());
    }
  }
  throw_first_problem<CheckpointError>(*context.world, context.group(Group::kWorld), problem);
}

void load_module(ModelCore& core, const std::string& path) {
  const Context& context = core.context();
  std::optional<std::string> problem;
  TensorMap state;
  try {
    InputArchive archive;
    archive.load_from(path, at::Device(at::kCPU));
    collect(archive, "", state);
    if (state.empty()) {
      problem = "it holds no tensor";
    }
  } catch (...) {
    problem = text_of(std::current_exception());
  }
  if (problem) {
    problem =
        str("rank ",
            context.world->rank(),
            ": load_module cannot take '",
            path,
            "', which must be a file of tessera::save_module or torch::save(net, path): ",
            *problem);
  }
  throw_first_problem<CheckpointError>(*context.world, context.group(Group::kWorld), problem);
  core.load_state_dict(std::move(state), true);
}

} // namespace tessera::model
