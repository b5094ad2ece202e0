#include "tests/equivalence/program.h"

#include <functional>

#include "tests/equivalence/random.h"

namespace tessera::equivalence {

namespace {

const std::vector<Signature> kSignatures = {
    Signature::kTensor,
    Signature::kTensor,
    Signature::kTuple,
    Signature::kBundle,
    Signature::kValue,
    Signature::kList};

// Calls grow with the power of the depth; a case should take milliseconds.
constexpr int kMostCalls = 40;

const std::vector<Op> kPlainOps = {
    Op::kTanh,       Op::kSin,        Op::kGelu,           Op::kScale,     Op::kAdd,
    Op::kAdd,        Op::kMultiply,   Op::kRoll,           Op::kSoftmax,   Op::kDetach,
    Op::kTransposed, Op::kExpandMean, Op::kThroughDouble,  Op::kEmptyRows, Op::kBroadcastNumber,
    Op::kGate,       Op::kIntegers,   Op::kIntegersOfMask, Op::kMask,      Op::kNotMask,
};

class Maker {
 public:
  Maker(std::uint64_t seed, std::uint64_t number) : random_(seed, number) {}

  Tree make() {
    most_modules_ = random_.integer(1, 14);
    tree_.root = module(random_.integer(1, 4), true);
    return std::move(tree_);
  }

 private:
  // How many of each kind an instruction may name.
  using Sizes = Arity;

  int module(int depth, bool is_root) {
    const int index = make_module(depth, is_root);
    cost_of_.push_back(cost_); // in the order of tree_.modules
    return index;
  }

  int make_module(int depth, bool is_root) {
    ModuleProgram made;
    made.signature = random_.pick(kSignatures);
    made.weight = random_.chance(is_root ? 30 : 60);
    made.table = random_.chance(20);
    made.buffer = random_.chance(25);
    made.frozen = made.weight && random_.chance(8);
    add_children(made, depth);
    if (made.weight && random_.chance(15)) {
      std::vector<int> holders;
      for (std::size_t i = 0; i < tree_.modules.size(); ++i) {
        if (tree_.modules[i].weight) {
          holders.push_back(static_cast<int>(i));
        }
      }
      if (!holders.empty()) {
        made.tied_to = random_.pick(holders);
        made.frozen = false;
      }
    }
    const Arity arity = inputs_of(made.signature);
    sizes_ = arity;
    program_ = &made;
    loops_ = 0;
    cost_ = 1;
    made.code = code(random_.integer(2, 7), true);
    // Every child mostly has a part in the result.
    for (std::size_t i = 0; i < made.children.size(); ++i) {
      if (random_.chance(85)) {
        made.code.push_back(call(static_cast<int>(i), Op::kCall));
      }
    }
    for (int i = 0; i < outputs_of(made.signature); ++i) {
      // The last ones hold most of what was computed; any may be returned,
      // an input or the same tensor twice as well.
      made.floats.push_back(
          random_.chance(75) ? sizes_.floats - 1 - i % sizes_.floats
                             : random_.integer(0, sizes_.floats - 1));
    }
    made.integers = sizes_.integers > 0 ? sizes_.integers - 1 : -1;
    made.mask = sizes_.masks > 0 ? sizes_.masks - 1 : -1;
    tree_.modules.push_back(std::move(made));
    return static_cast<int>(tree_.modules.size()) - 1;
  }

  void add_children(ModuleProgram& made, int depth) {
    const int wanted = depth == 0 ? random_.integer(0, 1) : random_.integer(1, 3);
    for (int i = 0; i < wanted; ++i) {
      Child child;
      child.name = std::string(1, static_cast<char>('a' + i));
      const int draw = random_.integer(1, 100);
      const bool room = depth > 0 && static_cast<int>(tree_.modules.size()) < most_modules_;
      if (room && draw <= 60) {
        child.modules = {module(depth - 1, false)};
      } else if (!tree_.modules.empty() && draw <= 68) {
        // A module that another parent holds as well.
        child.modules = {random_.integer(0, static_cast<int>(tree_.modules.size()) - 1)};
      } else if (draw <= 80) {
        child.kind = ChildKind::kSequential;
        const int layers = random_.integer(1, 4);
        for (int layer = 0; layer < layers; ++layer) {
          child.modules.push_back(random_.chance(30) ? kTanhLayer : kLinearLayer);
        }
      } else if (draw <= 88) {
        child.kind = ChildKind::kPartOfParent;
      } else {
        child.kind = ChildKind::kLinear;
      }
      made.children.push_back(std::move(child));
    }
  }

