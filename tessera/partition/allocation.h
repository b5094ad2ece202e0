#pragma once

#include <cstdint>
#include <vector>

namespace tessera::partitioning {

/// The seats that D'Hondt's method gives to segments of these costs.
struct Seats {
  std::vector<int> count; // per segment
  std::vector<int> order; // the segment of each award, largest quotient first
};

/// Awards `seats` one by one to the segment with the largest quotient cost / (seats it has + 1). A
/// segment takes at most `capacity` seats; a tie goes to the segment with fewer seats, then to the
/// later one.
///
/// Requires seats <= sum of capacities, costs and capacities >= 0.
/// Source: Gallagher 1991, as cited by Karakus et al. 2021, appendix C.4. Algorithm 3 as printed
/// there divides by a counter common to all segments, which is not D'Hondt's method and does not
/// allocate in proportion: costs (0.9, 0.1) and 8 devices would end as 5 and 3 instead of 8 and 0.
Seats allocate_seats(
    const std::vector<std::int64_t>& costs,
    const std::vector<int>& capacity,
    int seats);

/// Assigns devices to segments as `seats` counts them. The size of a segment's set does not say
/// which devices it holds, so the rule is: devices.front(), which also runs the parent and every
/// segment without a seat, goes to the segment awarded last, the one with the least cost per
/// device. The others follow in order of execution, so that neighbours in the model are neighbours
/// among the devices. A segment without a seat gets an empty set.
///
/// Source: figures 9 and 10 of Karakus et al. 2021, where partition 0 holds the embedding beside
/// the smallest share of layers.
std::vector<std::vector<int>> hand_out(const std::vector<int>& devices, const Seats& seats);

} // namespace tessera::partitioning
