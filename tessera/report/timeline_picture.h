#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/timeline/timeline.h"

namespace tessera::report {

struct PictureOptions {
  /// Pieces that are closer than this share of the step are drawn as one box.
  double merge_share = 0.0004;
  /// The shortest boxes beyond this number are left out and counted.
  std::size_t most_boxes = 6000;
};

/// Returns the pipeline of one step as an HTML element as wide as its container. It has a row for
/// each rank. A box in a row is a stretch in which the rank ran a microbatch forward (blue) or
/// backward (orange), with the microbatch's number, or the optimizer's step (grey); communication
/// (violet) is below them. The rank waited where its row is empty. Pointing at a box shows its
/// name, start and duration.
/// Events of several modules of one microbatch that follow each other are one box: the picture
/// shows requests.
/// Throws: Error when the timeline has no event of that step.
/// Source: Karakus et al. 2021, figure 5.
std::string
timeline_picture(const timeline::Timeline& timeline, int step, const PictureOptions& options = {});

/// Draws the same, and below each rank's row the row that a simulation of the step gives the rank.
/// Both begin where their first event does and have one axis, as long as the longer of them.
/// Throws: Error also when the simulation has no event that can be drawn, or other ranks.
std::string timeline_picture(
    const timeline::Timeline& timeline,
    int step,
    const timeline::Timeline& simulated,
    const PictureOptions& options = {});

/// Returns the microseconds from the first event of a step that can be drawn to the end of its
/// last. Throws: Error when the timeline has no such event.
double drawn_us(const timeline::Timeline& timeline, int step);

/// Returns the categories with a colour of their own that occur in `timeline`, in the order of a
/// legend: of "forward", "backward", "optimizer" and "comm".
std::vector<std::string> drawn_categories(const timeline::Timeline& timeline);

} // namespace tessera::report
