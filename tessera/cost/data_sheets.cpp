#include "tessera/cost/data_sheets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

// The figures are those of the manufacturers' data sheets, and the time is that in which the hosts
// of these devices launch an operator of a layer, with what autograd takes, the mean of forward and
// backward: 28 and 30 us on the hosts of an H100 and an H200
// (bench/results/planner_one_device_2026-11-27.md). The hosts of the T4s and V100s whose layers
// were published (section 4 of Li et al. 2022) take longer, for these profiles show layers that
// only reshape at 72 to 77 us. A kernel alone takes 10 us at the least.
constexpr double kLaunchSeconds = 28e-6;
constexpr double kStartSeconds = 10e-6;
constexpr double kPublishedStartSeconds = 75e-6;

// Large products reach about 0.7 of the peak where nothing else is known; streaming kernels reach
// 0.75 of the memory's bandwidth.
constexpr double kProductShare = 0.7;
constexpr double kMemoryShare = 0.75;
// Fitted on runs of nodes of eight. One device alone reaches 0.69
// (bench/results/planner_one_device_2026-11-27.md), so that the rest is of those clusters or their
// software.
constexpr double kHopperShare = 0.59;
// The best shape of a product reaches 0.869 of an A100's peak, 0.836 of a GH200's and 0.803 of an
// H100's (Bekman, Machine Learning Engineering, table of achievable matmul FLOPS), and those of a
// model 0.69 on one H100: 0.86 of the best. A GH200 is a Hopper beside that.
constexpr double kAmpereShare = 0.75;
constexpr double kGraceHopperShare = 0.61;

struct Sheet {
  std::string_view name;
  double gigabytes_per_s; // of its memory
  double f32_tflops;
  double half_tflops; // dense, on tensor cores if the device has them
  double launch_seconds = kLaunchSeconds;
  double product_share = kProductShare;
  double profiled_gbit_per_s = 0; // between devices of a node, where layers were published
};

constexpr std::array<Sheet, 14> kSheets = {{
    {"t4", 320, 8.1, 65, kPublishedStartSeconds, kProductShare, 50},
    {"l4", 300, 30.3, 121},
    {"p100", 732, 10.6, 21.2},
    {"v100", 900, 15.7, 125, kPublishedStartSeconds, kProductShare, 170},
    {"rtx_5000", 448, 11.2, 89.2},
    {"a10", 600, 31.2, 125},
    {"a10g", 600, 35, 70},
    {"a100", 1555, 19.5, 312, kLaunchSeconds, kAmpereShare},
    {"a100_40gb", 1555, 19.5, 312, kLaunchSeconds, kAmpereShare},
    {"a100_80gb", 2039, 19.5, 312, kLaunchSeconds, kAmpereShare},
    {"h100", 3350, 67, 989, kLaunchSeconds, kHopperShare},
    {"h100_80gb", 3350, 67, 989, kLaunchSeconds, kHopperShare},
    {"h200", 4800, 67, 989, kLaunchSeconds, kHopperShare},
    {"gh200", 4000, 67, 989, kLaunchSeconds, kGraceHopperShare},
}};

std::optional<Sheet> sheet_of(const std::string& device_name) {
  std::string lower = device_name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  for (const Sheet& sheet : kSheets) {
    if (lower == sheet.name) {
      return sheet;
    }
  }
  return std::nullopt;
}

// `start_seconds`: the least that one takes.
std::vector<MeasuredPoint> products(double flops_per_s, double start_seconds) {
  std::vector<MeasuredPoint> points;
  for (double size = 64; size <= 8192; size *= 2) {
    const double seconds = 2 * size * size * size / flops_per_s;
    points.push_back({size, std::max(start_seconds, seconds)});
  }
  return points;
}

std::vector<MeasuredPoint> elements(double bytes_each, double bytes_per_s) {
  std::vector<MeasuredPoint> points;
  for (double size = 1024; size <= (1 << 26); size *= 4) {
    const double seconds = size * bytes_each / (kMemoryShare * bytes_per_s);
    points.push_back({size, std::max(kStartSeconds, seconds)});
  }
  return points;
}

} // namespace

double known_memory_bandwidth(const std::string& device_name) {
  const auto sheet = sheet_of(device_name);
  return sheet ? sheet->gigabytes_per_s * 1e9 : 0;
}

double product_flops(const DeviceKind& kind, Precision precision) {
  if (kind.product_flops_per_s > 0) {
    return kind.product_flops_per_s;
  }
  const auto sheet = sheet_of(kind.name);
  if (!sheet || kind.memory_bytes_per_s == 0) {
    throw ConfigError(
        str("cluster: device \"",
            kind.name,
            "\" is not known by name; write its product_tflops and memory_gb_per_s, from which a "
            "model without measured seconds is priced"));
  }
  const double peak = precision == Precision::kHalf ? sheet->half_tflops : sheet->f32_tflops;
  return peak * sheet->product_share * 1e12;
}

double known_profiled_bandwidth(const std::string& device_name) {
  const auto sheet = sheet_of(device_name);
  return sheet ? sheet->profiled_gbit_per_s * 1e9 / 8 : 0;
}

double known_launch_seconds(const std::string& device_name) {
  const auto sheet = sheet_of(device_name);
  return sheet ? sheet->launch_seconds : 0;
}

DeviceSpeed data_sheet_speed(const DeviceKind& kind) {
  DeviceSpeed speed;
  const auto sheet = sheet_of(kind.name);
  if (!sheet) {
    return speed;
  }
  const double bytes_per_s =
      kind.memory_bytes_per_s > 0 ? kind.memory_bytes_per_s : sheet->gigabytes_per_s * 1e9;
  const double half = kind.product_flops_per_s > 0
                          ? kind.product_flops_per_s
                          : sheet->half_tflops * sheet->product_share * 1e12;
  const double full = sheet->f32_tflops * sheet->product_share * 1e12;
  speed.products["f32"] = products(full, kStartSeconds);
  speed.products["bf16"] = products(half, kStartSeconds);
  // The operator as a whole takes no less than it moves, which has a start of its own.
  speed.batched_products["f32"] = products(full, 0);
  speed.batched_products["bf16"] = products(half, 0);
  speed.moves = elements(12, bytes_per_s); // two f32 read, one written
  speed.functions = elements(8, bytes_per_s);
  speed.random = elements(9, bytes_per_s); // one f32 read, one written, and a mask of a byte
  return speed;
}

} // namespace tessera::cost
