#include "tessera/runtime/script_stream.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/random_state.h"

namespace tessera::runtime {

c10::IValue ScriptStream::for_message_to(int rank) {
  at::Tensor bytes = RandomState::capture().to_bytes();
  at::Tensor& last = last_[rank];
  if (last.defined() && at::equal(last, bytes)) {
    return {};
  }
  last = bytes;
  return bytes;
}

void ScriptStream::take_from(int rank, const c10::IValue& state) {
  at::Tensor& last = last_[rank];
  if (state.isTensor()) {
    last = state.toTensor().clone(); // a received tensor holds memory of its sender
  }
  TESSERA_CHECK(last.defined(), "rank ", rank, " sent no random state");
  RandomState::from_bytes(last).restore();
}

} // namespace tessera::runtime
