#include "tessera/nn/summa/window_rows.h"

#include <atomic>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/comm/process_group.h"
#include "tessera/comm/reduce_kernels.h"

namespace tessera::nn::two_d {

void WindowRows::begin(const Job& job) {
  job_ = &job;
  const at::Tensor& any = job.x.defined() ? job.x : job.y;
  blocks_.open(job.product, any.options());
  if (job.x.defined()) {
    blocks_.offer_a(job.x);
  }
  if (job.y.defined()) {
    blocks_.offer_b(job.y);
  }
  if (job.result != Result::kNone) {
    blocks_.reserve_parts(1, mesh_.side() * job.product.rows * part_columns(mesh_.row()));
  }
  blocks_.publish();
}

std::int64_t WindowRows::part_columns(int mesh_row) const {
  return job_->result == Result::kX ? job_->inner->size(mesh_row) : job_->outer;
}

at::Tensor WindowRows::gather(int slot, std::int64_t columns, bool of_x) {
  const std::int64_t rows = job_->product.rows;
  const at::Tensor& mine = of_x ? job_->x : job_->y;
  const at::Tensor all = workspace_.take(slot, {mesh_.side() * rows, columns}, mine.options());
  for (int i = 0; i < mesh_.side(); ++i) {
    const int owner = mesh_.layout().position_at({i, of_x ? mesh_.row() : mesh_.column()});
    const auto& theirs = blocks_.wait_for_offer(owner);
    all.narrow(0, i * rows, rows)
        .copy_(blocks_.at_offset(owner, of_x ? theirs.a : theirs.b, {rows, columns}));
    count(owner, rows * columns);
  }
  return all;
}

at::Tensor WindowRows::rows_of_x() {
  return gather(Workspace::kA0, job_->inner->size(mesh_.row()), true);
}

at::Tensor WindowRows::rows_of_y() {
  return gather(Workspace::kB0, job_->outer, false);
}

at::Tensor WindowRows::part() const {
  return blocks_.my_part(0, {mesh_.side() * job_->product.rows, part_columns(mesh_.row())});
}

void WindowRows::send() {
  blocks_.post_part(mesh_.side() - 1);
}

void WindowRows::finish() {
  const Job& job = *job_;
  if (job.result != Result::kNone) {
    // Y_ij is a sum over the mesh rows l of column j; X_il, with l my own
    // column, over the ranks of mesh row l.
    const bool of_x = job.result == Result::kX;
    const std::int64_t elements = job.out.numel();
    const auto skip = static_cast<std::int64_t>(mesh_.row() * elements * job.out.element_size());
    std::vector<const void*> sources;
    for (int k = 0; k < mesh_.side(); ++k) {
      const int rank = of_x ? mesh_.layout().position_at({mesh_.column(), k})
                            : mesh_.layout().position_at({k, mesh_.column()});
      blocks_.wait_for_part(rank, mesh_.side() - 1);
      sources.push_back(
          blocks_.at_offset(rank, blocks_.wait_for_offer(rank).parts + skip, job.out.sizes())
              .data_ptr());
      count(rank, elements);
    }
    comm::reduce(
        sum_type(job.out),
        comm::ReduceOp::kSum,
        job.out.data_ptr(),
        sources.data(),
        mesh_.side(),
        elements);
  }
  blocks_.close();
  job_ = nullptr;
}

void WindowRows::count(int rank, std::int64_t elements) const {
  if (rank == mesh_.group().rank()) {
    return;
  }
  const at::Tensor& any = job_->x.defined() ? job_->x : job_->y;
  comm::Traffic& traffic = mesh_.group().traffic();
  traffic.calls.fetch_add(1, std::memory_order_relaxed);
  traffic.bytes.fetch_add(
      elements * static_cast<std::int64_t>(any.element_size()), std::memory_order_relaxed);
}

} // namespace tessera::nn::two_d
