// Every layer against torch's own: result, gradients of inputs and parameters.
#include "tessera/base/error.h"
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/layer_norm.h"
#include "tessera/nn/layers/projection.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/functional.h"

#include "cases.h"
#include "tests/support/unused.h"

namespace tessera::nn::summa::cases {

namespace {

/// Sizes of one problem on a mesh; none divides by 2, 3 or 4.
struct Setting {
  explicit Setting(const Mesh& mesh)
      : rows(batch, mesh.rows()),
        in(hidden, mesh.columns()),
        out(inner, mesh.columns()),
        words(mesh, vocabulary),
        word_columns(words.over_columns) {}
  static constexpr std::int64_t batch = 5;
  static constexpr std::int64_t positions = 3;
  static constexpr std::int64_t hidden = 11;
  static constexpr std::int64_t inner = 13;
  static constexpr std::int64_t vocabulary = 17;
  Blocks rows;
  Blocks in;
  Blocks out;
  MeshBlocks words;
  Blocks word_columns;
};

/// [b of my row, ..., h of my column]
at::Tensor
local(const Mesh& mesh, const at::Tensor& full, const Blocks& rows, const Blocks& columns) {
  return full.narrow(0, rows.start(mesh.row()), rows.size(mesh.row()))
      .narrow(-1, columns.start(mesh.column()), columns.size(mesh.column()))
      .contiguous();
}

/// [b of my row, ...]
at::Tensor local_rows(const Mesh& mesh, const at::Tensor& full, const Blocks& rows) {
  return full.narrow(0, rows.start(mesh.row()), rows.size(mesh.row())).contiguous();
}

void set(DistributedModule& module, const std::string& name, const at::Tensor& full) {
  const torch::NoGradGuard no_grad;
  const auto found = module.distributed_parameters().find(name);
  if (found != module.distributed_parameters().end()) {
    module.named_parameters(false)[name].copy_(take_shard(found->second.shard, full));
  }
}

void require_gradient(
    const DistributedModule& module,
    const std::string& name,
    const at::Tensor& full) {
  const auto found = module.distributed_parameters().find(name);
  if (found != module.distributed_parameters().end()) {
    require_close(
        module.named_parameters(false)[name].grad(),
        take_shard(found->second.shard, full),
        1e-5,
        module.name() + ", gradient of " + name);
  }
}

template <typename Holder, typename... Args>
Holder on(const MeshPtr& mesh, const Args&... args) {
  TensorParallel context;
  context.group = &mesh->group();
  context.distribution = Distribution::kTwoD;
  context.mesh = mesh;
  const TensorParallelScope scope(context);
  return Holder(args...);
}

DistributedProjection
linear_on(const MeshPtr& mesh, std::int64_t in, const FeatureSplit& out, bool with_bias = true) {
  TransformerOptions options;
  options.linear_bias = with_bias;
  return on<DistributedProjection>(
      mesh, DistributedProjectionImpl::Direction::kInto, in, out, options);
}

DistributedLayerNorm norm_on(const MeshPtr& mesh, std::int64_t width, bool rms = false) {
  return on<DistributedLayerNorm>(mesh, DistributedLayerNormOptions{width, 1e-5, rms}, Role::kPart);
}

void linear_of(const MeshPtr& mesh, bool with_bias, int groups) {
  const Setting s(*mesh);
  Random random(5);
  const auto width = groups * s.inner;
  const at::Tensor x = random.normal({s.batch, s.positions, s.hidden}).requires_grad_();
  const at::Tensor w = random.normal({s.hidden, width}).requires_grad_();
  const at::Tensor b = random.normal({width}).requires_grad_();
  const at::Tensor g = random.normal({s.batch, s.positions, width});
  at::Tensor y = at::matmul(x, w);
  y = with_bias ? y + b : y;
  y.backward(g);

  auto linear = linear_on(mesh, s.hidden, {groups, s.inner, 1}, with_bias);
  const auto stored = [&](const at::Tensor& t) { return t.t().contiguous(); };
  set(*linear, "weight", stored(w.detach()));
  set(*linear, "bias", b.detach());
  const at::Tensor mine = local(*mesh, x.detach(), s.rows, s.in);
  mine.requires_grad_();
  // Of a result with groups this rank has its columns of each.
  const auto result_part = [&](const at::Tensor& full) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& group : full.chunk(groups, -1)) {
      parts.push_back(local(*mesh, group, s.rows, s.out));
    }
    return at::cat(parts, -1);
  };
  const at::Tensor found = linear->forward(mine, {});
  found.backward(result_part(g));
  require_close(found.detach(), result_part(y.detach()), 1e-5, "linear");
  require_close(mine.grad(), local(*mesh, x.grad(), s.rows, s.in), 1e-5, "linear, gradient of x");
  require_gradient(*linear, "weight", stored(w.grad()));
  if (with_bias) {
    require_gradient(*linear, "bias", b.grad());
    const bool registered = linear->named_parameters().contains("bias");
    require(registered == (mesh->row() == 0), "a bias lives on the first mesh row only");
  }
}

