#include "tessera/nn/summa/window_rows.h"

#include <atomic>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/comm/process_group.h"
#include "tessera/nn/summa/add_up.h"

namespace tessera::nn::summa {

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
    blocks_.reserve_parts(1, mesh_.rows() * job.product.rows * part_columns(mesh_.row()));
  }
  blocks_.publish();
}

std::int64_t WindowRows::part_columns(int mesh_row) const {
  return job_->result == Result::kX ? job_->inner->over_rows.size(mesh_row) : job_->outer;
}

at::Tensor WindowRows::rows_of_x() {
  const std::int64_t rows = job_->product.rows;
  const Blocks& wanted = job_->inner->over_rows;
  const Blocks& held = job_->inner->over_columns;
  const at::Tensor all = workspace_.take(
      Workspace::kA0, {mesh_.rows() * rows, wanted.size(mesh_.row())}, job_->x.options());
  for (int i = 0; i < mesh_.rows(); ++i) {
    for (const Panel& panel : job_->inner->panels()) {
      if (panel.row != mesh_.row()) {
        continue;
      }
      const int owner = mesh_.layout().position_at({i, panel.column});
      const std::int64_t offset = blocks_.wait_for_offer(owner).a;
      all.narrow(0, i * rows, rows)
          .narrow(1, panel.start - wanted.start(panel.row), panel.size)
          .copy_(blocks_.at_offset(owner, offset, {rows, held.size(panel.column)})
                     .narrow(1, panel.start - held.start(panel.column), panel.size));
      count(owner, rows * panel.size);
    }
  }
  return all;
}

at::Tensor WindowRows::rows_of_y() {
  const std::int64_t rows = job_->product.rows;
  const at::Tensor all =
      workspace_.take(Workspace::kB0, {mesh_.rows() * rows, job_->outer}, job_->y.options());
  for (int i = 0; i < mesh_.rows(); ++i) {
    const int owner = mesh_.layout().position_at({i, mesh_.column()});
    const std::int64_t offset = blocks_.wait_for_offer(owner).b;
    all.narrow(0, i * rows, rows).copy_(blocks_.at_offset(owner, offset, {rows, job_->outer}));
    count(owner, rows * job_->outer);
  }
  return all;
}

at::Tensor WindowRows::part() const {
  return blocks_.my_part(0, {mesh_.rows() * job_->product.rows, part_columns(mesh_.row())});
}

void WindowRows::send() {
  blocks_.post_part(0);
}

at::Tensor WindowRows::part_of(int rank, int mesh_row) {
  const std::int64_t rows = job_->product.rows;
  blocks_.wait_for_part(rank, 0);
  const std::int64_t offset = blocks_.wait_for_offer(rank).parts;
  return blocks_.at_offset(rank, offset, {mesh_.rows() * rows, part_columns(mesh_row)})
      .narrow(0, mesh_.row() * rows, rows);
}

/// Sums X_il, where l is my own mesh column. Its columns belong to one or more mesh
/// rows; each is a sum over the ranks of that mesh row.
void WindowRows::add_x() {
  const MeshBlocks& inner = *job_->inner;
  for (const Panel& panel : inner.panels()) {
    if (panel.column != mesh_.column()) {
      continue;
    }
    const std::int64_t start = panel.start - inner.over_rows.start(panel.row);
    std::vector<at::Tensor> parts;
    for (int k = 0; k < mesh_.columns(); ++k) {
      const int rank = mesh_.layout().position_at({panel.row, k});
      parts.push_back(part_of(rank, panel.row).narrow(1, start, panel.size));
      count(rank, parts.back().numel());
    }
    add_up(
        parts,
        job_->out.narrow(1, panel.start - inner.over_columns.start(panel.column), panel.size));
  }
}

/// Sums Y_ij over the ranks of mesh column j.
void WindowRows::add_y() {
  std::vector<at::Tensor> parts;
  for (int k = 0; k < mesh_.rows(); ++k) {
    const int rank = mesh_.layout().position_at({k, mesh_.column()});
    parts.push_back(part_of(rank, k));
    count(rank, parts.back().numel());
  }
  add_up(parts, job_->out);
}

void WindowRows::finish() {
  if (job_->result == Result::kX) {
    add_x();
  } else if (job_->result == Result::kY) {
    add_y();
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

} // namespace tessera::nn::summa
