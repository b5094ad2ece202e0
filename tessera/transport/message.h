#pragma once

#include <cstddef>
#include <vector>

#include "tessera/comm/codec/value_codec.h"
#include "tessera/transport/transport.h"

namespace tessera::transport {

/// A message as it lies in a buffer, which must outlive it: fixed fields and a
/// value whose tensors may travel another way (comm/codec/value_codec.h).
struct MessageView : comm::ValueView {
  Header header{};
};

std::vector<std::byte> encode(
    const Header& header,
    const std::vector<comm::TensorStub>& stubs,
    const std::vector<std::byte>& structure,
    const std::vector<std::byte>& payload);

/// Reads a message of `size` bytes and nothing outside it.
/// Throws: CommError on anything encode would not have written.
MessageView decode(const std::byte* data, std::size_t size);

} // namespace tessera::transport
