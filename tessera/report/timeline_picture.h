#pragma once

#include <cstddef>
#include <string>

#include "tessera/timeline/timeline.h"

namespace tessera::report {

struct PictureOptions {
  int width = 1120;
  /// Pieces closer than this share of the step are drawn as one box.
  double merge_share = 0.0004;
  /// The shortest boxes beyond this number are left out and counted.
  std::size_t most_boxes = 6000;
};

/// The pipeline of one step as an <svg> element: a row for each rank, in it a
/// box for each stretch in which the rank ran a microbatch forward (blue) or
/// backward (orange) with the microbatch's number, below them what it sent
/// (violet) and the optimizer (grey). Where the row is empty the rank waited.
/// Events of several modules of one microbatch that follow each other are one
/// box: the picture is that of requests.
/// Throws: Error when the timeline has no event of that step.
/// Source: Karakus et al. 2021, figure 5.
std::string
timeline_picture(const timeline::Timeline& timeline, int step, const PictureOptions& options = {});

} // namespace tessera::report
