#include "tessera/tracer/record_work.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tracer/describe.h"
#include "tessera/tracer/gradient_lifetimes.h"

namespace tessera::tracer {

namespace {

using graph::OperatorWork;
using Kind = OperatorWork::Kind;

template <std::size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the name without "aten::" and the overload.
std::string_view base_name(std::string_view name) {
  const auto colons = name.rfind("::");
  name.remove_prefix(colons == std::string_view::npos ? 0 : colons + 2);
  return name.substr(0, name.find('.'));
}

// Operators that touch no element: views, and memory that is taken.
constexpr std::array<std::string_view, 28> kViews = {
    "view",    "transpose", "permute",      "t",      "slice",        "select",        "split",
    "chunk",   "unsqueeze", "squeeze",      "expand", "narrow",       "flatten",       "unflatten",
    "detach",  "alias",     "size",         "stride", "is_same_size", "numpy_T",       "expand_as",
    "view_as", "unbind",    "unsafe_chunk", "empty",  "empty_like",   "empty_strided", "new_empty"};

constexpr std::array<std::string_view, 22> kFunctions = {
    "gelu",         "softmax",
    "_softmax",     "log_softmax",
    "_log_softmax", "exp",
    "log",          "tanh",
    "sigmoid",      "silu",
    "erf",          "sqrt",
    "rsqrt",        "pow",
    "layer_norm",   "native_layer_norm",
    "batch_norm",   "cross_entropy_loss",
    "logsumexp",    "binary_cross_entropy_with_logits",
    "elu",          "softplus"};

// Operators that read far more than they write, so their work is measured by what they read.
constexpr std::array<std::string_view, 8> kReductions = {
    "cross_entropy_loss",
    "nll_loss",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "logsumexp",
    "sum",
    "mean",
    "norm"};

constexpr std::array<std::string_view, 7> kRandom =
    {"dropout", "native_dropout", "bernoulli", "bernoulli_", "rand", "randn", "dropout_"};

constexpr std::array<std::string_view, 8> kProducts =
    {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv2d"};

// Operators whose backward reads their arguments, their result, or a tensor as large as the result
// that only they hold: a mask, logarithms of probabilities. Others' backward reads none of them.
constexpr std::array<std::string_view, 25> kReadArguments = {
    "linear",     "matmul",
    "mm",         "bmm",
    "addmm",      "baddbmm",
    "einsum",     "conv2d",
    "layer_norm", "native_layer_norm",
    "batch_norm", "gelu",
    "silu",       "mul",
    "div",        "pow",
    "log",        "erf",
    "logsumexp",  "norm",
    "mse_loss",   "binary_cross_entropy_with_logits",
    "softplus",   "nll_loss",
    "maximum"};
// Of kReadArguments: the derivative by one factor reads the other.
constexpr std::array<std::string_view, 2> kReadOtherFactor = {"mul", "div"};
constexpr std::array<std::string_view, 11> kReadResult = {
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "exp",
    "tanh",
    "sigmoid",
    "sqrt",
    "rsqrt",
    "relu",
    "elu"};
constexpr std::array<std::string_view, 3> kHoldAsMuch = {
    "dropout",
    "native_dropout",
    "cross_entropy_loss"};

// Operators whose backward passes the result's gradient on as it is.
constexpr std::array<std::string_view, 4> kPassGradients = {"add", "add_", "sub", "sub_"};

// Returns the two factors of a product: the first two tensor arguments, after the bias
// of addmm and baddbmm, which comes first. That of linear comes last.
std::vector<at::Tensor> factors_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) { found.push_back(tensor); });
  }
  const std::string whole = operator_name(op);
  const std::string_view name = base_name(whole);
  const bool bias_first = name == "addmm" || name == "baddbmm";
  if (bias_first && found.size() > 2) {
    found.erase(found.begin());
  }
  found.resize(std::min<std::size_t>(found.size(), 2));
  return found;
}

// Returns the storages of the arguments.
std::set<const c10::StorageImpl*> storages_of(at::ArrayRef<c10::IValue> arguments) {
  std::set<const c10::StorageImpl*> storages;
  for (const c10::IValue& argument : arguments) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      if (tensor.has_storage()) {
        storages.insert(tensor.storage().unsafeGetStorageImpl());
      }
    });
  }
  return storages;
}

