#include "tests/equivalence/interpreter.h"

#include "tessera/nn/module/activation_checkpointing.h"
#include "tessera/nn/parallel/marking.h"

#include "tests/equivalence/dropout.h"

namespace tessera::equivalence {

namespace {

using torch::Tensor;

std::int64_t sum_of(const Tensor& integers) {
  return integers.sum().item<std::int64_t>();
}

Tensor integers_like(const Tensor& x, int number) {
  return ((torch::arange(x.numel()) + number) % kWords).view(x.sizes());
}

// Numbers of an embedding's rows, two for each sample.
Tensor words_like(const Tensor& x, int number) {
  return integers_like(x, number).narrow(1, 0, 2);
}

models::GptOptions options_of_block() {
  models::GptOptions options;
  options.n_positions = 2;
  options.n_embd = kWidth;
  options.n_head = 4; // on up to four ranks
  options.n_inner = 12;
  options.dropout = 0;
  return options;
}

// One for each node that a `tessera::partition` scope of the strategy names.
class ScopeOf {
 public:
  ScopeOf(const Build& build, int module, int child, int layer) {
    const auto found = build.scopes.find({module, child, layer});
    if (found != build.scopes.end()) {
      scope_.emplace(found->second);
    }
  }

 private:
  std::optional<partition> scope_;
};

template <typename Holder>
void flag(const Build& build, const Place& place, const Holder& holder) {
  const auto found = build.recomputed.find(place);
  if (found != build.recomputed.end()) {
    set_activation_checkpointing(holder, {.strategy = found->second});
  }
}

// Calls a module so that this call alone is recomputed.
template <typename Holder>
struct Recomputing {
  Holder holder;
  CheckpointOptions options;

