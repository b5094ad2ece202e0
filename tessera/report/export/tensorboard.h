#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/report/run_log.h"

namespace tessera::report {

/// Returns the content of a TensorBoard event file with the scalars of a log: one TFRecord for each
/// step and validation. docs/run_log.md lists the tags. Values are rounded to f32, as TensorBoard
/// keeps them. Times are those of the log; a record without one has that of its start.
/// Source: tensorflow/core/util/event.proto, framework/summary.proto and lib/io/record_writer.cc.
std::string to_event_file(const RunLog& log);

/// Returns the name that makes TensorBoard read a file, and that a second export of the run has as
/// well: "events.out.tfevents.<seconds since 1970>.<run id of the first start>".
std::string event_file_name(const RunLog& log);

/// Returns the CRC-32C (Castagnoli) of bytes. Source: RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

} // namespace tessera::report
