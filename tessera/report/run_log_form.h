#pragma once

// The form of the lines of a run log, which docs/run_log.md describes. Private to this folder.

#include "tessera/base/json/kinds.h"
#include "tessera/report/run_log.h"

namespace tessera::report {

/// A JSON document that a member holds as text; "" is null in the file.
struct Document {
  const char* name;
  std::string& text;
};

} // namespace tessera::report

namespace tessera::form {

template <>
struct Custom<report::Document> {
  static bool read(const OrderedJson& found, report::Document& into) {
    into.text = found.is_object() ? indented(found, 2) : "";
    return found.is_object() || found.is_null();
  }
  static OrderedJson write(const report::Document& document) {
    try {
      return document.text.empty() ? OrderedJson() : OrderedJson::parse(document.text);
    } catch (const OrderedJson::exception& error) {
      throw Error(str("run log: ", document.name, " is not JSON: ", cause_of(error)));
    }
  }
  static std::string allowed() {
    return "an object or null";
  }
};

} // namespace tessera::form

namespace tessera::report {

inline constexpr int kNewestRunLog = 2; // the version written; version 1 can be read too
/// Bounds of step numbers. The upper one leaves room for 1, which is added to those of version 1.
inline constexpr form::Bounds kSteps = form::between(0, 1e15);

/// Describes the "type" field, by which every line names its kind.
template <typename Visit>
void describe_type(Visit& visit, const char* type) {
  std::string said = type;
  visit({.name = "type", .choices = {type}}, said);
}

template <typename Visit>
void describe_document(Visit& visit, const char* name, std::string& text) {
  Document document{name, text};
  visit({.name = name}, document);
}

template <typename Visit>
void describe(Visit& visit, RunFacts& run) {
  constexpr form::Bounds kDegree = form::at_least(1);
  constexpr form::Bounds kCount = form::at_least(0);
  describe_type(visit, "run");
  int version = kNewestRunLog;
  visit({.name = "version", .bounds = kDegree}, version);
  const auto since_2 = version == 1 ? form::Presence::kOptional : form::Presence::kRequired;
  visit({.name = "run_id", .presence = since_2}, run.run_id);
  visit({.name = "model"}, run.model);
  visit({.name = "started"}, run.started);
  visit({.name = "command", .presence = since_2}, run.command);
  visit({.name = "program", .presence = since_2}, run.program);
  visit({.name = "data"}, run.data);
  visit({.name = "precision"}, run.precision);
  visit({.name = "schedule"}, run.schedule);
  visit({.name = "world_size", .bounds = kDegree}, run.world_size);
  visit({.name = "pipeline_parallel_degree", .bounds = kDegree}, run.pipeline_parallel_degree);
  visit({.name = "tensor_parallel_degree", .bounds = kDegree}, run.tensor_parallel_degree);
  visit({.name = "data_parallel_degree", .bounds = kDegree}, run.data_parallel_degree);
  visit({.name = "microbatches", .bounds = kDegree}, run.microbatches);
  visit({.name = "parameters", .bounds = kCount}, run.parameters);
  visit({.name = "tokens_per_step", .bounds = kCount}, run.tokens_per_step);
  visit({.name = "first_step", .bounds = kSteps}, run.first_step);
  visit.check([&] {
    return version > 1 && run.first_step < 1 ? "'first_step' must be an integer of at least 1" : "";
  });
  visit({.name = "steps", .bounds = kCount, .presence = since_2}, run.steps);
  visit({.name = "flops_per_token", .bounds = kCount, .presence = since_2}, run.flops_per_token);
  visit(
      {.name = "peak_flops_per_second", .bounds = kCount, .presence = since_2},
      run.peak_flops_per_second);
  visit({.name = "hosts"}, run.hosts);
  describe_document(visit, "config", run.config_json);
  describe_document(visit, "plan", run.plan_json);
  if constexpr (Visit::kReads) {
    run.first_step += version == 1 ? 1 : 0;
  }
}

template <typename Visit>
void describe(Visit& visit, StepRecord& step) {
  using enum form::Presence;
  describe_type(visit, "step");
  visit({.name = "step", .bounds = kSteps}, step.step);
  visit({.name = "loss", .null_is_nan = true}, step.loss);
  visit({.name = "tokens_per_second"}, step.tokens_per_second);
  visit({.name = "step_seconds"}, step.step_seconds);
  visit({.name = "lr"}, step.learning_rate);
  visit({.name = "grad_norm", .presence = kIfSaid, .null_is_nan = true}, step.grad_norm);
  visit(
      {.name = "bubble_share", .bounds = form::between(0, 1), .presence = kIfSaid},
      step.bubble_share);
  visit(
      {.name = "elapsed_seconds", .bounds = form::at_least(0), .presence = kIfSaid},
      step.elapsed_seconds);
  visit({.name = "memory_bytes", .bounds = form::at_least(0)}, step.memory_bytes);
  visit({.name = "peak_bytes", .bounds = form::at_least(0), .presence = kIfSaid}, step.peak_bytes);
  visit(
      {.name = "offload_bytes", .bounds = form::at_least(0), .presence = kIfSaid},
      step.offload_bytes);
  visit({.name = "loss_scale", .bounds = form::at_least(0), .presence = kIfSaid}, step.loss_scale);
  visit({.name = "skipped", .presence = kIfSaid}, step.skipped);
}

template <typename Visit>
void describe(Visit& visit, ValidationRecord& validation) {
  describe_type(visit, "validation");
  visit({.name = "step", .bounds = kSteps}, validation.step);
  visit({.name = "loss", .null_is_nan = true}, validation.loss);
}

template <typename Visit>
void describe(Visit& visit, TrafficRecord& traffic) {
  describe_type(visit, "traffic");
  visit({.name = "step", .bounds = kSteps}, traffic.step);
  visit({.name = "group"}, traffic.group);
  visit({.name = "calls", .bounds = form::at_least(0)}, traffic.calls);
  visit({.name = "bytes", .bounds = form::at_least(0)}, traffic.bytes);
}

template <typename Visit>
void describe(Visit& visit, SampleRecord& sample) {
  describe_type(visit, "sample");
  visit({.name = "step", .bounds = kSteps}, sample.step);
  visit({.name = "prompt"}, sample.prompt);
  visit({.name = "text"}, sample.text);
}

/// The line that holds the picture of the partition.
struct PartitionLine {
  std::string svg;
};

template <typename Visit>
void describe(Visit& visit, PartitionLine& partition) {
  describe_type(visit, "partition");
  visit({.name = "svg"}, partition.svg);
}

template <typename Visit>
void describe(Visit& visit, EndRecord& end) {
  describe_type(visit, "end");
  visit({.name = "state", .choices = {"finished", "stopped", "failed"}}, end.state);
  visit({.name = "step", .bounds = kSteps}, end.step);
  visit({.name = "elapsed_seconds", .bounds = form::at_least(0)}, end.elapsed_seconds);
  visit({.name = "reason"}, end.reason);
}

} // namespace tessera::report
