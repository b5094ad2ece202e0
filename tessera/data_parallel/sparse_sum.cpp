#include "tessera/data_parallel/sparse_sum.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::data_parallel {

namespace {

/// `rows` with zeros below, so that it has `length` rows.
at::Tensor padded(const at::Tensor& rows, std::int64_t length) {
  if (rows.size(0) == length) {
    return rows.contiguous();
  }
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[0] = length;
  at::Tensor result = at::zeros(sizes, rows.options());
  result.narrow(0, 0, rows.size(0)).copy_(rows);
  return result;
}

/// The first counts[r] rows of what rank r gave, one rank after the other.
at::Tensor gathered(
    comm::ProcessGroup& group,
    const at::Tensor& rows,
    const std::vector<std::int64_t>& counts) {
  const at::Tensor mine = padded(rows, *std::max_element(counts.begin(), counts.end()));
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const at::Tensor all = at::empty(sizes, mine.options());
  group.all_gather(all, mine);
  std::vector<at::Tensor> parts;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    parts.push_back(all.select(0, static_cast<std::int64_t>(r)).narrow(0, 0, counts[r]));
  }
  return at::cat(parts);
}

} // namespace

at::Tensor sparse_sum(
    comm::ProcessGroup& group,
    const at::Tensor& own,
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    double scale) {
  const at::NoGradGuard no_grad;
  // Rows of one rank that concern the same place are added before they travel.
  const at::Tensor mine = own.defined() ? own.to(options.dtype()).coalesce() : at::Tensor();
  at::Tensor numbers = at::zeros({2}, at::kLong); // entries, leading dimensions they name
  if (mine.defined()) {
    numbers.data_ptr<std::int64_t>()[0] = mine._nnz();
    numbers.data_ptr<std::int64_t>()[1] = mine.sparse_dim();
  }
  const at::Tensor all = at::empty({group.size(), 2}, at::kLong);
  group.all_gather(all, numbers);
  std::vector<std::int64_t> counts;
  std::int64_t named = 0;
  for (int r = 0; r < group.size(); ++r) {
    counts.push_back(all.data_ptr<std::int64_t>()[2 * r]);
    named = std::max(named, all.data_ptr<std::int64_t>()[2 * r + 1]);
  }
  TESSERA_CHECK(named > 0, "no rank of ", group.name(), " gave a sparse gradient");
  std::vector<std::int64_t> of_values(sizes.begin() + named, sizes.end());
  of_values.insert(of_values.begin(), 0);
  const at::TensorOptions plain = options.requires_grad(false);
  const at::Tensor places =
      mine.defined() ? mine.indices().t() : at::empty({0, named}, plain.dtype(at::kLong));
  const at::Tensor values = mine.defined() ? mine.values() : at::empty(of_values, plain);
  if (*std::max_element(counts.begin(), counts.end()) == 0) {
    return at::sparse_coo_tensor(places.t(), values, sizes, plain.layout(at::kSparse)).coalesce();
  }
  const at::Tensor all_places = gathered(group, places, counts);
  const at::Tensor all_values = gathered(group, values, counts).mul_(scale);
  return at::sparse_coo_tensor(all_places.t(), all_values, sizes, plain.layout(at::kSparse))
      .coalesce();
}

} // namespace tessera::data_parallel
