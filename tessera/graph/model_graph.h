#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::graph {

/// One parameter tensor of the model, listed once however many modules hold it.
struct Parameter {
  std::string name; // first path under which it is found, "layers.0.weight"
  std::vector<std::int64_t> shape;
  std::string dtype; // "float32"
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

/// One module that calls can be intercepted at (others are part of their
/// parent: their parameters are counted there).
struct Module {
  std::string path; // "" is the root
  std::string type; // class name without "Impl"
  int parent = -1; // index into ModelGraph::modules
  std::vector<int> children; // in order of registration
  std::vector<int> parameters; // own ones, not those of children
  /// Position of the first call among all calls of the trace, -1 when the trace
  /// did not reach it.
  int first_call = -1;
  int calls = 0;
  double forward_seconds = 0; // children included; 0 when not measured
  /// Bytes of tensors that this module's calls returned.
  std::int64_t activation_bytes = 0;
  /// Tessera's manual partition (`tessera::partition` scope), -1 for none.
  int manual_partition = -1;
};

/// A module with parameters of its own that cannot live on a rank of its own, and why.
struct KeptModule {
  std::string path;
  std::string type;
  std::int64_t elements = 0; // of its own parameters
  std::string reason;
  std::string instead; // what the script can write to have it placed
};

/// The traced model as plain data: what partitioners and planners decide on.
struct ModelGraph {
  std::string name;
  std::vector<Module> modules; // pre-order of registration; [0] is the root
  std::vector<Parameter> parameters;
  /// For people; not part of the JSON form.
  std::vector<KeptModule> kept;
  bool traced = false; // orders and calls come from a run
  bool timed = false; // forward_seconds were measured
};

/// Modules that share parameters, directly or through others, as one unit of
/// partitioning. Source: Karakus et al. 2021, appendix C.2.
struct ModuleNode {
  std::vector<int> modules; // indices into ModelGraph::modules
  int parent = -1; // index into ModuleTree::nodes
  std::vector<int> children; // in order of execution
};

/// nodes[0] is the root; every parent stands before its children.
struct ModuleTree {
  std::vector<ModuleNode> nodes;
  std::vector<int> node_of_module;
};

/// Checks what every reader relies on: modules in pre-order with consistent
/// parents and children, unique paths, indices in range, each parameter held
/// by a module, element counts that match shapes, no negative size or time.
///
/// Throws: PlanError naming the module or parameter, what was found and what
/// is expected.
void validate(const ModelGraph& graph);

/// Connected components of the module-parameter graph, joined into a tree by
/// module ownership; of several parents the one with the smallest index stays.
/// Children follow the trace (first call), modules that were not called come
/// last in order of registration. A container that is never called itself but
/// whose modules are (a list of layers) stands where the first of them does.
///
/// Nodes are ordered by their smallest module, which is also what makes the
/// result a tree: that module's parent has a smaller index, so the parent that
/// stays always stands before its child, however components span levels.
///
/// Throws: PlanError as `validate`.
/// Source: Karakus et al. 2021, appendix C.2.
ModuleTree build_module_tree(const ModelGraph& graph);

/// Throws: PlanError as `validate`.
std::string to_json(const ModelGraph& graph);

/// Throws: PlanError naming the field that is missing, unknown or of another
/// type, or as `validate`.
ModelGraph model_graph_from_json(const std::string& text);

} // namespace tessera::graph
