#include <map>
#include <sstream>

#include "tests/equivalence/program.h"

namespace tessera::equivalence {

namespace {

const char* name_of(Signature signature) {
  static const std::map<Signature, const char*> kNames = {
      {Signature::kTensor, "tensor"},
      {Signature::kTuple, "tuple"},
      {Signature::kBundle, "bundle"},
      {Signature::kValue, "value"},
      {Signature::kList, "list"}};
  return kNames.at(signature);
}

const char* name_of(Op op) {
  static const std::map<Op, const char*> kNames = {
      {Op::kTanh, "tanh"},
      {Op::kSin, "sin"},
      {Op::kGelu, "gelu"},
      {Op::kScale, "scale"},
      {Op::kAdd, "add"},
      {Op::kMultiply, "multiply"},
      {Op::kRoll, "roll"},
      {Op::kSoftmax, "softmax"},
      {Op::kDetach, "detach"},
      {Op::kTransposed, "transposed"},
      {Op::kExpandMean, "expand_mean"},
      {Op::kBroadcastNumber, "broadcast_number"},
      {Op::kThroughDouble, "through_double"},
      {Op::kEmptyRows, "empty_rows"},
      {Op::kGate, "gate"},
      {Op::kOwnWeight, "own_weight"},
      {Op::kOwnTable, "own_table"},
      {Op::kOwnBuffer, "own_buffer"},
      {Op::kUpdateBuffer, "update_buffer"},
      {Op::kDropout, "dropout"},
      {Op::kIntegers, "integers"},
      {Op::kIntegersOfMask, "integers_of_mask"},
      {Op::kMask, "mask"},
      {Op::kNotMask, "not_mask"},
      {Op::kCall, "call"},
      {Op::kCallAndDrop, "call_and_drop"},
      {Op::kCallWithoutGradient, "call_without_gradient"},
      {Op::kCallInPlace, "call_in_place"},
      {Op::kCallVoid, "call_void"},
      {Op::kIf, "if"},
      {Op::kFor, "for"}};
  return kNames.at(op);
}

void write(std::ostream& out, const std::vector<Instruction>& code, const std::string& indent) {
  for (const Instruction& one : code) {
    out << indent << name_of(one.op);
    if (one.child >= 0) {
      out << ' ' << static_cast<char>('a' + one.child);
    }
    out << " (" << one.a << ", " << one.b << ") " << one.number;
    if (!one.recomputed.empty()) {
      out << " recomputed " << one.recomputed;
    }
    out << '\n';
    for (const Body& body : one.bodies) {
      write(out, body.code, indent + "  ");
      out << indent << "  gives " << body.result << '\n';
    }
  }
}

void write_child(std::ostream& out, const Child& child) {
  out << "  " << child.name << " = ";
  switch (child.kind) {
    case ChildKind::kProgram:
      out << "module " << child.modules[0];
      break;
    case ChildKind::kLinear:
      out << "Linear";
      break;
    case ChildKind::kPartOfParent:
      out << "Linear, part of its parent";
      break;
    case ChildKind::kEmbedding:
      out << "Embedding";
      break;
    case ChildKind::kBlock:
      out << "GptBlock";
      break;
    case ChildKind::kSequential:
      out << "Sequential";
      for (const int layer : child.modules) {
        out << (layer == kLinearLayer ? " Linear" : " Tanh");
      }
      break;
  }
  out << (child.divided ? ", divided\n" : "\n");
}

} // namespace

std::string to_text(const Tree& tree) {
  std::ostringstream out;
  for (std::size_t i = tree.modules.size(); i-- > 0;) {
    const ModuleProgram& module = tree.modules[i];
    out << "module " << i << ": " << name_of(module.signature) << (module.weight ? ", weight" : "")
        << (module.frozen ? " frozen" : "") << (module.table ? ", table" : "")
        << (module.buffer ? ", buffers" : "");
    if (module.tied_to >= 0) {
      out << ", weight of module " << module.tied_to;
    }
    out << '\n';
    for (const Child& child : module.children) {
      write_child(out, child);
    }
    write(out, module.code, "  ");
    out << "  returns floats";
    for (const int place : module.floats) {
      out << ' ' << place;
    }
    out << ", integers " << module.integers << ", mask " << module.mask << '\n';
  }
  return out.str();
}

} // namespace tessera::equivalence
