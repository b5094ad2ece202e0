// C = A B, A B^T, A^T B: results, gradients, gradients of gradients.
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/nn/summa/product.h"
#include "tessera/nn/summa/stationary_weights.h"
#include "tessera/nn/summa/summa.h"

#include "cases.h"

namespace tessera::nn::summa::cases {

namespace {

struct Kind {
  const char* name;
  Form form;
  bool transpose_a;
  bool transpose_b;
};

const Kind kKinds[] = {
    {"AB", Form::kAB, false, false},
    {"ABt", Form::kABt, false, true},
    {"AtB", Form::kAtB, true, false},
};

struct Sizes {
  std::int64_t m;
  std::int64_t k;
  std::int64_t n;
};

/// Whole operands and how they are divided, equal on all ranks.
struct Problem {
  Problem(const Mesh& mesh, const Kind& kind, Sizes sizes, at::ScalarType type)
      : a_rows(kind.transpose_a ? sizes.k : sizes.m, mesh.rows()),
        a_columns(kind.transpose_a ? sizes.m : sizes.k, mesh.columns()),
        b_rows(kind.transpose_b ? sizes.n : sizes.k, mesh.rows()),
        b_columns(kind.transpose_b ? sizes.k : sizes.n, mesh.columns()),
        c_rows(sizes.m, mesh.rows()),
        c_columns(sizes.n, mesh.columns()),
        inner(mesh, kind.transpose_a ? sizes.m : (kind.transpose_b ? sizes.n : sizes.k)) {
    Random random(3);
    a = random.normal({a_rows.length(), a_columns.length()}).to(type);
    b = random.normal({b_rows.length(), b_columns.length()}).to(type);
    gradient = random.normal({sizes.m, sizes.n}).to(type);
  }
  /// Of the matrix whose rows are the inner dimension.
  std::int64_t weight_columns() const {
    return b_columns.length();
  }
  Blocks a_rows, a_columns, b_rows, b_columns, c_rows, c_columns;
  MeshBlocks inner;
  at::Tensor a, b, gradient;
};

void check_kind(
    const MeshPtr& mesh,
    const Kind& kind,
    Sizes sizes,
    at::ScalarType type,
    double tolerance,
    bool allocated,
    bool transposed = false,
    bool tell_columns = false) {
  const Problem p(*mesh, kind, sizes, type);
  const WeightLayout layout(p.inner, transposed, tell_columns ? p.weight_columns() : 0);
  const bool is_c = kind.transpose_a; // the matrix that is stored transposed
  const auto stored = [&](const at::Tensor& block, bool this_one) {
    return transposed && this_one ? block.t().contiguous() : block;
  };
  const auto place = [&](const at::Tensor& block) {
    if (!allocated) {
      return block.clone().requires_grad_();
    }
    at::Tensor placed = mesh->exchange().allocate(block.sizes(), block.options());
    placed.copy_(block);
    return placed.requires_grad_();
  };
  const at::Tensor a = place(block_of(*mesh, p.a, p.a_rows, p.a_columns));
  const at::Tensor b = place(stored(block_of(*mesh, p.b, p.b_rows, p.b_columns), !is_c));
  const at::Tensor c = summa_product(mesh, kind.form, a, b, layout);
  c.backward(stored(block_of(*mesh, p.gradient, p.c_rows, p.c_columns), is_c));

  const at::Tensor whole_a = p.a.to(at::kDouble).requires_grad_();
  const at::Tensor whole_b = p.b.to(at::kDouble).requires_grad_();
  const at::Tensor expected = at::matmul(
      kind.transpose_a ? whole_a.t() : whole_a, kind.transpose_b ? whole_b.t() : whole_b);
  expected.backward(p.gradient.to(at::kDouble));
  const std::string name = tessera::str(
      kind.name,
      transposed ? ", transposed, " : " ",
      sizes.m,
      " x ",
      sizes.k,
      " x ",
      sizes.n,
      " ",
      type);
  require_close(
      c.detach(),
      stored(block_of(*mesh, expected.detach(), p.c_rows, p.c_columns), is_c),
      tolerance,
      name);
  require_close(
      a.grad(),
      block_of(*mesh, whole_a.grad(), p.a_rows, p.a_columns),
      tolerance,
      name + ", gradient of A");
  require_close(
      b.grad(),
      stored(block_of(*mesh, whole_b.grad(), p.b_rows, p.b_columns), !is_c),
      tolerance,
      name + ", gradient of B");
}

void f32(const MeshPtr& mesh) {
  for (const Kind& kind : kKinds) {
    for (const Sizes sizes : {Sizes{12, 24, 18}, Sizes{7, 5, 11}}) {
      check_kind(mesh, kind, sizes, at::kFloat, 1e-5, false);
      check_kind(mesh, kind, sizes, at::kFloat, 1e-5, true);
      check_kind(mesh, kind, sizes, at::kFloat, 1e-5, false, true);
      check_kind(mesh, kind, sizes, at::kFloat, 1e-5, true, true);
    }
  }
  check_kind(mesh, kKinds[0], {65, 200, 97}, at::kFloat, 1e-5, false);
}

void bf16(const MeshPtr& mesh) {
  for (const Kind& kind : kKinds) {
    // A step of the sum over the panels rounds to 8 bits.
    check_kind(mesh, kind, {16, 12, 20}, at::kBFloat16, 3e-2, false);
  }
}

/// Few rows: the weight's blocks stay, rows of activations travel, where there
/// is more than one mesh row. The mesh divides no side of the weight.
void few_rows(const MeshPtr& mesh) {
  const std::int64_t rows = mesh->rows();
  const bool may_stay = mesh->reads_all() && mesh->rows() > 1;
  const std::int64_t inner = 61;
  const std::int64_t outer = 50;
  for (const Kind& kind : kKinds) {
    Sizes sizes{rows, inner, outer}; // kAB
    if (kind.form == Form::kABt) {
      sizes = {rows, outer, inner};
    } else if (kind.form == Form::kAtB) {
      sizes = {inner, rows, outer};
    }
    require(
        stationary_weights_pay(*mesh, kind.form, 1, {{*mesh, inner}, false, outer}) == may_stay,
        tessera::str(kind.name, ": what travels"));
    comm::Traffic& of_panels = mesh->row_group().traffic();
    comm::Traffic& of_rows = mesh->group().traffic();
    const auto panels = of_panels.bytes.load();
    const auto before = of_rows.bytes.load();
    for (const bool transposed : {false, true}) {
      check_kind(mesh, kind, sizes, at::kFloat, 1e-5, false, transposed, true);
      check_kind(mesh, kind, sizes, at::kFloat, 1e-5, true, transposed, true);
    }
    check_kind(mesh, kind, sizes, at::kBFloat16, 2e-2, false, true, true);
    if (may_stay) {
      require(of_rows.bytes.load() > before, "no rows travelled");
      require(of_panels.bytes.load() == panels, "panels travelled as well");
    }
  }
}

/// d/dA of |dC/dA|^2 and the like: the closed set, differentiated twice.
void second_order(const MeshPtr& mesh) {
  for (const Kind& kind : kKinds) {
    const Problem p(*mesh, kind, {6, 5, 7}, at::kFloat);
    const auto twice = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
      const auto first = torch::autograd::grad({c.pow(3).sum()}, {a, b}, {}, c10::nullopt, true);
      return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {a, b});
    };
    const at::Tensor a = block_of(*mesh, p.a, p.a_rows, p.a_columns).requires_grad_();
    const at::Tensor b = block_of(*mesh, p.b, p.b_rows, p.b_columns).requires_grad_();
    const auto found = twice(a, b, summa_product(mesh, kind.form, a, b, p.inner));
    const at::Tensor x = p.a.to(at::kDouble).requires_grad_();
    const at::Tensor y = p.b.to(at::kDouble).requires_grad_();
    const auto expected =
        twice(x, y, at::matmul(kind.transpose_a ? x.t() : x, kind.transpose_b ? y.t() : y));
    require_close(
        found[0],
        block_of(*mesh, expected[0], p.a_rows, p.a_columns),
        1e-5,
        tessera::str(kind.name, ", second gradient of A"));
    require_close(
        found[1],
        block_of(*mesh, expected[1], p.b_rows, p.b_columns),
        1e-5,
        tessera::str(kind.name, ", second gradient of B"));
  }
}