/// Two outputs: a third mesh column has none, and takes part all the same.
void linear_to_two(const MeshPtr& mesh) {
  const Setting s(*mesh);
  Random random(15);
  const at::Tensor x = random.normal({s.batch, s.positions, s.hidden}).requires_grad_();
  const at::Tensor w = random.normal({2, s.hidden}).requires_grad_();
  const at::Tensor b = random.normal({2}).requires_grad_();
  const at::Tensor g = random.normal({s.batch, s.positions, 2});
  const at::Tensor y = at::linear(x, w, b);
  y.backward(g);
  const Blocks two(2, mesh->columns(), 1, /*may_be_empty=*/true);
  auto linear = linear_on(mesh, s.hidden, {1, 2, 1});
  set(*linear, "weight", w.detach());
  set(*linear, "bias", b.detach());
  const at::Tensor mine = local(*mesh, x.detach(), s.rows, s.in);
  mine.requires_grad_();
  const at::Tensor found = linear->forward(mine, {});
  found.backward(local(*mesh, g, s.rows, two));
  require_close(found.detach(), local(*mesh, y.detach(), s.rows, two), 1e-5, "two outputs");
  require_close(mine.grad(), local(*mesh, x.grad(), s.rows, s.in), 1e-5, "their gradient of x");
  require_gradient(*linear, "weight", w.grad());
  require_gradient(*linear, "bias", b.grad());
}

void linear(const MeshPtr& mesh) {
  linear_of(mesh, true, 1);
  linear_of(mesh, false, 1);
  linear_of(mesh, true, 3);
}

/// The first row alone knows that its vectors are frozen; nobody may wait for it.
void frozen_first_row(const MeshPtr& mesh) {
  const Setting s(*mesh);
  auto linear = linear_on(mesh, s.hidden, {1, s.inner, 1});
  auto norm = norm_on(mesh, s.inner);
  for (at::Tensor parameter : linear->parameters()) {
    parameter.set_requires_grad(false);
    parameter.zero_();
  }
  for (at::Tensor parameter : norm->parameters()) {
    parameter.set_requires_grad(false);
    parameter.zero_();
  }
  const at::Tensor x = at::ones({s.rows.size(mesh->row()), s.in.size(mesh->column())});
  require(!norm(linear->forward(x, {})).requires_grad(), "a frozen layer has a graph");
  const at::Tensor leaf = x.clone().requires_grad_();
  norm(linear->forward(leaf, {})).sum().backward();
  require_close(leaf.grad(), at::zeros_like(x), 1e-6, "gradient of x");
}

/// Vectors that are frozen, or thawed, after a forward that trained them, or did not.
void frozen_between_steps(const MeshPtr& mesh) {
  const Setting s(*mesh);
  auto linear = linear_on(mesh, s.hidden, {1, s.inner, 1});
  auto norm = norm_on(mesh, s.inner);
  const at::Tensor x = at::ones({s.rows.size(mesh->row()), s.in.size(mesh->column())});
  const auto vectors = [&] {
    std::vector<at::Tensor> found; // none but on the first row
    for (const auto& modules : {linear->parameters(), norm->parameters()}) {
      for (const at::Tensor& parameter : modules) {
        if (parameter.dim() == 1) {
          found.push_back(parameter);
        }
      }
    }
    return found;
  }();
  for (const bool trained : {true, false, true}) {
    for (at::Tensor vector : vectors) {
      vector.set_requires_grad(trained);
      vector.mutable_grad() = at::Tensor();
    }
    norm(linear->forward(x, {})).sum().backward();
    for (const at::Tensor& vector : vectors) {
      require(vector.grad().defined() == trained, "gradient of a frozen vector, or none");
    }
  }
}

