#include <ATen/ATen.h>

#include "tessera/autograd/node_data.h"
#include "tessera/base/error.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/exchange_bytes.h"
#include "tessera/nn/summa/functional.h"

namespace tessera::nn::summa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Table {
  MeshPtr mesh;
  MeshBlocks vocabulary;
  std::int64_t padding_row;
};

/// The positions in `ids` of the ids that lie in a panel, and their rows in the panel.
struct Hits {
  at::Tensor places;
  at::Tensor rows;
};

Hits hits_of(const Panel& panel, const at::Tensor& ids) {
  const at::Tensor places =
      at::nonzero(ids.ge(panel.start).logical_and_(ids.lt(panel.start + panel.size))).view({-1});
  return {places, ids.index_select(0, places) - panel.start};
}

class EmbeddingOnMesh : public torch::autograd::Function<EmbeddingOnMesh> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& table,
      const at::Tensor& ids,
      const NodeDataPtr<Table>& kept) {
    ctx->set_materialize_grads(false);
    const Table& of = kept->value;
    at::Tensor out = at::zeros({ids.numel(), table.size(1)}, table.options());
    if (tensor_parallel().shapes_only) {
      tell_skipped_panels(of, table);
      // As many rows as a rank finds in the panels that come by.
      out.copy_(at::embedding(table.detach(), at::zeros_like(ids.reshape({-1}))));
    } else {
      look_up(of, table, ids.reshape({-1}), out);
    }
    ctx->save_for_backward({ids});
    save_node_data(ctx, kept);
    std::vector<std::int64_t> sizes = ids.sizes().vec();
    sizes.push_back(table.size(1));
    return out.view(sizes);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("an embedding on a mesh");
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const auto kept = saved_node_data<Table>(ctx);
    const Table& of = kept->value;
    const at::Tensor ids = ctx->get_saved_variables()[0].reshape({-1});
    const at::Tensor rows = gradients[0].reshape({ids.numel(), gradients[0].size(-1)});
    at::Tensor sum =
        at::zeros({of.vocabulary.over_rows.size(of.mesh->row()), rows.size(1)}, rows.options());
    if (!tensor_parallel().shapes_only) {
      add_up(of, ids, rows, sum);
      of.mesh->exchange().wait_for_readers();
    }
    return {sum, at::Tensor(), at::Tensor()};
  }

 private:
  // Reports to the tracer the panels of the table that come along a mesh column; a backward reduces
  // as many.
  static void tell_skipped_panels(const Table& of, const at::Tensor& table) {
    const ExchangeBytes buffers =
        exchange_bytes(*of.mesh, Form::kSumB, {{}, table, {of.vocabulary}, table});
    for (const Panel& panel : of.vocabulary.row_panels()) {
      SkippedWork work;
      work.buffer_bytes = buffers;
      work.operation = "broadcast";
      work.ranks = of.mesh->rows();
      work.bytes = static_cast<double>(
          panel.size * table.size(1) * static_cast<std::int64_t>(table.element_size()));
      if (work.ranks > 1) {
        tell_skipped(work);
      }
    }
  }

  static void
  look_up(const Table& of, const at::Tensor& table, const at::Tensor& ids, at::Tensor& out) {
    const Product product = {Form::kTakeB, {}, table.detach(), of.vocabulary, out};
    const auto take = [&](std::size_t step, const at::Tensor& panel) {
      const Hits hits = hits_of(product.panels[step], ids);
      out.index_copy_(0, hits.places, panel.index_select(0, hits.rows));
    };
    if (of.mesh->rows() == 1) {
      take(0, table);
      return;
    }
    Exchange& exchange = of.mesh->exchange();
    exchange.begin(product);
    for (std::size_t step = 0; step < product.panels.size(); ++step) {
      take(step, exchange.panel_b(static_cast<int>(step)));
    }
    exchange.finish();
  }

  static void
  add_up(const Table& of, const at::Tensor& ids, const at::Tensor& rows, at::Tensor& sum) {
    const Product product = {Form::kSumB, {}, rows, of.vocabulary, sum};
    const auto put = [&](std::size_t step, at::Tensor to) {
      const Panel& panel = product.panels[step];
      to.zero_();
      const Hits hits = hits_of(panel, ids);
      to.index_add_(0, hits.rows, rows.index_select(0, hits.places));
      const std::int64_t padding = of.padding_row - panel.start;
      if (of.padding_row >= 0 && padding >= 0 && padding < panel.size) {
        to.select(0, padding).zero_();
      }
    };
    if (of.mesh->rows() == 1) {
      put(0, sum);
      return;
    }
    Exchange& exchange = of.mesh->exchange();
    exchange.begin(product);
    for (std::size_t step = 0; step < product.panels.size(); ++step) {
      put(step, exchange.partial(static_cast<int>(step)));
      exchange.send_partial(static_cast<int>(step));
    }
    exchange.finish();
  }
};

} // namespace

at::Tensor embedding(
    const MeshPtr& mesh,
    const at::Tensor& table,
    const at::Tensor& ids,
    const MeshBlocks& vocabulary,
    std::int64_t padding_row) {
  if (ids.numel() > 0 && !ids.is_meta()) {
    const auto least = ids.min().item<std::int64_t>();
    const auto most = ids.max().item<std::int64_t>();
    if (least < 0 || most >= vocabulary.length()) {
      throw ShapeError(tessera::str(
          "an embedding of ",
          vocabulary.length(),
          " rows was asked for rows ",
          least,
          " to ",
          most));
    }
  }
  const at::Tensor out =
      EmbeddingOnMesh::apply(table, ids, node_data(Table{mesh, vocabulary, padding_row}));
  if (!at::GradMode::is_enabled()) {
    mesh->exchange().wait_for_readers();
  }
  return out;
}

} // namespace tessera::nn::summa
