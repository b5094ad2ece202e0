#include "tessera/state/element_places.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/state/layout.h"

namespace tessera::state {

namespace {

/// The elements of several whole tensors, numbered through from 1. 0 is left for padding.
class Numbering {
 public:
  explicit Numbering(const std::vector<StateLayout::Whole>& tensors) {
    std::int64_t next = 1;
    for (const StateLayout::Whole& entry : tensors) {
      names_.push_back(entry.name);
      starts_.push_back(next);
      next += c10::multiply_integers(entry.sizes);
    }
    starts_.push_back(next);
  }

  /// f64 holds the numbers of 9e15 elements, and what moves numbers moves those of a type that
  /// parameters have.
  at::Tensor numbers(std::size_t tensor, const std::vector<std::int64_t>& sizes) const {
    return at::arange(starts_[tensor], starts_[tensor + 1], at::kDouble).view(sizes);
  }

  /// Finds the runs of a local tensor that was made of numbers.
  ElementPlaces places(const at::Tensor& local) const {
    const at::Tensor flat = local.contiguous().view({-1});
    const double* number = flat.data_ptr<double>();
    const std::int64_t elements = flat.numel();
    ElementPlaces places{.names = names_, .runs = {}};
    std::int64_t i = 0;
    while (i < elements) {
      const auto first = static_cast<std::int64_t>(number[i]);
      if (first == 0) {
        ++i;
        continue;
      }
      const auto above = std::upper_bound(starts_.begin(), starts_.end(), first);
      TESSERA_CHECK(above != starts_.begin() && above != starts_.end(), "no element ", first);
      const auto tensor = static_cast<std::size_t>(above - starts_.begin()) - 1;
      const auto inside = [&](std::int64_t j) {
        return j < elements && number[j] >= static_cast<double>(starts_[tensor]) &&
               number[j] < static_cast<double>(starts_[tensor + 1]);
      };
      ElementRun run{i, 1, static_cast<int>(tensor), first - starts_[tensor], 1};
      if (inside(i + 1)) {
        const double stride = number[i + 1] - number[i];
        run.stride = static_cast<std::int64_t>(stride);
        while (inside(i + run.count) &&
               number[i + run.count] - number[i + run.count - 1] == stride) {
          ++run.count;
        }
      }
      i += run.count;
      places.runs.push_back(run);
    }
    return places;
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::int64_t> starts_;
};

} // namespace

ElementPlaces ElementPlaces::identity(const std::string& name, std::int64_t elements) {
  return {.names = {name}, .runs = {{0, elements, 0, 0, 1}}};
}

ElementPlaces ElementPlaces::slice(std::int64_t start, std::int64_t count) const {
  ElementPlaces part{.names = names, .runs = {}};
  for (const ElementRun& run : runs) {
    const std::int64_t begin = std::max(run.local_start, start);
    const std::int64_t end = std::min(run.local_start + run.count, start + count);
    if (begin < end) {
      part.runs.push_back(
          {begin - start,
           end - begin,
           run.tensor,
           run.whole_start + (begin - run.local_start) * run.stride,
           run.stride});
    }
  }
  return part;
}

std::map<std::string, ElementPlaces> element_places(const StateLayout& layout) {
  std::map<std::string, ElementPlaces> places;
  for (const StateLayout::Whole& entry : layout.wanted(0)) {
    if (entry.parameter) {
      places.emplace(
          entry.name, ElementPlaces::identity(entry.name, c10::multiply_integers(entry.sizes)));
    }
  }
  for (int part = 1; part < layout.parts(); ++part) {
    const auto wanted = layout.wanted(part);
    const Numbering numbering(wanted);
    TensorMap numbers;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      numbers.emplace(wanted[i].name, numbering.numbers(i, wanted[i].sizes));
    }
    if (numbers.empty()) {
      continue; // other ranks hold this module
    }
    for (const auto& [name, local] : layout.to_local(part, numbers)) {
      places.emplace(name, numbering.places(local));
    }
  }
  return places;
}

} // namespace tessera::state