void layer_norm_of(const MeshPtr& mesh, bool rms) {
  const Setting s(*mesh);
  Random random(6);
  // A mean far from zero: moments must not lose its digits.
  const at::Tensor x = random.normal({s.batch, s.positions, s.hidden}).add_(30).to(at::kDouble);
  x.requires_grad_();
  const auto vector = [&] { return random.normal({s.hidden}).to(at::kDouble).requires_grad_(); };
  const at::Tensor gamma = vector();
  const at::Tensor beta = vector();
  const at::Tensor g = random.normal(x.sizes()).to(at::kDouble);
  const at::Tensor y = rms ? x * (x.square().mean(-1, true) + 1e-5).rsqrt() * gamma
                           : at::layer_norm(x, {s.hidden}, gamma, beta, 1e-5);
  y.backward(g);

  auto norm = norm_on(mesh, s.hidden, rms);
  set(*norm, "weight", gamma.detach());
  set(*norm, "bias", beta.detach());
  const at::Tensor mine = local(*mesh, x.detach(), s.rows, s.in).to(at::kFloat);
  mine.requires_grad_();
  const at::Tensor found = norm(mine);
  found.backward(local(*mesh, g, s.rows, s.in).to(at::kFloat));
  require_close(found.detach(), local(*mesh, y.detach(), s.rows, s.in), 1e-5, "norm");
  require_close(mine.grad(), local(*mesh, x.grad(), s.rows, s.in), 1e-5, "norm, gradient of x");
  require_gradient(*norm, "weight", gamma.grad());
  if (!rms) {
    require_gradient(*norm, "bias", beta.grad());
  }
}

void norms(const MeshPtr& mesh) {
  layer_norm_of(mesh, false);
  layer_norm_of(mesh, true);
}

void embedding_and_head(const MeshPtr& mesh) {
  const Setting s(*mesh);
  Random random(7);
  const std::int64_t padding = 4;
  const at::Tensor table = random.normal({s.vocabulary, s.hidden}).requires_grad_();
  const at::Tensor ids = random.integers(s.vocabulary, {s.batch, s.positions});
  ids[0][0] = padding;
  const at::Tensor g = random.normal({s.batch, s.positions, s.vocabulary});
  const at::Tensor x = at::embedding(table, ids, padding);
  const at::Tensor logits = at::linear(at::tanh(x), table);
  logits.backward(g);

  auto words = on<DistributedEmbedding>(
      mesh,
      DistributedEmbeddingOptions{
          .num_embeddings = s.vocabulary, .embedding_dim = s.hidden, .padding_idx = padding});
  set(*words, "weight", table.detach());
  const auto look_up = [&](const at::Tensor& rows) {
    return words->look_up_on_mesh(words->parallel_now(), rows);
  };
  const at::Tensor found_x = look_up(local_rows(*mesh, ids, s.rows));
  const at::Tensor found = tied_linear(mesh, at::tanh(found_x), words->weight, s.words, s.hidden);
  found.backward(local(*mesh, g, s.rows, s.word_columns));
  require_close(found_x.detach(), local(*mesh, x.detach(), s.rows, s.in), 0, "embedding");
  require_close(
      found.detach(), local(*mesh, logits.detach(), s.rows, s.word_columns), 1e-5, "output layer");
  require_gradient(*words, "weight", table.grad());
  try {
    look_up(at::full({1, 1}, s.vocabulary, at::kLong));
  } catch (const ShapeError& error) {
    return;
  }
  throw std::runtime_error("an id beyond the table was looked up");
}

void losses(const MeshPtr& mesh) {
  const Setting s(*mesh);
  Random random(8);
  const at::Tensor logits = random.normal({s.batch, s.positions, s.vocabulary}).mul_(20);
  logits.requires_grad_();
  const at::Tensor targets = random.integers(s.vocabulary, {s.batch, s.positions});
  targets[1][1] = -100;
  const at::Tensor weights = random.normal({s.batch, s.positions});
  const at::Tensor loss =
      at::cross_entropy_loss(
          logits.view({-1, s.vocabulary}), targets.view({-1}), {}, at::Reduction::None, -100)
          .view(targets.sizes());
  (loss * weights).sum().backward();

  const at::Tensor mine = local(*mesh, logits.detach(), s.rows, s.word_columns);
  mine.requires_grad_();
  const at::Tensor found =
      cross_entropy(mesh, mine, local_rows(*mesh, targets, s.rows), s.word_columns);
  (found * local_rows(*mesh, weights, s.rows)).sum().backward();
  require_close(found.detach(), local_rows(*mesh, loss.detach(), s.rows), 1e-5, "cross entropy");
  require_close(
      mine.grad(),
      local(*mesh, logits.grad(), s.rows, s.word_columns),
      1e-5,
      "cross entropy, gradient");
}

