#include "cli/doctor/facts.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::cli::doctor {

namespace {

using nlohmann::json;

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

std::optional<std::int64_t> bytes_or_none(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::int64_t>());
}

json json_of(const ProductFacts& facts) {
  return {
      {"library", facts.provider},
      {"optimised", facts.optimised},
      {"kernel", facts.kernel},
      {"f32_gflops", facts.f32_gflops},
      {"bf16_gflops", facts.bf16_gflops},
      {"f32_error", facts.f32_error},
      {"trial",
       facts.trial ? json{{"kernel", facts.trial->kernel}, {"f32_gflops", facts.trial->f32_gflops}}
                   : json()}};
}

ProductFacts products_of(const json& value) {
  ProductFacts facts;
  facts.provider = value.at("library");
  facts.optimised = value.at("optimised");
  facts.kernel = value.at("kernel");
  facts.f32_gflops = value.at("f32_gflops");
  facts.bf16_gflops = value.at("bf16_gflops");
  facts.f32_error = value.at("f32_error");
  const json& trial = value.at("trial");
  if (!trial.is_null()) {
    facts.trial = KernelTrial{trial.at("kernel"), trial.at("f32_gflops")};
  }
  return facts;
}

json json_of(const RankFacts& facts) {
  return {
      {"rank", facts.rank},
      {"local_rank", facts.local_rank},
      {"local_size", facts.local_size},
      {"host", facts.host},
      {"mpi", facts.mpi},
      {"thread_level", facts.thread_level},
      {"processor", facts.processor},
      {"features", facts.features},
      {"cores", facts.cores},
      {"threads", facts.threads},
      {"products", json_of(facts.products)},
      {"memory",
       {{"total_bytes", facts.memory.total},
        {"available_bytes", facts.memory.available},
        {"group_limit_bytes", or_null(facts.memory.group_limit)},
        {"group_used_bytes", or_null(facts.memory.group_used)}}},
      {"copy_bytes_per_s", facts.copy_bytes_per_s},
      {"clock_offset_us", facts.clock_offset_us},
      {"clock_error_us", facts.clock_error_us}};
}

} // namespace

std::string to_text(const RankFacts& facts) {
  return json_of(facts).dump(-1, ' ', false, json::error_handler_t::replace);
}

RankFacts rank_facts_from_text(const std::string& text) {
  try {
    const json value = json::parse(text);
    RankFacts facts;
    facts.rank = value.at("rank");
    facts.local_rank = value.at("local_rank");
    facts.local_size = value.at("local_size");
    facts.host = value.at("host");
    facts.mpi = value.at("mpi");
    facts.thread_level = value.at("thread_level");
    facts.processor = value.at("processor");
    facts.features = value.at("features").get<std::vector<std::string>>();
    facts.cores = value.at("cores");
    facts.threads = value.at("threads");
    facts.products = products_of(value.at("products"));
    const json& memory = value.at("memory");
    facts.memory.total = memory.at("total_bytes");
    facts.memory.available = memory.at("available_bytes");
    facts.memory.group_limit = bytes_or_none(memory.at("group_limit_bytes"));
    facts.memory.group_used = bytes_or_none(memory.at("group_used_bytes"));
    facts.copy_bytes_per_s = value.at("copy_bytes_per_s");
    facts.clock_offset_us = value.at("clock_offset_us");
    facts.clock_error_us = value.at("clock_error_us");
    return facts;
  } catch (const json::exception& error) {
    throw Error(str("doctor: facts of a rank: ", error.what()));
  }
}

std::string to_json(const Examination& examination) {
  json ranks = json::array();
  for (const RankFacts& facts : examination.ranks) {
    ranks.push_back(json_of(facts));
  }
  json pairs = json::array();
  for (const PairFacts& pair : examination.pairs) {
    pairs.push_back(
        {{"ranks", {pair.first, pair.second}},
         {"latency_us", pair.latency_us},
         {"bytes_per_s", pair.bytes_per_s},
         {"shared_memory", pair.shared_memory}});
  }
  json findings = json::array();
  for (const Finding& finding : examination.findings) {
    findings.push_back(
        {{"fatal", finding.fatal},
         {"what", finding.what},
         {"advice", finding.advice},
         {"ranks", finding.ranks}});
  }
  return json{
      {"version", 1},
      {"ranks", ranks},
      {"pairs", pairs},
      {"unmeasured_ranks", examination.unmeasured},
      {"all_reduce_bytes_per_s", examination.all_reduce_bytes_per_s},
      {"findings", findings},
      {"training_possible", !any_fatal(examination.findings)}}
      .dump(2, ' ', false, json::error_handler_t::replace);
}

} // namespace tessera::cli::doctor
