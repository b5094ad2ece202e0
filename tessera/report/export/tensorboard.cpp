#include "tessera/report/export/tensorboard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <concepts>
#include <limits>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/report/positions.h"

namespace tessera::report {

namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78; // of Castagnoli, lowest bit first
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1U) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
    }
    table[i] = value;
  }
  return table;
}

/// Appends an integer with its lowest byte first, whatever this machine does.
template <std::unsigned_integral T>
void put_fixed(T value, std::string& out) {
  for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
    out += static_cast<char>(value >> (8 * byte) & 0xffU);
  }
}

/// Appends seven bits a byte, the lowest first; the highest bit of a byte says that more follow.
void put_varint(std::uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7U) {
    out += static_cast<char>(value | 0x80U);
  }
  out += static_cast<char>(value);
}

// The three ways in which a protobuf field is written that these messages need.
// Source: protobuf.dev, "Encoding".
enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_tag(unsigned number, Wire wire, std::string& out) {
  put_varint(number << 3U | static_cast<unsigned>(wire), out);
}

void put_bytes(unsigned number, std::string_view bytes, std::string& out) {
  put_tag(number, Wire::kBytes, out);
  put_varint(bytes.size(), out);
  out += bytes;
}

struct Scalar {
  std::string_view tag;
  double value = 0;
};

/// Returns Event{wall_time = 1, step = 2}, to which a caller adds what happened.
std::string event(double wall_time, std::int64_t step) {
  std::string out;
  put_tag(1, Wire::kFixed64, out);
  put_fixed(std::bit_cast<std::uint64_t>(wall_time), out);
  put_tag(2, Wire::kVarint, out);
  put_varint(static_cast<std::uint64_t>(step), out);
  return out;
}

/// Returns Summary{repeated Value{tag = 1, simple_value = 2} value = 1}.
std::string summary_of(const std::vector<Scalar>& scalars) {
  std::string out;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(1, scalar.tag, value);
    put_tag(2, Wire::kFixed32, value);
    put_fixed(std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)), value);
    put_bytes(1, value, out);
  }
  return out;
}

/// Checksums are masked because a file that holds checksums of its own parts would else have weak
/// ones.
std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

/// Appends a TFRecord: length, its checksum, data, its checksum.
void put_record(const std::string& data, std::string& out) {
  std::string length;
  put_fixed(std::uint64_t{data.size()}, length);
  out += length;
  put_fixed(masked(crc32c(length)), out);
  out += data;
  put_fixed(masked(crc32c(data)), out);
}

void put_scalars(
    double wall_time,
    std::int64_t step,
    const std::vector<Scalar>& scalars,
    std::string& out) {
  std::string data = event(wall_time, step);
  put_bytes(5, summary_of(scalars), data); // Event{summary = 5}
  put_record(data, out);
}

double started_at(const RunLog& log, std::size_t start) {
  return start < log.starts.size() ? seconds_of_utc(log.starts[start].facts.started).value_or(0)
                                   : 0;
}

std::vector<Scalar> scalars_of(const StepRecord& step) {
  std::vector<Scalar> scalars = {
      {"loss/training", step.loss},
      {"optimizer/learning_rate", step.learning_rate},
      {"speed/tokens_per_second", step.tokens_per_second},
      {"speed/step_seconds", step.step_seconds}};
  const auto add = [&scalars](std::string_view tag, const std::optional<double>& value) {
    if (value) {
      scalars.push_back({tag, *value});
    }
  };
  const auto add_largest = [&scalars](std::string_view tag, const std::vector<std::int64_t>& all) {
    if (!all.empty()) {
      scalars.push_back({tag, static_cast<double>(*std::max_element(all.begin(), all.end()))});
    }
  };
  add("optimizer/gradient_norm", step.grad_norm);
  add("optimizer/loss_scale", step.loss_scale);
  add("speed/bubble_share", step.bubble_share);
  add_largest("memory/largest_rank_bytes", step.memory_bytes);
  add_largest("memory/largest_offload_bytes", step.offload_bytes);
  return scalars;
}

} // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xffU] ^ (crc >> 8U);
  }
  return ~crc;
}

std::string event_file_name(const RunLog& log) {
  std::string id = log.starts.empty() ? "" : log.starts.front().facts.run_id;
  for (char& c : id) {
    // An id is hexadecimal; that of a log written by hand must not lead to another folder.
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return str(
      "events.out.tfevents.",
      static_cast<std::int64_t>(started_at(log, 0)),
      ".",
      id.empty() ? "tessera" : id);
}

std::string to_event_file(const RunLog& log) {
  std::string out;
  // The first event says which form the file has: Event{file_version = 3}.
  std::string first = event(started_at(log, 0), 0);
  put_bytes(3, "brain.Event:2", first);
  put_record(first, out);

  const auto all = positions(log);
  auto validation = log.validations.begin();
  double time = started_at(log, 0);
  const auto put_validations = [&](std::int64_t before) {
    for (; validation != log.validations.end() && validation->step < before; ++validation) {
      put_scalars(time, validation->step, {{"loss/validation", validation->loss}}, out);
    }
  };
  for (std::size_t i = 0; i < log.steps.size(); ++i) {
    const StepRecord& step = log.steps[i];
    put_validations(step.step); // at the time of the step before
    time = started_at(log, all[i].start) + step.elapsed_seconds.value_or(0);
    put_scalars(time, step.step, scalars_of(step), out);
  }
  put_validations(std::numeric_limits<std::int64_t>::max());
  return out;
}

} // namespace tessera::report