void losses_without_gradient(const MeshPtr& mesh) {
  const Setting s(*mesh);
  Random random(11);
  const at::Tensor logits = random.normal({s.batch, s.positions, s.vocabulary});
  const at::Tensor targets = random.integers(s.vocabulary, {s.batch, s.positions});
  const at::Tensor mine = local(*mesh, logits, s.rows, s.word_columns).requires_grad_();
  testing::unused(cross_entropy(mesh, mine, local_rows(*mesh, targets, s.rows), s.word_columns))
      .backward();
  if (mine.grad().defined()) {
    throw std::runtime_error("logits got a gradient of a loss that nothing used");
  }
}

/// Two columns on a mesh of three columns: one has none.
void fewer_columns_than_ranks(const MeshPtr& mesh) {
  const Blocks few(2, mesh->columns(), 1, /*may_be_empty=*/true);
  const Boundary boundary(mesh, false);
  Random random(10 + static_cast<std::uint64_t>(mesh->group().rank()));
  const at::Tensor mine = random.normal({2, 2});
  require_close(boundary.leave(boundary.enter(mine, few), few), mine, 0, "two columns");
}

void boundaries(const MeshPtr& mesh) {
  const std::int64_t q = mesh->rows();
  const std::int64_t r = mesh->columns();
  const Blocks hidden(11, mesh->columns());
  Random random(9);
  for (const bool prescaled : {false, true}) {
    const Boundary boundary(mesh, prescaled);
    // Each rank's samples; with `prescaled` all bring the same.
    const std::int64_t own = prescaled ? 2 * q : 2;
    const std::int64_t all = prescaled ? 2 * q : 2 * q * r;
    const at::Tensor whole = random.normal({all, 3, 11});
    const Blocks rows(all, mesh->rows(), all / q);
    const std::int64_t place = mesh->row() * r + mesh->column();
    const at::Tensor mine = (prescaled ? whole : whole.narrow(0, place * own, own)).clone();
    mine.requires_grad_();
    const at::Tensor inside = boundary.enter(mine, hidden);
    require_close(inside.detach(), local(*mesh, whole, rows, hidden), 0, "enter");
    const at::Tensor outside = boundary.leave(inside * 2, hidden);
    require_close(outside.detach(), mine.detach() * 2, 0, "leave");
    const at::Tensor g = random.normal(whole.sizes());
    outside.backward(prescaled ? g : g.narrow(0, place * own, own));
    require_close(
        mine.grad(),
        (prescaled ? g : g.narrow(0, place * own, own)) * 2,
        1e-6,
        "gradient across the boundary");
    require_close(
        boundary.samples_of_row(mine.detach()),
        local_rows(*mesh, whole, rows),
        0,
        "samples of a row");
    at::Tensor of_row = local_rows(*mesh, whole, rows).requires_grad_();
    const at::Tensor back = boundary.own_samples(of_row);
    require_close(back.detach(), mine.detach(), 0, "own samples");
    back.backward(prescaled ? g : g.narrow(0, place * own, own));
    require_close(of_row.grad(), local_rows(*mesh, g, rows), 0, "gradient of own samples");
  }
}

} // namespace

const std::vector<Case>& layer_cases() {
  static const std::vector<Case> cases = {
      {"linear", linear},
      {"linear_to_two", linear_to_two},
      {"frozen_first_row", frozen_first_row},
      {"frozen_between_steps", frozen_between_steps},
      {"layer_norm", norms},
      {"embedding_and_head", embedding_and_head},
      {"cross_entropy", losses},
      {"cross_entropy_without_gradient", losses_without_gradient},
      {"boundary", boundaries},
      {"fewer_columns_than_ranks", fewer_columns_than_ranks},
  };
  return cases;
}

} // namespace tessera::nn::summa::cases
