#pragma once

#include <cstdint>

// What Tokenizer and the program tessera-tokenizer say to each other: a frame
// is this header and `bytes` of payload, in the machine's byte order.
namespace tessera::data::tokenizer_protocol {

enum Kind : std::uint32_t {
  // Requests and the payload of their answers:
  kTrain, // Training, then lines of text -> bytes of a model
  kLoad, // bytes of a model -> Loaded
  kEncode, // text -> int32 ids
  kDecode, // int32 ids -> text
  // Answers:
  kDone,
  kFailed, // why, as text
};

struct Header {
  std::uint32_t kind = kDone;
  std::uint32_t zero = 0;
  std::uint64_t bytes = 0;
};

struct Training {
  std::int64_t vocab_size = 0;
};

struct Loaded {
  std::int32_t vocab_size = 0;
  std::int32_t end_of_document = 0;
};

} // namespace tessera::data::tokenizer_protocol
