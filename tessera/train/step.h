#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tessera/train/session.h"
#include "tessera/train/step_arguments.h"
#include "tessera/train/step_call.h"
#include "tessera/train/step_output.h"

namespace tessera {

/// How a step treats its arguments; arguments are named by position, from 0.
struct StepOptions {
  /// Given whole to every microbatch.
  std::vector<int> non_split_inputs = {};
  /// Axis to split along; 0 for those not named.
  std::map<int, int> input_split_axes = {};
  /// Returned tensors keep no graph (a graph would keep activations alive).
  bool detach_outputs = true;
  /// With the key static_mode: this step is repeated as recorded. False for one
  /// whose shapes or whose way through the model change from call to call, such
  /// as the generation of text.
  bool static_mode = true;
  /// The pipeline runs forwards alone: no rank keeps a graph or what a backward would need,
  /// whatever the caller's grad mode is, and a backward in the step is an error.
  bool forward_only = false;
};

/// A training or evaluation step: calls the user's function once for each
/// microbatch, on pp rank 0, with its part of the arguments, while all ranks
/// serve the modules they own. Made by `step`.
template <typename Function>
class Step {
 public:
  Step(Function function, StepOptions options)
      : function_(std::move(function)), options_(std::move(options)) {}

  /// Tensors anywhere in the arguments are split into `microbatches` parts.
  /// Only pp rank 0's arguments count; other ranks may pass the same or empty
  /// ones. Returns, on every rank of the replica, the function's result with
  /// each tensor as a StepOutput and anything else as one entry a microbatch.
  ///
  /// Collective over the world.
  /// Throws: ConfigError when the options name an argument that is not there; UserError (on every
  /// rank, naming rank and module) when the function or a module threw, the batch does not
  /// divide, one with a backward is not the replica's of `replica_samples`, or the ranks of a
  /// TP_GROUP were given unlike arguments under `prescaled_batch`; gradients are undefined then
  /// until zero_grad. The rows of an argument that splits itself (`tessera_slice`) are not known,
  /// so a batch that consists of such arguments is not compared with `replica_samples`.
  template <typename... Args>
  auto operator()(const Args&... args) const {
    using Result = std::decay_t<std::invoke_result_t<const Function&, Args&...>>;
    detail::check_positions(
        options_.non_split_inputs, options_.input_split_axes, static_cast<int>(sizeof...(Args)));
    const int microbatches = config_in_force().microbatches;
    const auto run = [&](int microbatch) -> c10::IValue {
      const auto given = [&] {
        return parts_of(
            std::tie(args...), microbatches, microbatch, std::index_sequence_for<Args...>());
      };
      // The step that follows the tracing pass must find its arguments as they were given.
      std::tuple<Args...> parts = is_tracing() ? detail::FreshCopies().of(given()) : given();
      if constexpr (std::is_void_v<Result>) {
        std::apply(function_, parts);
        return {};
      } else {
        const c10::IValue packed = pack(std::apply(function_, parts));
        return options_.detach_outputs
                   ? map_tensors(packed, [](const at::Tensor& t) { return t.detach(); })
                   : packed;
      }
    };
    const Config& config = config_in_force();
    const bool asked = microbatches > 1 || config.ddp;
    const std::int64_t rows =
        asked ? detail::batch_rows(
                    rows_of(std::tie(args...), std::index_sequence_for<Args...>()), microbatches)
              : 0;
    const bool alike = config.prescaled_batch && config.tensor_parallel_degree > 1;
    const std::vector<c10::IValue> values = train::run_step(
        {type_of(function_),
         options_.static_mode,
         microbatches,
         options_.forward_only,
         rows,
         alike ? std::vector<std::uint64_t>{detail::digest_of_argument(args)...}
               : std::vector<std::uint64_t>()},
        run);
    if constexpr (!std::is_void_v<Result>) {
      std::vector<Result> results;
      for (const c10::IValue& value : values) {
        results.push_back(unpack<Result>(value));
      }
      return detail::StepResult<Result>::join(std::move(results));
    }
  }

 private:
  // A step may be made anew for each call: what is recorded goes by the type.
  static std::string type_of(const Function& function) {
    if constexpr (requires { function.target_type(); }) { // std::function
      return function.target_type().name();
    } else {
      return typeid(function).name();
    }
  }

  template <typename... Args, std::size_t... I>
  std::tuple<Args...> parts_of(
      const std::tuple<const Args&...>& args,
      int microbatches,
      int microbatch,
      std::index_sequence<I...>) const {
    return {part(std::get<I>(args), microbatches, microbatch, I)...};
  }

  template <typename... Args, std::size_t... I>
  std::vector<std::int64_t> rows_of(
      const std::tuple<const Args&...>& args,
      std::index_sequence<I...> /*positions*/) const {
    return {(is_whole(I) ? 0 : detail::rows_of_argument(std::get<I>(args), axis_of(I)))...};
  }

  template <typename T>
  T part(const T& value, int microbatches, int microbatch, int position) const {
    if (is_whole(position)) {
      return value;
    }
    return detail::slice_argument(value, microbatches, microbatch, axis_of(position), position);
  }

  bool is_whole(int position) const {
    const std::vector<int>& whole = options_.non_split_inputs;
    return std::find(whole.begin(), whole.end(), position) != whole.end();
  }
  int axis_of(int position) const {
    const auto axis = options_.input_split_axes.find(position);
    return axis == options_.input_split_axes.end() ? 0 : axis->second;
  }

  Function function_;
  StepOptions options_;
};

/// Makes a step of a function of one microbatch:
///
///     auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
///       auto loss = torch::mse_loss(model(x), y);
///       model.backward(loss);
///       return loss;
///     });
///     float loss = train_step(x, y).reduce_mean().item<float>();
///
/// Source: the library's documentation, `step`.
template <typename Function>
auto step(Function function, StepOptions options = {}) {
  return Step<Function>(std::move(function), std::move(options));
}

} // namespace tessera
