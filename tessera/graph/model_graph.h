#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::graph {

/// A parameter tensor of the model. It is listed once, however many modules hold it.
struct Parameter {
  std::string name; // first path under which it is found, "layers.0.weight"
  std::vector<std::int64_t> shape;
  std::string dtype; // "float32"
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

/// A module whose calls can be intercepted. Other modules belong to their parent, which counts
/// their parameters as its own.
struct Module {
  std::string path; // "" is the root
  std::string type; // class name without "Impl"
  int parent = -1; // index into ModelGraph::modules
  std::vector<int> children; // in order of registration
  std::vector<int> parameters; // parameters of the module itself, not of its children
  /// The position of the module's first call among all calls of the trace; -1 when the trace did
  /// not reach it.
  int first_call = -1;
  int calls = 0;
  double forward_seconds = 0; // includes children; 0 when not measured
  /// The bytes of the tensors that this module's calls returned.
  std::int64_t returned_bytes = 0;
  /// Those of them that nothing before or inside of this module had returned: over all modules,
  /// every byte once. Where memory was measured: what the module's own calls keep for their
  /// backward, results included, modules inside of it not.
  std::int64_t activation_bytes = 0;
  /// The partition that a `tessera::partition` scope asked for; -1 for none.
  int manual_partition = -1;
};

/// A module that has parameters but cannot be placed on a rank by itself, and why.
struct KeptModule {
  std::string path;
  std::string type;
  std::int64_t elements = 0; // of its own parameters
  std::string reason;
  std::string instead; // what the script can write to have it placed
};

/// The traced model as plain data, from which partitioners and planners decide.
struct ModelGraph {
  std::string name;
  std::vector<Module> modules; // pre-order of registration; [0] is the root
  std::vector<Parameter> parameters;
  /// A report for people; the JSON form leaves it out.
  std::vector<KeptModule> kept;
  bool traced = false; // orders and calls come from a run
  bool timed = false; // forward_seconds were measured
};

/// A set of modules that share parameters, directly or through others, and so form one unit of
/// partitioning. Source: Karakus et al. 2021, appendix C.2.
struct ModuleNode {
  std::vector<int> modules; // indices into ModelGraph::modules
  int parent = -1; // index into ModuleTree::nodes
  std::vector<int> children; // in order of execution
};

/// The tree of module nodes. nodes[0] is the root, and every parent precedes its children.
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

/// Builds the tree of module nodes: the connected components of the module-parameter graph, joined
/// by module ownership. When a component has several parents, the one with the smallest index
/// stays.
/// Children are in the order of the trace (first call); modules that were not called come last, in
/// order of registration. A container that is never called itself but whose modules are (a list of
/// layers) takes the position of its first called module.
///
/// Nodes are ordered by their smallest module. This also makes the result a tree: the parent of
/// that module has a smaller index, so the parent that stays precedes its child, even when
/// components span levels.
///
/// Throws: PlanError as `validate`.
/// Source: Karakus et al. 2021, appendix C.2.
ModuleTree build_module_tree(const ModelGraph& graph);

/// Returns the versioned JSON form, without `kept`. Throws: PlanError as `validate`.
std::string to_json(const ModelGraph& graph);

/// Reads that form. Throws: PlanError naming the field that is missing, unknown or
/// of another type, or as `validate`.
ModelGraph model_graph_from_json(const std::string& text);

} // namespace tessera::graph
