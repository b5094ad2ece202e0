#pragma once

#include <string>

#include "tessera/cost/cluster.h"
#include "tessera/cost/device_speed.h"

namespace tessera::cost {

/// Returns the data-sheet bandwidth of a device's memory in bytes per second, by the
/// device's name in any case ("t4", "v100", "a100"); 0 for an unknown name.
double known_memory_bandwidth(const std::string& device_name);

/// Returns the operations a second that large products reach on a device: what its kind says, else
/// what follows from its name. Throws: ConfigError for a kind and a name that say nothing.
double product_flops(const DeviceKind& kind, Precision precision);

/// Returns the bandwidth between two devices of a node, in bytes per second, where layers on such
/// devices were measured and published (Li et al. 2022, section 4.3); 0 for other names.
double known_profiled_bandwidth(const std::string& device_name);

/// Returns the seconds in which the host of a device launches one operator, by the device's name;
/// 0 for an unknown name.
double known_launch_seconds(const std::string& device_name);

/// Returns the speed of a device from its data sheet: products run at a share of the peak,
/// element-wise operators at a share of the memory's bandwidth, and none is faster than the host
/// launches operators. Many products in one operator are launched once. Rates that the kind says
/// stand in for those of the sheet. Empty for an unknown name.
DeviceSpeed data_sheet_speed(const DeviceKind& kind);

} // namespace tessera::cost
