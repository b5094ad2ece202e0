#include "cli/partition/operations_view.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/operations/capture/capture.h"
#include "tessera/operations/units.h"

#include "cli/formatted.h"
#include "models/registry.h"

namespace tessera::cli {

namespace {

double mebibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::int64_t bytes_of(const operations::Graph& graph, const std::vector<int>& tensors) {
  std::int64_t bytes = 0;
  for (const int tensor : tensors) {
    bytes += graph.tensors[tensor].bytes;
  }
  return bytes;
}

// The path that all modules of a stage's variables begin with, or those of the first and the last.
std::string modules_of(const operations::Graph& graph, const operations::Stage& stage) {
  std::string first;
  std::string last;
  for (const int operation : stage.operations) {
    for (const int variable : graph.operations[operation].variables) {
      last = graph.variables[variable].module;
      first = first.empty() ? last : first;
    }
  }
  return first == last ? first : first + " .. " + last;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&') {
      result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
    } else {
      result += c;
    }
  }
  return result;
}

} // namespace

DividedOperations divide_preset(const std::string& name, const operations::CutOptions& options) {
  const models::Preset& preset = models::find_preset(name);
  const tracer::DelayedInitScope delayed;
  models::AnyModel model = models::make_model(preset);
  const auto inputs = model.sample_inputs({0, 0, 0});
  const at::NoGradGuard no_grad;
  const operations::VariableTable variables = operations::variables_of(*model.module);
  operations::Capture capture(variables, nullptr);
  capture.run({}, [&](const c10::IValue& /*arguments*/) -> c10::IValue {
    model.forward(inputs);
    return {};
  });
  const operations::Program program = capture.take_program();
  DividedOperations divided;
  divided.parts = options.parts;
  divided.graph = operations::make_graph({&program}, variables.list, name);
  const operations::Units units = operations::make_units(divided.graph);
  divided.cut = operations::cut(divided.graph, units, options);
  divided.stages = operations::make_stages(divided.graph, units, divided.cut.part_of_operation);
  return divided;
}

std::string report_of(const DividedOperations& divided) {
  const operations::Graph& graph = divided.graph;
  std::string text =
      str(graph.name,
          ": ",
          graph.operations.size(),
          " operations in ",
          divided.cut.groups,
          " groups, ",
          divided.parts,
          " parts\n");
  text += formatted("%-6s %11s %10s %16s\n", "part", "operations", "variables", "their MiB");
  for (int part = 0; part < divided.parts; ++part) {
    int operations = 0;
    std::set<int> variables;
    for (std::size_t i = 0; i < graph.operations.size(); ++i) {
      if (divided.cut.part_of_operation[i] == part) {
        ++operations;
        variables.insert(
            graph.operations[i].variables.begin(), graph.operations[i].variables.end());
      }
    }
    std::int64_t bytes = 0;
    for (const int variable : variables) {
      bytes += graph.variables[variable].bytes;
    }
    text +=
        formatted("%-6d %11d %10zu %16.2f\n", part, operations, variables.size(), mebibytes(bytes));
  }
  text += formatted(
      "\n%-6s %4s %11s %10s %10s  %s\n",
      "stage",
      "part",
      "operations",
      "takes MiB",
      "gives MiB",
      "modules");
  for (std::size_t s = 0; s < divided.stages.size(); ++s) {
    const operations::Stage& stage = divided.stages[s];
    text += formatted(
                "%-6zu %4d %11zu %10.2f %10.2f  ",
                s,
                stage.part,
                stage.operations.size(),
                mebibytes(bytes_of(graph, stage.takes)),
                mebibytes(bytes_of(graph, stage.gives))) +
            modules_of(graph, stage) + "\n";
  }
  text += formatted(
      "\n%.2f MiB between parts in a forward, greatest load %.2f of the mean\n",
      mebibytes(divided.cut.crossing_bytes),
      divided.cut.imbalance);
  return text;
}

std::string svg_of(const DividedOperations& divided) {
  constexpr double kWidth = 1000;
  constexpr double kRow = 56;
  constexpr double kLeft = 64;
  const auto count = static_cast<double>(std::max<std::size_t>(1, divided.graph.operations.size()));
  const double height = kRow * divided.parts + 40;
  std::string svg =
      formatted(
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
          "font-family=\"sans-serif\" font-size=\"12\">\n",
          kWidth + kLeft + 16,
          height) +
      "<style>text{fill:#222}@media (prefers-color-scheme: dark){text{fill:#ddd}}</style>\n" +
      "<text x=\"4\" y=\"16\">" + escaped(divided.graph.name) +
      ": operations by part and stage</text>\n";
  for (int part = 0; part < divided.parts; ++part) {
    svg += formatted("<text x=\"4\" y=\"%.0f\">part %d</text>\n", 58 + kRow * part, part);
  }
  double x = kLeft;
  for (std::size_t s = 0; s < divided.stages.size(); ++s) {
    const operations::Stage& stage = divided.stages[s];
    const double width = kWidth * static_cast<double>(stage.operations.size()) / count;
    const double y = 30 + kRow * stage.part;
    svg += formatted(
        "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"40\" rx=\"3\" "
        "fill=\"hsl(%d,45%%,60%%)\"><title>",
        x,
        y,
        std::max(1.0, width - 2),
        stage.part * 360 / std::max(1, divided.parts));
    svg += escaped(
        str("stage ",
            s,
            ", part ",
            stage.part,
            ": ",
            stage.operations.size(),
            " operations, ",
            modules_of(divided.graph, stage),
            ", gives ",
            bytes_of(divided.graph, stage.gives),
            " bytes"));
    svg += "</title></rect>\n";
    if (width > 40) {
      svg += formatted(
          "<text x=\"%.1f\" y=\"%.0f\">%zu</text>\n", x + 4, y + 24, stage.operations.size());
    }
    x += width;
  }
  return svg + "</svg>\n";
}

} // namespace tessera::cli
