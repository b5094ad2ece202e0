#include "tessera/train/step_arguments.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/log.h"
#include "tessera/random/stream.h"
#include "tessera/train/session.h"

namespace tessera::detail {

namespace {

bool holds_packed_sequence(const c10::IValue& value) {
  if (!value.isTuple()) {
    return false;
  }
  const auto& elements = value.toTupleRef().elements();
  if (!elements.empty() && elements[0].isString() && elements[0].toStringRef() == kPackedSequence) {
    return true;
  }
  return std::any_of(elements.begin(), elements.end(), holds_packed_sequence);
}

void check_position(const char* option, int position, int arguments) {
  if (position < 0 || position >= arguments) {
    throw ConfigError(tessera::str(
        option,
        " of the step names argument ",
        position,
        ", but it is called with ",
        arguments,
        " arguments; ",
        arguments == 0 ? std::string("leave it out")
                       : tessera::str("write positions from 0 to ", arguments - 1)));
  }
}

/// Tells the microbatch's random numbers of how many samples it is.
void note_samples(std::int64_t samples, int axis, int argument) {
  random::Stream* stream = random::current();
  if (stream == nullptr) {
    return;
  }
  if (axis != 0) {
    throw ConfigError(tessera::str(
        "input_split_axes: argument ",
        argument,
        " of the step has its samples along axis ",
        axis,
        ", but \"random\": \"layout_independent\" finds a sample's random numbers by the first "
        "dimension; pass the samples there and transpose in the step function, or write "
        "\"random\": \"by_task\""));
  }
  if (stream->samples == 0) {
    stream->samples = samples;
  }
}

at::Tensor clone_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor copy = tensor.detach().clone();
  copy.set_requires_grad(tensor.requires_grad());
  if (tensor.is_leaf() && tensor.grad().defined()) {
    copy.mutable_grad() = tensor.grad().detach().clone();
  }
  return copy;
}

} // namespace

void check_positions(
    const std::vector<int>& non_split_inputs,
    const std::map<int, int>& input_split_axes,
    int arguments) {
  for (const int position : non_split_inputs) {
    check_position("non_split_inputs", position, arguments);
    if (input_split_axes.count(position) > 0) {
      throw ConfigError(tessera::str(
          "argument ",
          position,
          " of the step is named by non_split_inputs and by input_split_axes; name it in one"));
    }
  }
  for (const auto& [position, axis] : input_split_axes) {
    check_position("input_split_axes", position, arguments);
  }
}

at::Tensor
slice_tensor(const at::Tensor& tensor, int microbatches, int microbatch, int axis, int argument) {
  if (axis < 0 || axis >= tensor.dim()) {
    throw ShapeError(tessera::str(
        "argument ",
        argument,
        " of the step has shape ",
        tensor.sizes(),
        ", so it cannot be split along axis ",
        axis,
        "; name it in non_split_inputs or give its axis in "
        "input_split_axes"));
  }
  const std::int64_t rows = tensor.size(axis);
  if (rows % microbatches != 0) {
    throw ShapeError(tessera::str(
        "argument ",
        argument,
        " of the step has ",
        rows,
        " rows along axis ",
        axis,
        ", which ",
        microbatches,
        " microbatches do not divide; drop the last incomplete batch, or "
        "set microbatches to a divisor of ",
        rows));
  }
  const std::int64_t size = rows / microbatches;
  note_samples(size, axis, argument);
  const at::Tensor part = tensor.narrow(axis, microbatch * size, size);
  // Parts share the batch's memory, so what a step changes in place is changed as in the plain
  // script; but a change of one part must not count as one of the others' in autograd.
  return part.requires_grad() ? part : part.variable_data();
}

c10::IValue
slice_value(const c10::IValue& value, int microbatches, int microbatch, int axis, int argument) {
  if (microbatches > 1 && holds_packed_sequence(value)) {
    throw ShapeError(tessera::str(
        "argument ",
        argument,
        " of the step holds a PackedSequence; its rows are time steps of all samples, so they "
        "cannot be split into ",
        microbatches,
        " microbatches. Pass the padded tensor and the lengths, and call pack_padded_sequence in "
        "the step function"));
  }
  return map_tensors(value, [&](const at::Tensor& tensor) {
    return slice_tensor(tensor, microbatches, microbatch, axis, argument);
  });
}

std::uint64_t digest_of_value(const c10::IValue& value) {
  std::uint64_t digest = kHashSeed;
  const auto add = [&](std::uint64_t word) { digest = mix_bits(digest ^ word); };
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    add(static_cast<std::uint64_t>(tensor.scalar_type()) + 1);
    for (const std::int64_t size : tensor.sizes()) {
      add(static_cast<std::uint64_t>(size));
    }
    if (tensor.layout() != at::kStrided || tensor.is_meta() || !tensor.has_storage()) {
      return;
    }
    const at::Tensor flat = tensor.detach().cpu().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.data_ptr());
    const std::size_t count = flat.nbytes();
    for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min(sizeof word, count - i));
      add(word);
    }
  });
  return digest;
}

std::int64_t rows_of_value(const c10::IValue& value, int axis) {
  std::int64_t rows = 0;
  map_tensors(value, [&](const at::Tensor& tensor) {
    rows = rows == 0 && axis >= 0 && axis < tensor.dim() ? tensor.size(axis) : rows;
    return tensor;
  });
  return rows;
}

std::int64_t batch_rows(const std::vector<std::int64_t>& of_arguments, int microbatches) {
  std::int64_t rows = 0;
  int first = 0;
  for (int i = 0; i < static_cast<int>(of_arguments.size()); ++i) {
    const std::int64_t here = of_arguments[static_cast<std::size_t>(i)];
    if (rows == 0) {
      rows = here;
      first = i;
      continue;
    }
    static bool warned = false;
    if (here != 0 && here != rows && microbatches > 1 && !warned) {
      warned = true;
      if (tessera::rank() == 0) {
        log::warning(tessera::str(
            "argument ",
            first,
            " of the step has ",
            rows,
            " rows and argument ",
            i,
            " has ",
            here,
            "; both are split into ",
            microbatches,
            " microbatches. Name an argument that is no batch (weights of classes, an adjacency) "
            "in StepOptions::non_split_inputs"));
      }
    }
  }
  return rows;
}

at::Tensor FreshCopies::copy_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.layout() != at::kStrided) {
    return clone_of(tensor);
  }
  const Place place(
      tensor.storage().unsafeGetStorageImpl(),
      tensor.storage_offset(),
      tensor.sizes().vec(),
      tensor.strides().vec(),
      tensor.requires_grad());
  auto found = copies_.find(place);
  if (found == copies_.end()) {
    found = copies_.emplace(place, clone_of(tensor)).first;
  }
  return found->second;
}

} // namespace tessera::detail
