#include "tessera/base/error.h"
#include "tessera/report/compare/comparison.h"
#include "tessera/report/format.h"
#include "tessera/report/report.h"
#include "tessera/report/text_table.h"

namespace tessera::report {

namespace {

std::string
table_of(const std::string& name, const std::vector<ComparedRow>& rows, std::size_t runs) {
  TextTable table;
  table.headers = {name};
  for (std::size_t i = 0; i < runs; ++i) {
    table.headers.push_back(letter(i));
  }
  for (const ComparedRow& row : rows) {
    table.rows.push_back({row.name});
    table.rows.back().insert(table.rows.back().end(), row.values.begin(), row.values.end());
  }
  return to_text(table);
}

} // namespace

std::string to_text(const Comparison& comparison) {
  check_comparable(comparison);
  TextTable names;
  names.headers = {"run", "log", "model", "layout", "started"};
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    const ComparedRun& run = comparison.runs[i];
    const RunFacts& facts = run.log.run;
    names.rows.push_back({letter(i), run.name, facts.model, words::layout(facts), facts.started});
  }
  const std::size_t runs = comparison.runs.size();
  std::string out = to_text(names);
  out += "\n" + table_of("at the end", final_figures(comparison), runs);
  const Differences different = differences(comparison);
  if (!different.facts.empty()) {
    out += "\n" + table_of("differs: run", different.facts, runs);
  }
  if (!different.configuration.empty()) {
    out += "\n" + table_of("differs: configuration", different.configuration, runs);
  }
  for (const std::string& remark : remarks(comparison)) {
    out += "\n" + remark;
  }
  return out;
}

} // namespace tessera::report
