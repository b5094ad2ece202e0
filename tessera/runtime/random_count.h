#pragma once

#include "tessera/random/stream.h"
#include "tessera/runtime/protocol.h"

// The count of a microbatch's uses of random numbers travels with its calls.
namespace tessera::runtime {

/// Writes this thread's count into a message.
inline void put_count(Fields& fields) {
  const random::Count count = random::count();
  fields.random_used = count.used;
  fields.random_samples = count.samples;
}

/// Goes on from the count of a message that came.
inline void take_count(const Fields& fields) {
  random::set_count({fields.random_used, fields.random_samples});
}

} // namespace tessera::runtime
