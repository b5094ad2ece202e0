#include "tessera/random/mask.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/random/philox.h"

namespace tessera::random {

namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 14; // elements of a task of a core
constexpr int kBlocks = 16; // computed side by side, so that the compiler uses vectors
constexpr int kWords = 4;

/// The words of kBlocks counters from `first` on.
struct Batch {
  std::uint32_t word[kBlocks][kWords];

  void fill(const Use& use, std::uint64_t first) {
    std::uint32_t a[kBlocks];
    std::uint32_t b[kBlocks];
    std::uint32_t c[kBlocks];
    std::uint32_t d[kBlocks];
    for (int i = 0; i < kBlocks; ++i) {
      const std::uint64_t block = first + static_cast<std::uint64_t>(i);
      a[i] = static_cast<std::uint32_t>(block);
      b[i] = static_cast<std::uint32_t>(block >> 32U);
      c[i] = use.number;
      d[i] = use.step;
    }
    auto low = static_cast<std::uint32_t>(use.seed);
    auto high = static_cast<std::uint32_t>(use.seed >> 32U);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (int i = 0; i < kBlocks; ++i) {
        const std::uint64_t x = std::uint64_t{kPhiloxFactors[0]} * a[i];
        const std::uint64_t y = std::uint64_t{kPhiloxFactors[1]} * c[i];
        a[i] = static_cast<std::uint32_t>(y >> 32U) ^ b[i] ^ low;
        b[i] = static_cast<std::uint32_t>(y);
        c[i] = static_cast<std::uint32_t>(x >> 32U) ^ d[i] ^ high;
        d[i] = static_cast<std::uint32_t>(x);
      }
      low += kPhiloxSteps[0];
      high += kPhiloxSteps[1];
    }
    for (int i = 0; i < kBlocks; ++i) {
      word[i][0] = a[i];
      word[i][1] = b[i];
      word[i][2] = c[i];
      word[i][3] = d[i];
    }
  }
};

/// A part as runs of neighbours in the whole, all of one length.
struct Runs {
  std::int64_t length = 1;
  std::vector<std::int64_t> starts; // in the whole, of each run in the order of the part
};

Runs runs_of(at::IntArrayRef sizes, const Place& place) {
  const auto dims = static_cast<std::int64_t>(sizes.size());
  const auto span = [&](std::int64_t dim) {
    const auto index = static_cast<std::size_t>(dim - 1);
    Span found = index < place.others.size() ? place.others[index] : Span();
    found.whole = found.whole == 0 ? sizes[dim] : found.whole;
    return found;
  };
  Runs runs;
  // Dimensions that are here whole join the run, and the first one that is not ends it.
  std::int64_t inside = dims;
  bool joins = true;
  while (inside > 0 && joins) {
    --inside;
    const bool rows = inside == 0;
    if (rows && !place.rows.empty()) {
      ++inside;
      break;
    }
    runs.length *= sizes[inside];
    joins = rows || span(inside).whole == sizes[inside];
  }
  std::vector<std::int64_t> strides(static_cast<std::size_t>(dims), 1); // of the whole
  for (std::int64_t dim = dims - 1; dim > 0; --dim) {
    strides[static_cast<std::size_t>(dim - 1)] =
        strides[static_cast<std::size_t>(dim)] * span(dim).whole;
  }
  const auto first_of = [&](std::int64_t dim, std::int64_t index) {
    if (dim > 0) {
      return span(dim).first + index;
    }
    return place.rows.empty() ? place.first_row + index
                              : place.rows[static_cast<std::size_t>(index)];
  };
  runs.starts = {0};
  for (std::int64_t dim = 0; dim < dims; ++dim) {
    const std::int64_t stride = strides[static_cast<std::size_t>(dim)];
    const std::int64_t many = dim < inside ? sizes[dim] : 1; // in a run only its first one
    std::vector<std::int64_t> next;
    next.reserve(runs.starts.size() * static_cast<std::size_t>(many));
    for (const std::int64_t start : runs.starts) {
      for (std::int64_t i = 0; i < many; ++i) {
        next.push_back(start + first_of(dim, i) * stride);
      }
    }
    runs.starts = std::move(next);
  }
  return runs;
}

/// Writes elements [element, element + count) of the whole to `to`.
template <typename T>
void write(
    const Use& use,
    std::uint64_t element,
    std::int64_t count,
    std::uint64_t least,
    T kept,
    T* to) {
  constexpr std::uint64_t kStep = std::uint64_t{kBlocks} * kWords;
  Batch batch;
  while (count > 0) {
    const std::uint64_t block = element / kWords;
    batch.fill(use, block);
    const std::uint64_t skipped = element % kWords;
    const auto some = std::min<std::int64_t>(count, static_cast<std::int64_t>(kStep - skipped));
    const std::uint32_t* words = &batch.word[0][0] + skipped;
    for (std::int64_t i = 0; i < some; ++i) {
      to[i] = words[i] >= least ? kept : T(0);
    }
    to += some;
    count -= some;
    element += static_cast<std::uint64_t>(some);
  }
}

} // namespace

at::Tensor dropout_mask(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    double probability,
    const Use& use,
    const Place& place) {
  const at::Tensor mask = at::empty(sizes, at::dtype(c10::typeMetaToScalarType(options.dtype())));
  const auto least = static_cast<std::uint64_t>(std::llround(std::ldexp(probability, 32)));
  const double kept = probability < 1 ? 1 / (1 - probability) : 0;
  const Runs runs = runs_of(sizes, place);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, mask.scalar_type(), "dropout_mask", [&] {
        auto* data = mask.data_ptr<scalar_t>();
        at::parallel_for(0, mask.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
          while (begin < end) {
            const std::int64_t offset = begin % runs.length;
            const std::int64_t many = std::min(end - begin, runs.length - offset);
            const auto start = runs.starts[static_cast<std::size_t>(begin / runs.length)] + offset;
            write(
                use,
                static_cast<std::uint64_t>(start),
                many,
                least,
                static_cast<scalar_t>(kept),
                data + begin);
            begin += many;
          }
        });
      });
  // What stands in for a tensor of another rank is on the meta device.
  const at::Device device = options.device();
  return device.is_cpu() || device.is_meta() ? mask : mask.to(device);
}

Place own_place(const Stream& stream, std::int64_t rows, const char* what) {
  if (stream.samples > 0 && rows % stream.samples != 0) {
    throw UserError(str(
        what,
        " of a tensor of ",
        rows,
        " rows in a microbatch of ",
        stream.samples,
        " samples: \"random\": \"layout_independent\" takes the first dimension for that of the "
        "samples. Transpose the tensor before it, or write \"random\": \"by_task\""));
  }
  Place place;
  place.first_row = stream.first_row(rows);
  return place;
}

at::Tensor dropout(Stream& stream, const at::Tensor& x, double probability) {
  if (x.dim() == 0) {
    throw UserError(
        "dropout of a tensor without dimensions, which belongs to no sample: \"random\": "
        "\"layout_independent\" takes the first dimension for that of the samples");
  }
  const Place place = own_place(stream, x.size(0), "dropout");
  return x * dropout_mask(x.sizes(), x.options(), probability, next_use(stream), place);
}

} // namespace tessera::random
