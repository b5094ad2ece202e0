#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/report/format.h"
#include "tessera/report/text_table.h"

#include "cli/doctor/facts.h"

namespace tessera::cli::doctor {

namespace {

using report::format_bytes;
using report::format_number;
using report::format_seconds;

std::string per_second(double bytes) {
  return format_bytes(bytes) + "/s";
}

std::string names_of(const std::vector<int>& ranks) {
  std::string line;
  for (const int rank : ranks) {
    line += line.empty() ? str(rank) : str(", ", rank);
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + line;
}

/// What is the same for every rank of a host, once.
std::string host_lines(const RankFacts& facts) {
  const HostMemory& memory = facts.memory;
  std::string lines =
      str("host ",
          facts.host,
          "\n  processor  ",
          facts.processor,
          ", ",
          facts.cores,
          " cores; vectors: ",
          facts.features.empty() ? "none" : join(facts.features, " "),
          "\n  MPI        ",
          facts.mpi,
          ", threads: ",
          facts.thread_level,
          "\n  BLAS       ",
          facts.products.provider,
          facts.products.kernel.empty() ? "" : ", kernel " + facts.products.kernel,
          "\n  memory     ",
          format_bytes(static_cast<double>(memory.available)),
          " available of ",
          format_bytes(static_cast<double>(memory.total)));
  if (memory.group_limit) {
    lines +=
        str("; control group: ",
            format_bytes(static_cast<double>(memory.group_used.value_or(0))),
            " used of ",
            format_bytes(static_cast<double>(*memory.group_limit)));
  }
  const double gain = facts.products.bf16_gflops / facts.products.f32_gflops;
  lines +=
      str("\n  precision  bf16 products run ",
          format_number(gain, 2),
          " times as fast as f32 ones",
          gain > 1 ? "" : ": train in f32");
  if (facts.products.trial) {
    lines +=
        str("\n  tried      kernel ",
            facts.products.trial->kernel,
            ": f32 product ",
            format_number(facts.products.trial->f32_gflops, 3),
            " GFLOP/s");
  }
  return lines + "\n";
}

report::TextTable rank_table(const Examination& examination) {
  report::TextTable table;
  table.headers = {
      "rank",
      "host",
      "threads",
      "f32 GFLOP/s",
      "bf16 GFLOP/s",
      "memory copy",
      "clock offset",
      "(within)"};
  for (const RankFacts& facts : examination.ranks) {
    table.rows.push_back(
        {str(facts.rank),
         facts.host,
         str(facts.threads),
         format_number(facts.products.f32_gflops, 3),
         format_number(facts.products.bf16_gflops, 3),
         per_second(facts.copy_bytes_per_s),
         facts.rank == 0 ? "-" : str(format_number(facts.clock_offset_us, 3), " us"),
         facts.rank == 0 ? "-" : format_seconds(facts.clock_error_us * 1e-6)});
  }
  return table;
}

/// Bandwidth above the diagonal, latency below it.
report::TextTable pair_table(const Examination& examination) {
  std::vector<int> ranks;
  for (const RankFacts& facts : examination.ranks) {
    bool measured = true;
    for (const int left_out : examination.unmeasured) {
      measured = measured && left_out != facts.rank;
    }
    if (measured) {
      ranks.push_back(facts.rank);
    }
  }
  report::TextTable table;
  table.headers = {"rank"};
  for (const int column : ranks) {
    table.headers.push_back(str(column));
  }
  for (const int row : ranks) {
    std::vector<std::string> cells = {str(row)};
    for (const int column : ranks) {
      std::string cell = "-";
      for (const PairFacts& pair : examination.pairs) {
        if (pair.first == row && pair.second == column) {
          cell = per_second(pair.bytes_per_s);
        } else if (pair.first == column && pair.second == row) {
          cell = format_seconds(pair.latency_us * 1e-6);
        }
      }
      cells.push_back(cell);
    }
    table.rows.push_back(cells);
  }
  return table;
}

} // namespace

std::string to_tables(const Examination& examination) {
  std::string text;
  std::vector<std::string> seen;
  for (const RankFacts& facts : examination.ranks) {
    const bool first_of_host = facts.local_rank == 0;
    text += first_of_host ? host_lines(facts) : "";
  }
  text += "\n" + report::to_text(rank_table(examination));
  if (!examination.pairs.empty()) {
    text += "\nbetween ranks: bandwidth (above the diagonal), latency (below)\n";
    text += report::to_text(pair_table(examination));
    if (!examination.unmeasured.empty()) {
      text += "not measured: " + names_of(examination.unmeasured) + "\n";
    }
    text +=
        str("all-reduce of 16 MiB over ",
            examination.ranks.size(),
            " ranks: ",
            per_second(examination.all_reduce_bytes_per_s),
            "\n");
  }
  text += "\n";
  for (const Finding& finding : examination.findings) {
    text +=
        str(finding.fatal ? "ERROR    " : "warning  ",
            finding.what,
            " (",
            names_of(finding.ranks),
            ")\n         ",
            finding.advice,
            "\n");
  }
  if (examination.findings.empty()) {
    text += "nothing to mend\n";
  }
  return text;
}

} // namespace tessera::cli::doctor
