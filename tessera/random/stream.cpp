#include "tessera/random/stream.h"

#include <utility>

namespace tessera::random {

namespace {

thread_local Stream* t_stream = nullptr;

} // namespace

Stream* current() {
  return t_stream;
}

StreamScope::StreamScope(std::optional<Stream> stream)
    : stream_(std::move(stream)), previous_(t_stream) {
  t_stream = stream_ ? &*stream_ : nullptr;
}

StreamScope::~StreamScope() {
  t_stream = previous_;
}

std::optional<Stream> captured() {
  return t_stream == nullptr ? std::nullopt : std::optional<Stream>(*t_stream);
}

Use next_use(Stream& stream) {
  return {stream.layout->seed, static_cast<std::uint32_t>(stream.step), stream.used++};
}

Count count() {
  if (t_stream == nullptr) {
    return {};
  }
  return {t_stream->used, static_cast<std::int32_t>(t_stream->samples)};
}

void set_count(const Count& count) {
  if (t_stream != nullptr) {
    t_stream->used = count.used;
    t_stream->samples = count.samples;
  }
}

} // namespace tessera::random