  template <typename... Args>
  auto operator()(Args&&... args) const {
    return checkpoint_call(options, holder, std::forward<Args>(args)...);
  }
};

// Runs `use` on the holder, or on what stands for recomputed calls of it.
template <typename Holder, typename Use>
auto as_called(const Holder& holder, const std::string& strategy, const Use& use) {
  if (strategy.empty()) {
    Holder callee = holder;
    return use(callee);
  }
  Recomputing<Holder> callee{holder, {.strategy = strategy}};
  return use(callee);
}

} // namespace

ProgramImpl::ProgramImpl(
    std::shared_ptr<const Tree> tree,
    int index,
    const Modules& modules,
    const Build& build)
    : tree_(std::move(tree)),
      program_(tree_->modules.at(index)),
      recomputes_calls_(build.recomputes_calls) {
  if (program_.weight) {
    weight_ = register_parameter(
        "weight",
        program_.tied_to >= 0 ? modules.at(program_.tied_to)->weight_
                              : torch::randn({kWidth, kWidth}) * 0.3,
        !program_.frozen);
  }
  if (program_.table) {
    table_ = register_parameter("table", torch::randn({kWords, kWidth}) * 0.5);
  }
  if (program_.buffer) {
    shift_ = register_buffer("shift", torch::randn({kWidth}) * 0.2);
    total_ = register_buffer("total", torch::zeros({1}));
    calls_ = register_buffer("calls", torch::zeros({1}, torch::kLong));
  }
  for (std::size_t i = 0; i < program_.children.size(); ++i) {
    const Child& child = program_.children[i];
    const int place = static_cast<int>(i);
    auto held = std::make_shared<HeldChild>();
    const ScopeOf scope(build, index, place, -1);
    const tensor_parallelism marks(build.divides && child.divided);
    const Place here{index, place, -1};
    switch (child.kind) {
      case ChildKind::kProgram:
        held->program = register_module(child.name, Program(modules.at(child.modules.at(0))));
        break;
      case ChildKind::kLinear:
        held->linear = register_module(child.name, nn::Linear(kWidth, kWidth));
        flag(build, here, held->linear);
        break;
      case ChildKind::kEmbedding:
        held->embedding = register_module(child.name, nn::Embedding(kWords, kWidth));
        flag(build, here, held->embedding);
        break;
      case ChildKind::kBlock:
        held->block = register_module(child.name, models::GptBlock(options_of_block()));
        flag(build, here, held->block);
        break;
      case ChildKind::kPartOfParent:
        held->part = register_module(child.name, torch::nn::Linear(kWidth, kWidth));
        break;
      case ChildKind::kSequential: {
        nn::Sequential sequence;
        for (std::size_t k = 0; k < child.modules.size(); ++k) {
          const int layer = static_cast<int>(k);
          const ScopeOf inner(build, index, place, layer);
          if (child.modules[k] == kLinearLayer) {
            const nn::Linear linear(kWidth, kWidth);
            flag(build, {index, place, layer}, linear);
            sequence->push_back(linear);
          } else {
            sequence->push_back(nn::Tanh());
          }
        }
        held->sequence = register_module(child.name, sequence);
        flag(build, here, held->sequence);
        break;
      }
    }
    children_.push_back(std::move(held));
  }
}

Tensor ProgramImpl::forward(const Tensor& x) {
  return run(Pool{{x}, {}, {}}).floats.at(0);
}

std::tuple<Tensor, Pair, Pair> ProgramImpl::forward(const Tensor& x, Tensor y, const Tensor& ids) {
  Results r = run(Pool{{x, y}, {ids}, {}});
  return {r.floats[0], {r.floats[1], r.integers}, {r.mask, r.floats[2]}};
}

std::tuple<Bundle, std::optional<Tensor>, std::vector<std::optional<Tensor>>>
ProgramImpl::forward(const Bundle& in, double scale, std::optional<Tensor> extra) {
  const auto& x = in.at("x");
  Results r = run(Pool{{x.at(0), x.at(1), extra ? *extra : x.at(0) * scale}, in.at("ids"), {}});
  Bundle out = {{"out", {r.floats[0], r.floats[1]}}, {"ids", {r.integers}}, {"none", {}}};
  std::optional<Tensor> mask;
  if (r.mask.defined()) {
    mask = r.mask;
  }
  return {out, mask, {r.floats[2], std::nullopt}};
}

c10::IValue ProgramImpl::forward(const c10::IValue& in) {
  const auto& parts = in.toTupleRef().elements();
  std::vector<Tensor> floats = elements(parts.at(0));
  const auto named = parts.at(1).toGenericDict();
  const auto nested = named.at("f").toTuple();
  TORCH_CHECK(nested->elements().at(1).isNone() && named.at("n").toInt() == 3);
  TORCH_CHECK(parts.at(4).toDouble() == 2.5 && parts.at(5).toBool());
  TORCH_CHECK(parts.at(6).toStringRef() == "text");
  floats.push_back(nested->elements().at(0).toTensor());
  Results r = run(Pool{floats, {parts.at(2).toTensor()}, {parts.at(3).toTensor()}});
  c10::impl::GenericDict out(c10::StringType::get(), c10::AnyType::get());
  out.insert("out", c10::List<Tensor>({r.floats[0], r.floats[1]}));
  out.insert("last", r.floats[2]);
  return c10::ivalue::Tuple::create({out, c10::List<Tensor>({r.integers, r.mask}), "text"});
}

std::vector<std::pair<Tensor, std::map<std::string, Tensor>>> ProgramImpl::forward(
    std::vector<Tensor> in,
    const std::array<int, 2>& numbers) {
  TORCH_CHECK(numbers[1] == 7);
  Results r = run(Pool{std::move(in), {}, {}});
  return {
      {r.floats[0], {{"a", r.floats[1]}, {"empty", r.floats[2].narrow(0, 0, 0)}}},
      {r.floats[2], {}}};
}

void ProgramImpl::forward(const Tensor& x, bool update) {
  if (update && program_.buffer) {
    update_buffers(x);
  }
}

// What is added does not depend on the order of microbatches.
void ProgramImpl::update_buffers(const Tensor& x) {
  const torch::NoGradGuard no_grad;
  total_.add_(x.square().mean());
  calls_.add_(1);
}

ProgramImpl::Results ProgramImpl::run(Pool pool) {
  run(program_.code, pool);
  Results results;
  for (const int place : program_.floats) {
    results.floats.push_back(pool.floats.at(place));
  }
  if (program_.integers >= 0) {
    results.integers = pool.integers.at(program_.integers);
  }
  if (program_.mask >= 0) {
    results.mask = pool.masks.at(program_.mask);
  }
  return results;
}

void ProgramImpl::run(const std::vector<Instruction>& code, Pool& pool) {
  for (const Instruction& one : code) {
    switch (one.op) {
      case Op::kIf:
      case Op::kFor:
        branch(one, pool);
        break;
      case Op::kCall:
      case Op::kCallAndDrop:
      case Op::kCallWithoutGradient:
      case Op::kCallInPlace:
      case Op::kCallVoid:
        call(one, pool);
        break;
      case Op::kIntegers:
        pool.integers.push_back((pool.integers.at(one.a) * 3 + one.number) % kWords);
        break;
      case Op::kIntegersOfMask:
        pool.integers.push_back(pool.masks.at(one.a).to(torch::kLong) + pool.integers.at(one.b));
        break;
      case Op::kMask:
        pool.masks.push_back(pool.integers.at(one.a) > one.number);
        break;
      case Op::kNotMask:
        pool.masks.push_back(pool.masks.at(one.a).logical_not());
        break;
      default:
        compute(one, pool);
    }
  }
}

void ProgramImpl::compute(const Instruction& one, Pool& pool) {
  const Tensor a = pool.floats.at(one.a);
  const auto push = [&](Tensor t) { pool.floats.push_back(std::move(t)); };
  const auto b = [&] { return pool.floats.at(one.b); };
  switch (one.op) {
    case Op::kTanh:
      return push(torch::tanh(a));
    case Op::kSin:
      return push(torch::sin(a));
    case Op::kGelu:
      // Not the exact form: its backward in libtorch 1.13 (oneDNN) leaves the
      // result unwritten where the gradient is not contiguous.
      return push(torch::gelu(a, "tanh"));
    case Op::kScale:
      return push(a * (0.1 * one.number));
    case Op::kAdd:
      return push((a + b()) * 0.6);
    case Op::kMultiply:
      return push(torch::tanh(a) * torch::tanh(b()));
    case Op::kRoll:
      return push(torch::roll(a, one.number, 1) + a * 0.5);
    case Op::kSoftmax:
      return push(torch::softmax(a, 1));
    case Op::kDetach:
      return push(a.detach());
    case Op::kTransposed:
      return push((a.t() * 0.9).contiguous().t());
    case Op::kExpandMean:
      return push(a.mean(0, true).expand_as(a));
    case Op::kBroadcastNumber:
      return push(a * (1 + torch::tanh(b().mean())));
    case Op::kThroughDouble:
      return push((a.to(torch::kDouble) * 0.7).to(a.scalar_type()));
    case Op::kEmptyRows:
      return push(torch::cat({a, b().narrow(0, 0, 0)}));
    case Op::kGate:
      return push(torch::where(pool.masks.at(one.b), a, a * 0.3));
    case Op::kOwnWeight:
      return push(torch::matmul(a, weight_));
    case Op::kOwnTable:
      return push(a + torch::embedding(table_, pool.integers.at(one.b).select(1, 0) % kWords));
    case Op::kOwnBuffer:
      return push(a + shift_);
    case Op::kUpdateBuffer:
      update_buffers(a);
      return push(a);
    case Op::kDropout:
      return push(drop(a, 0.1 * (1 + one.number % 5), is_training()));
    default:
      TORCH_CHECK(false, "not an operation on floats");
  }
}

Tensor ProgramImpl::call_layer(HeldChild& child, const Instruction& one, const Tensor& x) const {
  const std::string how = recomputes_calls_ ? one.recomputed : "";
  const auto on = [](const Tensor& input) {
    return [input](auto& callee) -> Tensor { return callee(input); };
  };
  switch (program_.children.at(one.child).kind) {
    case ChildKind::kLinear:
      return as_called(child.linear, how, on(x));
    case ChildKind::kPartOfParent:
      return child.part(x);
    case ChildKind::kEmbedding:
      return as_called(child.embedding, how, on(words_like(x, one.number))).mean(1) + x * 0.5;
    case ChildKind::kBlock:
      return as_called(
                 child.block,
                 how,
                 [&](auto& callee) -> Tensor {
                   return std::get<0>(callee(torch::stack({x, torch::roll(x, 1, 1)}, 1)));
                 })
          .mean(1);
    default:
      return as_called(child.sequence, how, on(x));
  }
}

void ProgramImpl::call(const Instruction& one, Pool& pool) {
  HeldChild& child = *children_.at(one.child);
  const Tensor a = pool.floats.at(one.a);
  const Tensor b = pool.floats.at(one.b);
  std::optional<torch::NoGradGuard> no_grad;
  if (one.op == Op::kCallWithoutGradient) {
    no_grad.emplace();
  }
  if (one.op == Op::kCallVoid) {
    child.program(a, true);
    return;
  }
  if (child.program.is_empty()) {
    Tensor h = call_layer(child, one, a);
    if (one.op == Op::kCallInPlace) {
      h.add_(b);
    }
    if (one.op != Op::kCallAndDrop) {
      pool.floats.push_back(h);
    }
    return;
  }
  const int called = program_.children[one.child].modules[0];
  const Signature signature = tree_->modules[called].signature;
  const Tensor ids = pool.integers.empty() ? integers_like(a, one.number) : pool.integers.back();
  const std::string how = recomputes_calls_ ? one.recomputed : "";
  const Returned got = as_called(child.program, how, [&](auto& callee) {
    return call_with(callee, signature, {a, b, pool.floats.back()}, ids, one.number);
  });
  if (one.op == Op::kCallAndDrop) {
    return;
  }
  pool.floats.push_back(got.floats[0]);
  if (one.op != Op::kCall || signature == Signature::kTensor) {
    return;
  }
  pool.floats.push_back((got.floats[1] + got.floats[2]) * 0.6);
  if (signature != Signature::kList) {
    pool.integers.push_back(got.integers);
    pool.masks.push_back(got.mask.defined() ? got.mask : got.integers > 3);
  }
}

void ProgramImpl::branch(const Instruction& one, Pool& pool) {
  const std::int64_t sum = sum_of(pool.integers.at(one.b)) + one.number;
  const auto once = [&](const Body& body, const Tensor& carried) {
    Pool inner = pool;
    inner.floats.push_back(carried);
    run(body.code, inner);
    return inner.floats.at(body.result);
  };
  Tensor h = pool.floats.at(one.a);
  if (one.op == Op::kIf) {
    h = once(one.bodies.at(sum % 2), h);
  } else {
    for (std::int64_t i = 0; i < sum % (kMostRounds + 1); ++i) {
      h = once(one.bodies.at(0), h);
    }
  }
  pool.floats.push_back(h);
}

Program make_program(std::shared_ptr<const Tree> tree, const Build& build) {
  ProgramImpl::Modules modules;
  for (int i = 0; i < static_cast<int>(tree->modules.size()); ++i) {
    const ScopeOf scope(build, i, -1, -1);
    const Program made(tree, i, modules, build); // takes the scope's partition
    flag(build, {i, -1, -1}, made);
    modules.push_back(made.ptr());
  }
  return Program(modules.at(tree->root));
}

std::vector<Tensor> elements(const c10::IValue& list) {
  const auto tensors = list.toTensorList();
  return {tensors.begin(), tensors.end()};
}

c10::IValue
value_argument(const std::array<Tensor, 3>& floats, const Tensor& ids, const Tensor& mask) {
  c10::impl::GenericDict named(c10::StringType::get(), c10::AnyType::get());
  named.insert("f", c10::ivalue::Tuple::create({floats[2], c10::IValue()}));
  named.insert("n", 3);
  return c10::ivalue::Tuple::create(
      {c10::List<Tensor>({floats[0], floats[1]}), named, ids, mask, 2.5, true, "text"});
}

Returned from_value(const c10::IValue& value) {
  const auto& parts = value.toTupleRef().elements();
  const auto named = parts.at(0).toGenericDict();
  Returned got;
  got.floats = elements(named.at("out"));
  got.floats.push_back(named.at("last").toTensor());
  const auto others = elements(parts.at(1));
  got.integers = others.at(0);
  got.mask = others.at(1);
  TORCH_CHECK(parts.at(2).toStringRef() == "text");
  return got;
}

} // namespace tessera::equivalence