  std::vector<Instruction> code(int length, bool control) {
    std::vector<Instruction> list;
    for (int i = 0; i < length; ++i) {
      list.push_back(instruction(control));
    }
    return list;
  }

  int a_float() {
    return random_.chance(50) ? sizes_.floats - 1 : random_.integer(0, sizes_.floats - 1);
  }

  Instruction instruction(bool control) {
    const int draw = random_.integer(1, 100);
    if (control && draw <= 18 && sizes_.integers > 0 && loops_ < 2) {
      return choice(draw <= 9 ? Op::kIf : Op::kFor);
    }
    if (draw <= 42 && !program_->children.empty()) {
      static const std::vector<Op> kCalls = {
          Op::kCall,
          Op::kCall,
          Op::kCall,
          Op::kCallAndDrop,
          Op::kCallWithoutGradient,
          Op::kCallInPlace,
          Op::kCallVoid};
      // One after the other: compilers draw for the arguments of a call in different orders.
      const Op op = random_.pick(kCalls);
      const int child = random_.integer(0, static_cast<int>(program_->children.size()) - 1);
      return call(child, op);
    }
    if (draw <= 62 && program_->weight) {
      return pushed(Op::kOwnWeight);
    }
    if (draw <= 68 && program_->table && sizes_.integers > 0) {
      return pushed(Op::kOwnTable);
    }
    if (draw <= 74 && program_->buffer) {
      return pushed(random_.chance(50) ? Op::kOwnBuffer : Op::kUpdateBuffer);
    }
    Op op = random_.pick(kPlainOps);
    const bool no_integers = sizes_.integers == 0 &&
                             (op == Op::kIntegers || op == Op::kMask || op == Op::kIntegersOfMask);
    const bool no_masks =
        sizes_.masks == 0 && (op == Op::kGate || op == Op::kNotMask || op == Op::kIntegersOfMask);
    if (no_integers || no_masks) {
      op = Op::kAdd;
    }
    return pushed(op);
  }

  Instruction pushed(Op op) {
    Instruction made;
    made.op = op;
    made.number = random_.integer(0, kWords - 1);
    made.a = a_float();
    made.b = random_.integer(0, sizes_.floats - 1);
    switch (op) {
      case Op::kIntegersOfMask:
        made.a = random_.integer(0, sizes_.masks - 1);
        made.b = random_.integer(0, sizes_.integers - 1);
        ++sizes_.integers;
        break;
      case Op::kIntegers:
        made.a = random_.integer(0, sizes_.integers - 1);
        ++sizes_.integers;
        break;
      case Op::kMask:
        made.a = random_.integer(0, sizes_.integers - 1);
        ++sizes_.masks;
        break;
      case Op::kNotMask:
        made.a = random_.integer(0, sizes_.masks - 1);
        ++sizes_.masks;
        break;
      case Op::kOwnTable:
        made.b = random_.integer(0, sizes_.integers - 1);
        ++sizes_.floats;
        break;
      case Op::kGate:
        made.b = random_.integer(0, sizes_.masks - 1);
        ++sizes_.floats;
        break;
      default:
        ++sizes_.floats;
    }
    return made;
  }

