#include "tessera/report/text_table.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"

namespace tessera::report {

namespace {

/// Returns the number of code points, so that columns of UTF-8 text line up.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

bool is_figure(const std::string& text) {
  if (text.empty() || text == "-" || text == "NaN") {
    return true;
  }
  const std::size_t first = text[0] == '-' || text[0] == '+' ? 1 : 0;
  return first < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[first])) != 0 || text[first] == '.');
}

struct Column {
  std::size_t width = 0;
  bool right = true;
};

void put_row(
    const std::vector<std::string>& cells,
    const std::vector<Column>& columns,
    std::string& out) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string space(columns[i].width - width_of(cells[i]), ' ');
    line += i == 0 ? "" : "  ";
    line += columns[i].right ? space + cells[i] : cells[i] + space;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + "\n";
}

} // namespace

std::string to_text(const TextTable& table) {
  std::vector<Column> columns(table.headers.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    columns[i].width = width_of(table.headers[i]);
    for (const auto& row : table.rows) {
      TESSERA_CHECK(row.size() == columns.size());
      columns[i].width = std::max(columns[i].width, width_of(row[i]));
      columns[i].right = columns[i].right && is_figure(row[i]);
    }
  }
  std::string out;
  put_row(table.headers, columns, out);
  std::vector<std::string> rule;
  for (const Column& column : columns) {
    rule.emplace_back(column.width, '-');
  }
  put_row(rule, columns, out);
  for (const auto& row : table.rows) {
    put_row(row, columns, out);
  }
  return out;
}

} // namespace tessera::report
