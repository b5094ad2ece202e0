#pragma once

#include <string>
#include <vector>

#include "tessera/operations/cut.h"
#include "tessera/operations/graph.h"
#include "tessera/operations/stages.h"

namespace tessera::cli {

/// A graph of operations, divided.
struct DividedOperations {
  operations::Graph graph;
  operations::Cut cut;
  std::vector<operations::Stage> stages;
  int parts = 1;
};

/// The operations of a preset's forward, without memory for its parameters, divided.
/// Throws: ConfigError for an unknown name; UserError for a forward that cannot be recorded.
DividedOperations divide_preset(const std::string& name, const operations::CutOptions& options);

/// Returns a line for each part and one for each stage.
std::string report_of(const DividedOperations& divided);

/// Returns a picture (SVG) with the stages from left to right and a row for each part. The width of
/// a box is proportional to its number of operations.
std::string svg_of(const DividedOperations& divided);

} // namespace tessera::cli
