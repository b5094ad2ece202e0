#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/ivalue.h>

namespace tessera::comm {

/// Returns the bytes of any value: nested tuples, lists, dicts, strings, numbers, None, and tensors
/// of every plain dtype, undefined ones included. Tensors are copied; they arrive contiguous, on
/// the CPU and without history.
/// Not collective. Threads: any thread.
/// Throws: CommError for quantized, sparse and meta tensors and for objects that
/// cannot be pickled.
std::vector<std::byte> encode_object(const c10::IValue& value);

/// Throws: CommError when the bytes are not those of encode_object.
c10::IValue decode_object(const std::vector<std::byte>& bytes);

} // namespace tessera::comm
