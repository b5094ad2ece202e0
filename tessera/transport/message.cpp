#include "tessera/transport/message.h"

#include <algorithm>

#include "tessera/comm/codec/bytes.h"

namespace tessera::transport {

std::vector<std::byte> encode(
    const Header& header,
    const std::vector<comm::TensorStub>& stubs,
    const std::vector<std::byte>& structure,
    const std::vector<std::byte>& payload) {
  std::vector<std::byte> bytes(header.begin(), header.end());
  comm::append_value(bytes, stubs, structure, payload.size());
  std::copy(
      payload.begin(), payload.end(), bytes.end() - static_cast<std::ptrdiff_t>(payload.size()));
  return bytes;
}

MessageView decode(const std::byte* data, std::size_t size) {
  comm::ByteReader in(data, size);
  MessageView message;
  message.header = in.get<Header>();
  const std::size_t left = in.left();
  static_cast<comm::ValueView&>(message) = comm::read_value(in.take(left), left);
  return message;
}

} // namespace tessera::transport