// Returns whether every result is a view of an argument. The name does not tell, since
// reshape and to copy or not depending on strides and types.
bool only_views(
    at::ArrayRef<c10::IValue> results,
    const std::set<const c10::StorageImpl*>& storages) {
  bool any = false;
  bool views = true;
  for (const c10::IValue& result : results) {
    for_each_operator_tensor(result, [&](const at::Tensor& tensor) {
      any = true;
      views = views && tensor.has_storage() &&
              storages.count(tensor.storage().unsafeGetStorageImpl()) != 0;
    });
  }
  return any && views;
}

// Returns the operator's name, with the form of gelu: the one with tanh costs several times as
// much.
std::string name_of(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  std::string name = operator_name(op);
  if (base_name(name) == "gelu") {
    for (const c10::IValue& argument : arguments) {
      if (argument.isString() && argument.toStringRef() != "none") {
        name += "." + argument.toStringRef();
      }
    }
  }
  return name;
}

void describe_product(
    std::string_view name,
    const std::vector<at::Tensor>& factors,
    OperatorWork& work) {
  if (factors.size() < 2 || factors[1].dim() < 1 || factors[0].dim() < 1) {
    work.kind = Kind::kMove;
    return;
  }
  const at::Tensor& a = factors[0];
  const at::Tensor& b = factors[1];
  work.count = 1;
  if (name == "conv2d") {
    work.columns = static_cast<double>(b.size(0));
    work.inner = static_cast<double>(b.numel()) / work.columns;
    work.rows = work.elements / work.columns;
    return;
  }
  work.inner = static_cast<double>(a.size(-1));
  const bool stacked = name != "linear" && b.dim() > 2;
  if (stacked) {
    // There are as many products as the result has matrices.
    work.rows = a.dim() > 1 ? static_cast<double>(a.size(-2)) : 1;
    work.columns = static_cast<double>(b.size(-1));
    work.count = work.elements / std::max(1.0, work.rows * work.columns);
    return;
  }
  // All rows are one product, whose result has rows x columns elements.
  work.columns = name == "linear" ? static_cast<double>(b.size(0))
                 : b.dim() > 1    ? static_cast<double>(b.size(-1))
                                  : 1;
  work.rows = work.elements / std::max(1.0, work.columns);
}

Kind kind_of(std::string_view name) {
  return among(kProducts, name)    ? Kind::kProduct
         : among(kViews, name)     ? Kind::kView
         : among(kFunctions, name) ? Kind::kFunction
         : among(kRandom, name)    ? Kind::kRandom
                                   : Kind::kMove;
}

// Keeps track of the innermost module that runs.
class Path : public nn::Interceptor {
 public:
  explicit Path(const ModelParts& parts) {
    for (std::size_t i = 0; i < parts.modules.size(); ++i) {
      node_of_.emplace(parts.modules[i], static_cast<int>(i));
    }
  }

  bool wants(const torch::nn::Module& module) override {
    return node_of_.count(&module) != 0;
  }

  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override {
    struct Restore { // also when the forward throws, which its caller may catch
      ~Restore() {
        place = before;
      }
      int& place;
      int before;
    };
    const Restore restore{here_, here_};
    here_ = node_of_.at(&module);
    return nn::find_invoker(key.hash)(module, args, first, last);
  }

  int here() const {
    return here_;
  }

 private:
  std::unordered_map<const torch::nn::Module*, int> node_of_;
  int here_ = 0;
};