  Instruction call(int child, Op op) {
    const Child& called = program_->children[child];
    const bool holds_program = called.kind == ChildKind::kProgram;
    const int cost = holds_program ? cost_of_[called.modules[0]] : 1;
    cost_ += in_body_ ? kMostRounds * cost : cost;
    if (cost_ > kMostCalls) {
      cost_ -= in_body_ ? kMostRounds * cost : cost;
      return pushed(Op::kTanh);
    }
    if (op == Op::kCallVoid && !holds_program) {
      op = Op::kCallAndDrop;
    }
    if (op == Op::kCallInPlace && called.kind != ChildKind::kLinear) {
      op = Op::kCall; // what others return may be needed unchanged by autograd
    }
    Instruction made;
    made.op = op;
    made.child = child;
    made.a = a_float();
    made.b = random_.integer(0, sizes_.floats - 1);
    made.number = random_.integer(0, kWords - 1);
    if (op == Op::kCall || op == Op::kCallWithoutGradient || op == Op::kCallInPlace) {
      // Programs push all they return, summed where there are several floats.
      ++sizes_.floats;
      if (holds_program && op == Op::kCall) {
        const Signature signature = tree_.modules[called.modules[0]].signature;
        if (signature != Signature::kTensor) {
          ++sizes_.floats;
        }
        if (signature == Signature::kTuple || signature == Signature::kBundle ||
            signature == Signature::kValue) {
          ++sizes_.integers;
          ++sizes_.masks;
        }
      }
    }
    return made;
  }

  Instruction choice(Op op) {
    ++loops_;
    tree_.depends_on_data = true;
    Instruction made;
    made.op = op;
    made.a = a_float();
    made.b = random_.integer(0, sizes_.integers - 1);
    made.number = random_.integer(0, kWords - 1);
    const Sizes outside = sizes_;
    for (int i = 0; i < (op == Op::kIf ? 2 : 1); ++i) {
      ++sizes_.floats; // the body starts with what is carried
      Body body;
      in_body_ = true;
      body.code = code(random_.integer(1, 3), false);
      in_body_ = false;
      body.result = sizes_.floats - 1;
      made.bodies.push_back(std::move(body));
      sizes_ = outside;
    }
    ++sizes_.floats;
    return made;
  }

  Random random_;
  Tree tree_;
  int most_modules_ = 0;
  Sizes sizes_;
  int loops_ = 0;
  bool in_body_ = false;
  int cost_ = 0; // module calls that the module in making makes at most
  std::vector<int> cost_of_;
  ModuleProgram* program_ = nullptr;
};

} // namespace

Arity inputs_of(Signature signature) {
  switch (signature) {
    case Signature::kTensor:
      return {1, 0, 0};
    case Signature::kTuple:
      return {2, 1, 0};
    case Signature::kBundle:
      return {3, 1, 0};
    case Signature::kValue:
      return {3, 1, 1};
    case Signature::kList:
      return {3, 0, 0};
  }
  return {};
}

int outputs_of(Signature signature) {
  return signature == Signature::kTensor ? 1 : 3;
}

std::vector<Node> nodes_of(const Tree& tree) {
  std::vector<Node> nodes;
  std::vector<bool> seen(tree.modules.size(), false);
  const std::function<void(int, const std::string&)> enter = [&](int module,
                                                                 const std::string& path) {
    if (seen[module]) {
      return; // the first path wins
    }
    seen[module] = true;
    nodes.push_back({path, module});
    const auto& children = tree.modules[module].children;
    for (int c = 0; c < static_cast<int>(children.size()); ++c) {
      const Child& child = children[c];
      const std::string below = path.empty() ? child.name : path + "." + child.name;
      if (child.kind == ChildKind::kProgram) {
        enter(child.modules[0], below);
      } else if (child.kind != ChildKind::kPartOfParent) {
        nodes.push_back({below, module, c});
      }
      if (child.kind == ChildKind::kSequential) {
        for (int i = 0; i < static_cast<int>(child.modules.size()); ++i) {
          nodes.push_back({below + "." + std::to_string(i), module, c, i});
        }
      }
    }
  };
  enter(tree.root, "");
  return nodes;
}

Tree random_tree(std::uint64_t seed, std::uint64_t number) {
  return Maker(seed, 2 * number).make();
}

} // namespace tessera::equivalence
