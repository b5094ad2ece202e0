#pragma once

#include <exception>
#include <string>
#include <tuple>

#include <ATen/CPUGeneratorImpl.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/subject.h"
#include "tessera/context/context.h"
#include "tessera/runtime/error_text.h"
#include "tessera/tensor/value.h"

// What saving and loading on all ranks share. Private to this folder.
namespace tessera::checkpoint {

/// Parameters' and optimizer's hash, as people see them.
std::string hex(std::uint64_t parameters, std::uint64_t optimizer);

TensorMap tensors_of(const Subject& subject);

inline at::Generator generator() {
  return at::detail::getDefaultCPUGenerator();
}

/// Runs `work` on rank 0; its text or its error reaches every rank.
template <typename Work>
std::string on_first_rank(Context& context, Work work) {
  bool failed = false;
  std::string text;
  if (context.world->rank() == 0) {
    try {
      text = work();
    } catch (...) {
      failed = true;
      text = runtime::message_of(std::current_exception());
    }
  }
  const auto [any_failed, agreed] = unpack<std::tuple<bool, std::string>>(comm::broadcast_object(
      *context.world, context.group(Group::kWorld), pack(std::make_tuple(failed, text)), 0));
  if (any_failed) {
    throw CheckpointError(agreed);
  }
  return agreed;
}

} // namespace tessera::checkpoint