class Operators : public DispatchMode {
 public:
  Operators(const torch::nn::Module& root, const Path& path) : path_(path) {
    for (const at::Tensor& parameter : root.parameters()) {
      if (parameter.has_storage() && parameter.requires_grad()) {
        parameters_.insert(parameter.storage().unsafeGetStorageImpl());
      }
    }
  }

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    OperatorWork work;
    const auto arguments = arguments_of(op, *stack);
    work.name = name_of(op, arguments);
    work.module = path_.here();
    const std::string_view name = base_name(work.name);
    const auto storages = storages_of(arguments);
    if (among(kReductions, name)) {
      for (const c10::IValue& argument : arguments) {
        for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
          work.elements = std::max(work.elements, static_cast<double>(tensor.numel()));
          work.bytes = std::max(work.bytes, static_cast<double>(bytes_of(tensor)));
        });
      }
    }
    work.kind = kind_of(name);
    work.has_adjoint = !storages.empty() && name != "zero_" && name != "fill_";
    std::vector<at::Tensor> factors;
    if (work.kind == Kind::kProduct) {
      work.returned = recompute::product_is_returned();
      factors = factors_of(op, *stack);
    }
    note_kept_arguments(name, arguments); // the call takes them off the stack
    const Taken taken = note_taken(work.kind, arguments);
    if (takes_meta_tensor(op, *stack)) {
      try {
        call_on_meta(op, stack);
      } catch (const ReadsNumbers& error) {
        throw ConfigError(
            str("counting the model's work: ",
                error.what(),
                ": there is nothing to read in a model without memory"));
      }
    } else {
      call_plain(op, stack);
    }
    const std::size_t count = op.schema().returns().size();
    const at::ArrayRef<c10::IValue> results(stack->data() + (stack->size() - count), count);
    if (!among(kReductions, name)) {
      for (const c10::IValue& result : results) {
        for_each_operator_tensor(result, [&](const at::Tensor& tensor) {
          work.elements += static_cast<double>(tensor.numel());
          work.bytes += static_cast<double>(bytes_of(tensor));
        });
      }
    }
    if (work.kind == Kind::kMove && !op.schema().is_mutable() && only_views(results, storages)) {
      work.kind = Kind::kView;
    }
    if (work.kind == Kind::kView && nn::has_own_derivative()) {
      work.has_adjoint = false; // the derivative as a whole makes the views that it needs
    }
    if (work.kind == Kind::kProduct) {
      describe_product(name, factors, work);
    }
    if (among(kHoldAsMuch, name) && !nn::has_own_derivative()) {
      work.kept_bytes += work.bytes;
      work.freed_bytes += work.bytes;
    }
    work_.push_back(std::move(work));
    note_results(name, results, storages, taken);
  }

  /// Records work that distributed modules leave out while one rank traces alone.
  void skipped(const nn::SkippedWork& skipped) {
    OperatorWork work;
    work.name = skipped.operation;
    work.module = path_.here();
    work.buffer_bytes = skipped.buffer_bytes;
    work.count = skipped.count;
    if (skipped.operation == "product") {
      work.kind = Kind::kProduct;
      work.returned = recompute::product_is_returned();
      work.rows = skipped.rows;
      work.inner = skipped.inner;
      work.columns = skipped.columns;
    } else {
      work.kind = Kind::kCollective;
      work.ranks = skipped.ranks;
      work.bytes = skipped.bytes;
      work.has_adjoint = skipped.has_adjoint;
    }
    work_.push_back(std::move(work));
  }

  /// What a function with a derivative of its own saves.
  void saved(const at::Tensor& tensor) {
    // A product's backward reads it, if the derivative has one.
    std::size_t by = work_.empty() ? 0 : work_.size() - 1;
    for (std::size_t i = by; i > last_outside_; --i) {
      if (work_[i].kind == Kind::kProduct) {
        by = i;
        break;
      }
    }
    keep(tensor, by);
    take_parameter(tensor, by);
  }

  graph::ForwardWork take() {
    lifetimes_.write(work_);
    for (const auto& [reader, bytes] : freed_) {
      work_[reader].freed_bytes += bytes;
    }
    return std::move(work_);
  }

 private:
  // A tensor that has been made, by its storage.
  struct Made {
    std::size_t by = 0; // index into work_
    double bytes = 0;
    bool kept = false;
    std::optional<GradientLifetimes::Id> gradient; // where it has one
  };
  // What an operator takes: whether its result has a gradient, and those of its arguments.
  struct Taken {
    bool differentiable = false;
    std::vector<std::pair<GradientLifetimes::Id, double>> gradients; // and their bytes
  };

  Made* find_made(const at::Tensor& tensor) {
    if (!tensor.has_storage()) {
      return nullptr;
    }
    const auto made = made_.find(tensor.storage().unsafeGetStorageImpl());
    return made == made_.end() ? nullptr : &made->second;
  }

  // `reader`: the operator whose backward reads it, the first of the forward that does.
  void keep(const at::Tensor& tensor, std::size_t reader) {
    Made* made = tensor.is_floating_point() ? find_made(tensor) : nullptr;
    if (made != nullptr && !std::exchange(made->kept, true)) {
      work_[made->by].kept_bytes += made->bytes;
      freed_.emplace_back(reader, made->bytes);
    }
  }

  bool take_parameter(const at::Tensor& tensor, std::size_t by) {
    if (!tensor.has_storage()) {
      return false;
    }
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (parameters_.count(storage) == 0) {
      return false;
    }
    last_outside_ = nn::has_own_derivative() ? last_outside_ : by;
    lifetimes_.take_parameter(storage, static_cast<double>(bytes_of(tensor)), by, last_outside_);
    return true;
  }

  Taken note_taken(Kind kind, at::ArrayRef<c10::IValue> arguments) {
    Taken taken;
    taken.differentiable = nn::has_own_derivative();
    last_outside_ = taken.differentiable ? last_outside_ : work_.size();
    for (const c10::IValue& argument : arguments) {
      for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
        if (kind != Kind::kView && take_parameter(tensor, work_.size())) {
          taken.differentiable = true;
        }
        const Made* made = find_made(tensor);
        if (made != nullptr && made->gradient) {
          lifetimes_.take(*made->gradient, work_.size());
          taken.gradients.emplace_back(*made->gradient, made->bytes);
          taken.differentiable = true;
        }
      });
    }
    return taken;
  }

  // Parameters and inputs of the model are not among those that were made.
  void note_kept_arguments(std::string_view name, at::ArrayRef<c10::IValue> arguments) {
    if (!among(kReadArguments, name) || nn::has_own_derivative()) {
      return;
    }
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& argument : arguments) {
      for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
        if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
          tensors.push_back(tensor);
        }
      });
    }
    if (tensors.size() == 1 && among(kReadOtherFactor, name)) {
      return; // times a number
    }
    for (const at::Tensor& tensor : tensors) {
      keep(tensor, work_.size());
    }
  }

  // A storage that is none of the arguments' is new, also where another one was before.
  void note_results(
      std::string_view name,
      at::ArrayRef<c10::IValue> results,
      const std::set<const c10::StorageImpl*>& of_arguments,
      const Taken& taken) {
    const std::size_t by = work_.size() - 1;
    for (const c10::IValue& result : results) {
      for_each_operator_tensor(result, [&](const at::Tensor& tensor) {
        if (!tensor.has_storage()) {
          return;
        }
        const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
        if (of_arguments.count(storage) == 0 && parameters_.count(storage) == 0) {
          Made made = {by, static_cast<double>(bytes_of(tensor)), false, {}};
          if (taken.differentiable && tensor.is_floating_point()) {
            made.gradient = lifetimes_.make(by, made.bytes);
          }
          made_[storage] = made;
        }
        const Made* made = find_made(tensor);
        if (made != nullptr && made->gradient && among(kPassGradients, name)) {
          for (const auto& [gradient, bytes] : taken.gradients) {
            if (bytes == made->bytes) {
              lifetimes_.unite(*made->gradient, gradient);
            }
          }
        }
        if (among(kReadResult, name) && !nn::has_own_derivative()) {
          keep(tensor, by);
        }
      });
    }
  }

  const Path& path_;
  graph::ForwardWork work_;
  std::unordered_map<const c10::StorageImpl*, Made> made_;
  std::set<const c10::StorageImpl*> parameters_; // those that are trained
  GradientLifetimes lifetimes_;
  std::size_t last_outside_ = 0; // the last operator outside of derivatives of their own
  std::vector<std::pair<std::size_t, double>> freed_; // by which backward, bytes
};

} // namespace

graph::ForwardWork record_work(torch::nn::Module& root, const std::function<void()>& run) {
  const ModelParts parts = take_apart(root, "");
  const at::NoGradGuard no_grad;
  Path path(parts);
  Operators operators(root, path);
  const nn::InterceptorScope intercept(&path);
  const nn::SkippedWorkScope listen(
      [&operators](const nn::SkippedWork& work) { operators.skipped(work); },
      [&operators](const at::Tensor& tensor) { operators.saved(tensor); });
  const DispatchScope scope(&operators);
  run();
  return operators.take();
}

} // namespace tessera::tracer
