#include "tessera/half/operators.h"

#include <functional>
#include <memory>
#include <utility>

#include <ATen/CPUFunctions.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/half/bf16_kernels.h"
#include "tessera/half/bf16_softmax.h"
#include "tessera/half/widened.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::half {

namespace {

using at::Scalar;
using at::Tensor;

struct Entry {
  const char* name;
  void (*add)(torch::Library& library, const char* name);
};

template <auto kOriginal, Kind kKind = Kind::kPlain>
Entry entry(const char* name) {
  return {name, [](torch::Library& library, const char* to) {
            library.impl(to, &Widened<kOriginal, kKind>::call);
          }};
}

/// One of the overloads of a function.
template <typename F>
constexpr F* overload(F* function) {
  return function;
}

std::vector<Entry> products() {
  namespace cpu = at::cpu;
  return {
      entry<&cpu::mm, Kind::kProduct>("mm"),
      entry<&cpu::mm_outf, Kind::kProduct>("mm.out"),
      entry<&cpu::addmm, Kind::kProduct>("addmm"),
      entry<&cpu::addmm_, Kind::kProduct>("addmm_"),
      entry<&cpu::addmm_outf, Kind::kProduct>("addmm.out"),
      entry<&cpu::bmm, Kind::kProduct>("bmm"),
      entry<&cpu::bmm_outf, Kind::kProduct>("bmm.out"),
      entry<&cpu::baddbmm, Kind::kProduct>("baddbmm"),
      entry<&cpu::baddbmm_, Kind::kProduct>("baddbmm_"),
      entry<&cpu::baddbmm_outf, Kind::kProduct>("baddbmm.out"),
      entry<&cpu::addmv, Kind::kProduct>("addmv"),
      entry<&cpu::addmv_, Kind::kProduct>("addmv_"),
      entry<&cpu::addmv_outf, Kind::kProduct>("addmv.out"),
      entry<&cpu::dot, Kind::kProduct>("dot"),
  };
}

/// Kernels of bf16 where something has asked for them (bf16_kernels.h), else as above.
bool& bf16_is_quick() {
  static bool quick = false;
  return quick;
}

template <auto kOriginal, typename Function = decltype(kOriginal)>
struct Gelu;
template <auto kOriginal, typename Word>
struct Gelu<kOriginal, Tensor (*)(const Tensor&, Word)> {
  static Tensor call(const Tensor& x, Word approximate) {
    return bf16_is_quick() && gelu_is_tabled(x, approximate == "tanh")
               ? tabled_gelu(x)
               : Widened<kOriginal, Kind::kPlain>::call(x, approximate);
  }
};

template <auto kOriginal, typename Function = decltype(kOriginal)>
struct GeluBackward;
template <auto kOriginal, typename Word>
struct GeluBackward<kOriginal, Tensor (*)(const Tensor&, const Tensor&, Word)> {
  static Tensor call(const Tensor& gradient, const Tensor& x, Word approximate) {
    const bool approximates = approximate == "tanh";
    return bf16_is_quick() && gelu_is_tabled(x, approximates) &&
                   gelu_is_tabled(gradient, approximates) && gradient.sizes() == x.sizes()
               ? tabled_gelu_backward(gradient, x)
               : Widened<kOriginal, Kind::kPlain>::call(gradient, x, approximate);
  }
};

std::tuple<Tensor, Tensor, Tensor> layer_norm(
    const Tensor& x,
    at::IntArrayRef shape,
    const TorchOptional<Tensor>& weight,
    const TorchOptional<Tensor>& bias,
    double epsilon) {
  const bool follows = bf16_is_quick() && norm_follows_from_rows(x, shape, weight, bias);
  const NormRowsKeeper keeper = norm_rows_keeper();
  const NormRows rows = follows ? keeper.given() : NormRows();
  if (rows.mean.defined()) {
    return {normalized(x, rows, *weight, *bias), rows.mean, rows.rstd};
  }
  auto results = Widened<&at::cpu::native_layer_norm, Kind::kStatistics>::call(
      x, shape, weight, bias, epsilon);
  if (follows) {
    keeper.keep({std::get<1>(results), std::get<2>(results)});
  }
  return results;
}

Tensor softmax(const Tensor& x, std::int64_t dim, bool to_float) {
  if (bf16_is_quick() && !to_float && softmax_is_quick(x, dim)) {
    const Tensor y = quick_softmax(x);
    if (y.defined()) {
      return y;
    }
  }
  return Widened<&at::cpu::_softmax, Kind::kPlain>::call(x, dim, to_float);
}

std::vector<Entry> quick_in_bf16() {
  namespace cpu = at::cpu;
  return {
      {"gelu",
       [](torch::Library& library, const char* name) {
         library.impl(name, &Gelu<&cpu::gelu>::call);
       }},
      {"gelu_backward",
       [](torch::Library& library, const char* name) {
         library.impl(name, &GeluBackward<&cpu::gelu_backward>::call);
       }},
      {"native_layer_norm",
       [](torch::Library& library, const char* name) { library.impl(name, &layer_norm); }},
      {"_softmax", [](torch::Library& library, const char* name) { library.impl(name, &softmax); }},
  };
}

// The running statistics of a batch norm are changed in place, although they come as constant.
std::tuple<Tensor, Tensor, Tensor> batch_norm(
    const Tensor& input,
    const TorchOptional<Tensor>& weight,
    const TorchOptional<Tensor>& bias,
    const TorchOptional<Tensor>& running_mean,
    const TorchOptional<Tensor>& running_var,
    bool training,
    double momentum,
    double epsilon) {
  const auto wide = [](const TorchOptional<Tensor>& tensor) {
    return holds(at::kHalf, tensor) ? TorchOptional<Tensor>(tensor->to(at::kFloat)) : tensor;
  };
  const TorchOptional<Tensor> mean = wide(running_mean);
  const TorchOptional<Tensor> variance = wide(running_var);
  auto results = at::cpu::native_batch_norm(
      is_of(at::kHalf, input) ? input.to(at::kFloat) : input,
      wide(weight),
      wide(bias),
      mean,
      variance,
      training,
      momentum,
      epsilon);
  if (is_of(at::kHalf, input)) {
    std::get<0>(results) = narrowed(at::kHalf, std::get<0>(results));
  }
  if (training && holds(at::kHalf, running_mean)) {
    running_mean->copy_(*mean);
    running_var->copy_(*variance);
  }
  return results;
}

std::vector<Entry> norms() {
  namespace cpu = at::cpu;
  return {
      entry<&cpu::_softmax_backward_data>("_softmax_backward_data"),
      entry<&cpu::_log_softmax>("_log_softmax"),
      entry<&cpu::_log_softmax_backward_data>("_log_softmax_backward_data"),
      entry<&cpu::native_layer_norm_backward, Kind::kBackward>("native_layer_norm_backward"),
      {"native_batch_norm",
       [](torch::Library& library, const char* name) { library.impl(name, &batch_norm); }},
      entry<&cpu::native_batch_norm_backward, Kind::kBackward>("native_batch_norm_backward"),
  };
}

std::vector<Entry> activations() {
  namespace cpu = at::cpu;
  using WithNumber = Tensor(const Tensor&, const Scalar&);
  using WithBounds =
      Tensor(const Tensor&, const TorchOptional<Scalar>&, const TorchOptional<Scalar>&);
  return {
      entry<&cpu::gelu_backward_outf>("gelu_backward.grad_input"),
      entry<&cpu::relu>("relu"),
      entry<&cpu::relu_>("relu_"),
      entry<&cpu::threshold_backward>("threshold_backward"),
      entry<&cpu::silu>("silu"),
      entry<&cpu::silu_backward>("silu_backward"),
      entry<&cpu::mish>("mish"),
      entry<&cpu::mish_backward>("mish_backward"),
      entry<&cpu::tanh>("tanh"),
      entry<&cpu::tanh_>("tanh_"),
      entry<&cpu::tanh_backward>("tanh_backward"),
      entry<&cpu::sigmoid>("sigmoid"),
      entry<&cpu::sigmoid_>("sigmoid_"),
      entry<&cpu::leaky_relu>("leaky_relu"),
      entry<&cpu::leaky_relu_backward>("leaky_relu_backward"),
      entry<&cpu::elu>("elu"),
      entry<&cpu::elu_backward>("elu_backward"),
      entry<&cpu::softplus>("softplus"),
      entry<&cpu::softplus_backward>("softplus_backward"),
      entry<overload<WithNumber>(&cpu::clamp_min)>("clamp_min"),
      entry<overload<WithNumber>(&cpu::clamp_max)>("clamp_max"),
      entry<overload<WithBounds>(&cpu::clamp)>("clamp"),
  };
}

std::vector<Entry> numbers() {
  namespace cpu = at::cpu;
  using Bernoulli = Tensor&(Tensor&, double, TorchOptional<at::Generator>);
  return {
      entry<&cpu::exp>("exp"),
      entry<&cpu::exp_>("exp_"),
      entry<&cpu::log>("log"),
      entry<&cpu::log_>("log_"),
      entry<&cpu::log1p>("log1p"),
      entry<&cpu::sqrt>("sqrt"),
      entry<&cpu::sqrt_>("sqrt_"),
      entry<&cpu::rsqrt>("rsqrt"),
      entry<&cpu::rsqrt_>("rsqrt_"),
      entry<&cpu::erf>("erf"),
      entry<&cpu::sin>("sin"),
      entry<&cpu::cos>("cos"),
      entry<&cpu::addcmul>("addcmul"),
      entry<&cpu::addcdiv>("addcdiv"),
      entry<&cpu::mse_loss_backward>("mse_loss_backward"),
      entry<&cpu::cumsum>("cumsum"),
      entry<&cpu::topk>("topk"),
      entry<overload<Bernoulli>(&cpu::bernoulli_)>("bernoulli_.float"),
  };
}

std::vector<Entry> images() {
  namespace cpu = at::cpu;
  return {
      entry<&cpu::_slow_conv2d_forward>("_slow_conv2d_forward"),
      entry<&cpu::_slow_conv2d_backward>("_slow_conv2d_backward.output_mask"),
      entry<&cpu::max_pool2d_with_indices>("max_pool2d_with_indices"),
      entry<&cpu::max_pool2d_with_indices_backward>("max_pool2d_with_indices_backward"),
      entry<&cpu::avg_pool2d>("avg_pool2d"),
      entry<&cpu::avg_pool2d_backward>("avg_pool2d_backward"),
  };
}

std::vector<Entry> entries() {
  std::vector<Entry> all;
  for (const auto& list :
       {products(), norms(), activations(), quick_in_bf16(), numbers(), images()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

/// libtorch warns of every kernel that stands in the place of another; this is meant.
class NoWarnings : public c10::WarningHandler {
 public:
#if TORCH_VERSION_MAJOR < 2
  using Guard = c10::Warning::WarningHandlerGuard;
  void process(const c10::SourceLocation& /*where*/, const std::string& /*text*/, bool /*verbatim*/)
      override {}
#else
  using Guard = c10::WarningUtils::WarningHandlerGuard;
  void process(const c10::Warning& /*warning*/) override {}
#endif
};

/// What a transformer is made of, forward and backward, and whether it is computed in f16.
std::vector<std::string> lacking() {
  const at::NoGradGuard no_grad;
  const Tensor x = at::ones({2, 2}, at::kHalf);
  const Tensor row = at::ones({2}, at::kHalf);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(); // not the script's
  const std::pair<const char*, std::function<void()>> tries[] = {
      {"mm", [&] { at::mm(x, x); }},
      {"addmm", [&] { at::addmm(row, x, x); }},
      {"bmm", [&] { at::bmm(x.unsqueeze(0), x.unsqueeze(0)); }},
      {"softmax", [&] { at::softmax(x, 1); }},
      {"log_softmax", [&] { at::log_softmax(x, 1); }},
      {"layer_norm", [&] { at::layer_norm(x, {2}, row, row); }},
      {"gelu", [&] { at::gelu(x); }},
      {"gelu_backward", [&] { at::gelu_backward(x, x); }},
      {"relu", [&] { at::relu(x); }},
      {"tanh", [&] { at::tanh(x); }},
      {"dropout", [&] { at::empty_like(x).bernoulli_(0.5, generator); }},
      {"embedding", [&] { at::embedding(x, at::zeros({1}, at::kLong)); }},
  };
  std::vector<std::string> names;
  for (const auto& [name, run] : tries) {
    try {
      run();
    } catch (const c10::Error&) {
      names.emplace_back(name);
    }
  }
  return names;
}

std::unique_ptr<torch::Library> registered(const std::vector<Entry>& list) {
  NoWarnings quiet;
  const NoWarnings::Guard guard(&quiet);
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL,
      "aten",
      TorchOptional<c10::DispatchKey>(c10::DispatchKey::CPU),
      __FILE__,
      __LINE__);
  for (const Entry& one : list) {
    one.add(*library, one.name);
  }
  return library;
}

/// Whether oneDNN computes products of bf16 here, as libtorch asks before it calls it.
bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0;
#else
  return true; // libtorch's own, whatever they cost
#endif
}

} // namespace

std::vector<std::string> widened_operators() {
  std::vector<std::string> names;
  for (const Entry& one : entries()) {
    names.emplace_back(one.name);
  }
  return names;
}

WidenedTypes& widened_types() {
  static WidenedTypes types;
  return types;
}

void support_processor() {
  static const std::unique_ptr<torch::Library> library =
      lacking().empty() ? nullptr : registered(entries());
  widened_types().half = library != nullptr;
  const auto names = lacking();
  if (!names.empty()) {
    throw ConfigError(
        str("fp16 needs operators on f16 tensors that libtorch ",
            kTorchVersion,
            " does not have on this processor: ",
            join(names, ", "),
            "; write \"bf16\": true instead"));
  }
}

void widen_bf16_products() {
  static const std::unique_ptr<torch::Library> library = registered(products());
  widened_types().bfloat16 = true;
}

void quicken_bf16() {
  try_bf16_kernels();
  try_bf16_softmax();
  static const std::unique_ptr<torch::Library> library = registered(quick_in_bf16());
  bf16_is_quick() = library != nullptr;
}

void support_bf16_products() {
  if (!has_bf16_products()) {
    widen_bf16_products();
  }
}

} // namespace tessera::half