/// After the first product of the largest size nothing more is taken.
void workspace_is_sized_once(const MeshPtr& mesh) {
  const auto run_all = [&] {
    for (const Kind& kind : kKinds) {
      check_kind(mesh, kind, {24, 16, 12}, at::kFloat, 1e-5, false);
    }
  };
  run_all();
  const std::int64_t first = mesh->exchange().workspace_bytes();
  require(mesh->columns() == 1 || first > 0, "no workspace was counted");
  for (int i = 0; i < 3; ++i) {
    run_all();
  }
  require(
      mesh->exchange().workspace_bytes() == first,
      tessera::str("the workspace grew from ", first, " to ", mesh->exchange().workspace_bytes()));
}

/// Blocks that do not fit are named, and no rank hangs.
void wrong_sizes(const MeshPtr& mesh) {
  const MeshBlocks inner(*mesh, 6);
  const at::Tensor wrong = torch::zeros({4, 7});
  try {
    summa_product(mesh, Form::kAB, wrong, wrong, inner);
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    require(text.find("[4, 7]") != std::string::npos, text);
    return;
  }
  throw std::runtime_error("wrong blocks were multiplied");
}

/// The panels are cut where either division is, and lie in the blocks they name.
void panels_meet_both_divisions(const MeshPtr& mesh) {
  const MeshBlocks uneven(*mesh, 29);
  std::int64_t end = 0;
  for (const Panel& panel : uneven.panels()) {
    require(panel.start == end && panel.size > 0, "panels leave a gap or are empty");
    end += panel.size;
    for (const auto& [blocks, part] :
         {std::pair(uneven.over_rows, panel.row), std::pair(uneven.over_columns, panel.column)}) {
      require(
          panel.start >= blocks.start(part) && end <= blocks.start(part) + blocks.size(part),
          "a panel is not in the block that it names");
    }
  }
  require(end == 29, "panels do not cover the dimension");
  const int q = mesh->rows();
  const int r = mesh->columns();
  const MeshBlocks even(*mesh, 12 * q * r);
  const auto count = static_cast<int>(even.panels().size());
  require(count == q + r - std::gcd(q, r), tessera::str(count, " panels on ", mesh->shape_text()));
  // One word: rows and columns but the first have none, and no panel.
  const MeshBlocks few(*mesh, 1, 1, /*may_be_empty=*/true);
  require(few.panels().size() == 1 && few.row_panels().size() == 1, "an empty panel");
}

} // namespace

const std::vector<Case>& product_cases() {
  static const std::vector<Case> cases = {
      {"f32", f32},
      {"bf16", bf16},
      {"few_rows", few_rows},
      {"second_order", second_order},
      {"workspace_is_sized_once", workspace_is_sized_once},
      {"wrong_sizes", wrong_sizes},
      {"panels_meet_both_divisions", panels_meet_both_divisions},
  };
  return cases;
}

} // namespace tessera::nn::summa::cases
