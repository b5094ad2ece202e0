#pragma once

#include <string>

#include "tessera/cost/device_speed.h"

namespace tessera::cost {

/// Data-sheet bandwidth of a device's memory by its name, without regard to
/// case: "t4", "v100", "a100" ... Returns: bytes per second, 0 when unknown.
double known_memory_bandwidth(const std::string& device_name);

/// Speed of a device that nobody measured, from its data sheet: products at a
/// share of the peak, elements at the memory's bandwidth, and nothing faster
/// than the host starts operators. Empty for an unknown name.
DeviceSpeed data_sheet_speed(const std::string& device_name);

} // namespace tessera::cost
