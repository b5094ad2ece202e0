#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

/// Random module trees as plain data: what the one interpreted module class
/// (interpreter.h) builds and runs.
namespace tessera::equivalence {

constexpr int kWidth = 8;
/// Numbers in integer inputs are from 0 to kWords - 1.
constexpr int kWords = 11;
/// A `for` runs its body 0, 1 or 2 times.
constexpr int kMostRounds = 2;

/// What a module takes and gives; one overload of `forward` each.
enum class Signature {
  kTensor, // tensor -> tensor
  kTuple, // tensors -> nested tuple and pair
  kBundle, // map of lists, number, optional -> tuple of the same
  kValue, // c10::IValue with a list, a dict, None, numbers, a string
  kList, // list of tensors, array -> list of pairs with maps
};

enum class Op {
  // On floats: what is pushed is a float [rows, kWidth].
  kTanh,
  kSin,
  kGelu,
  kScale,
  kAdd,
  kMultiply,
  kRoll,
  kSoftmax,
  kDetach,
  kTransposed, // same values, another memory layout
  kExpandMean, // stride 0
  kBroadcastNumber, // with a tensor of no dimensions
  kThroughDouble,
  kEmptyRows, // appends a slice of no rows
  kGate, // by a mask
  kOwnWeight,
  kOwnTable, // looked up by integers
  kOwnBuffer,
  kUpdateBuffer, // counts calls and sums inputs; pushes its input
  kDropout, // while training
  // On integers and masks.
  kIntegers,
  kIntegersOfMask,
  kMask,
  kNotMask,
  // Calls of children.
  kCall,
  kCallAndDrop,
  kCallWithoutGradient,
  kCallInPlace, // adds to the result in place
  kCallVoid,
  // Control.
  kIf, // on the sum of integers
  kFor, // rounds read from integers
};

struct Instruction;

/// Instructions and the float they leave.
struct Body {
  std::vector<Instruction> code;
  int result = 0;
};

/// Operands are positions in the lists of floats, integers and masks so far.
struct Instruction {
  Op op = Op::kTanh;
  int a = 0;
  int b = 0;
  int number = 0;
  int child = -1;
  std::vector<Body> bodies = {};
  /// A strategy: this call alone is recomputed in its backward. Empty: it is not.
  std::string recomputed = {};
};

/// Layers of a Sequential.
constexpr int kLinearLayer = -1;
constexpr int kTanhLayer = -2;

enum class ChildKind {
  kProgram,
  kLinear,
  kSequential,
  kPartOfParent,
  kEmbedding, // of numbers that follow from its input's shape
  kBlock, // a block of GPT over two tokens
};

struct Child {
  std::string name;
  ChildKind kind = ChildKind::kProgram;
  /// The module of a kProgram child; the layers of a kSequential.
  std::vector<int> modules = {};
  /// Marked for tensor parallelism.
  bool divided = false;
};

struct ModuleProgram {
  Signature signature = Signature::kTensor;
  bool weight = false;
  bool table = false;
  bool buffer = false;
  bool frozen = false; // its own weight needs no gradient
  int tied_to = -1; // module whose weight is this one's
  std::vector<Child> children;
  std::vector<Instruction> code;
  /// Positions of what it returns; how many depends on the signature.
  std::vector<int> floats;
  int integers = 0;
  int mask = 0;
};

/// Modules come after all that they hold; the root is the last one.
struct Tree {
  std::vector<ModuleProgram> modules;
  int root = 0;
  /// Any `if` or `for` on data: replicas may then call different modules.
  bool depends_on_data = false;
};

/// Floats, integers and masks that a module of this signature starts with.
struct Arity {
  int floats = 0;
  int integers = 0;
  int masks = 0;
};
Arity inputs_of(Signature signature);
/// Floats that it returns.
int outputs_of(Signature signature);

/// Module, child of it (-1: the module itself), layer of that child, a Sequential (-1: all of it).
using Place = std::tuple<int, int, int>;

/// A module that has a place of its own in the partition.
struct Node {
  std::string path;
  int module = 0;
  int child = -1; // of the module; -1: the module itself
  int layer = -1; // of a Sequential; -1: the Sequential itself
};
/// In the order and under the names that the library gives them.
std::vector<Node> nodes_of(const Tree& tree);

Tree random_tree(std::uint64_t seed, std::uint64_t number);

/// What a strategy says where the modules of a tree are made; nothing for one process.
struct Build {
  std::map<Place, int> scopes; // rank by place, for `tessera::partition`
  std::map<Place, std::string> recomputed; // strategy by place, for set_activation_checkpointing
  bool recomputes_calls = false; // those whose instruction says so
  bool divides = false; // children that are marked, for `tessera::tensor_parallelism`
};

/// The whole tree, for people.
std::string to_text(const Tree& tree);

} // namespace tessera::equivalence
