// The JSON form of clusters: those that people describe and those that
// `tessera probe` measured.
#include <algorithm>
#include <map>

#include "tessera/base/files.h"
#include "tessera/cost/data_sheets.h"
#include "tessera/planner/described_json.h"
#include "tessera/planner/description.h"

namespace tessera::planner {

namespace {

constexpr double kBytesPerGigabit = 1e9 / 8;
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

std::vector<cost::MeasuredPoint> points_of(const JsonFields& fields, const char* key) {
  std::vector<cost::MeasuredPoint> points;
  if (!fields.has(key)) {
    return points;
  }
  for (const OrderedJson& pair : list_of(fields, key)) {
    const bool numbers =
        pair.is_array() && std::all_of(pair.begin(), pair.end(), [](const OrderedJson& value) {
          return value.is_number();
        });
    if (!numbers || pair.size() < 2 || pair.size() > 3) {
      fields.fail(
          str("'",
              key,
              "' must be a list of [size, seconds] or [size, seconds, "
              "backward seconds], found ",
              one_line(pair)));
    }
    points.push_back(
        {pair[0].get<double>(),
         pair[1].get<double>(),
         pair.size() == 3 ? pair[2].get<double>() : 0});
  }
  return points;
}

std::map<std::string, std::vector<cost::MeasuredPoint>>
products_of(const JsonFields& fields, const std::string& device, const char* key) {
  std::map<std::string, std::vector<cost::MeasuredPoint>> result;
  if (fields.has(key)) {
    const OrderedJson& products = object_of(fields, key);
    const JsonFields by_precision(products, str("devices.", device));
    by_precision.allow_only({"f32", "bf16"});
    for (const auto& entry : products.items()) {
      result[entry.key()] = points_of(by_precision, entry.key().c_str());
    }
  }
  return result;
}

cost::DeviceKind kind_of(const std::string& name, const OrderedJson& json) {
  const JsonFields fields(json, str("devices.", name));
  fields.allow_only(
      {"memory_gib",
       "memory_gb_per_s",
       "product_seconds",
       "batched_product_seconds",
       "weight_seconds",
       "move_seconds",
       "function_seconds",
       "random_seconds",
       "operator_seconds"});
  cost::DeviceKind kind;
  kind.name = name;
  kind.memory_bytes = fields.number("memory_gib") * kGib;
  kind.memory_bytes_per_s = cost::known_memory_bandwidth(name);
  if (fields.has("memory_gb_per_s")) {
    kind.memory_bytes_per_s = fields.number("memory_gb_per_s") * 1e9;
    if (!(kind.memory_bytes_per_s > 0)) {
      fields.fail(str(
          "'memory_gb_per_s' must be more than 0, found ", one_line(fields.at("memory_gb_per_s"))));
    }
  }
  kind.speed.products = products_of(fields, name, "product_seconds");
  kind.speed.batched_products = products_of(fields, name, "batched_product_seconds");
  kind.speed.weights = points_of(fields, "weight_seconds");
  kind.speed.moves = points_of(fields, "move_seconds");
  kind.speed.functions = points_of(fields, "function_seconds");
  kind.speed.random = points_of(fields, "random_seconds");
  if (fields.has("operator_seconds")) {
    const OrderedJson& operators = object_of(fields, "operator_seconds");
    const JsonFields by_name(operators, str("devices.", name, ".operator_seconds"));
    for (const auto& entry : operators.items()) {
      kind.speed.operators[entry.key()] = points_of(by_name, entry.key().c_str());
    }
  }
  return kind;
}

double optional_number(const JsonFields& fields, const char* key) {
  return fields.has(key) ? fields.number(key) : 0;
}

cost::Node
node_of(const OrderedJson& json, const std::string& place, const std::vector<std::string>& kinds) {
  const JsonFields node(json, place);
  node.allow_only(
      {"device",
       "count",
       "intra_node_gbit_per_s",
       "inter_node_gbit_per_s",
       "cores",
       "latency_us",
       "host"});
  const std::string device = node.text("device");
  const auto found = std::find(kinds.begin(), kinds.end(), device);
  if (found == kinds.end()) {
    node.fail(str(
        "'device': found \"",
        device,
        "\", which devices does not describe",
        kinds.empty() ? std::string() : str("; the nearest is \"", nearest(device, kinds), "\"")));
  }
  return {
      .kind = static_cast<int>(found - kinds.begin()),
      .count = node.small_integer("count", 1, 1 << 20),
      .intra_bytes_per_s = optional_number(node, "intra_node_gbit_per_s") * kBytesPerGigabit,
      .inter_bytes_per_s = optional_number(node, "inter_node_gbit_per_s") * kBytesPerGigabit,
      .cores = optional_number(node, "cores"),
      .latency_seconds = optional_number(node, "latency_us") * 1e-6,
      .host = node.has("host") ? node.text("host") : ""};
}

cost::NodeLink link_of(const OrderedJson& json, const std::string& place) {
  const JsonFields fields(json, place);
  fields.allow_only({"nodes", "gbit_per_s", "latency_us"});
  const auto nodes = fields.integers("nodes");
  if (nodes.size() != 2 || nodes[0] > 1 << 20 || nodes[1] > 1 << 20) {
    fields.fail("'nodes' must be the numbers of two nodes");
  }
  return {
      .first = static_cast<int>(nodes[0]),
      .second = static_cast<int>(nodes[1]),
      .bytes_per_s = fields.number("gbit_per_s") * kBytesPerGigabit,
      .latency_seconds = optional_number(fields, "latency_us") * 1e-6};
}

cost::CollectiveTime collective_of(const OrderedJson& json, const std::string& place) {
  const JsonFields fields(json, place);
  fields.allow_only({"operation", "ranks", "nodes", "bytes", "seconds"});
  return {
      .operation = fields.text("operation"),
      .ranks = fields.small_integer("ranks"),
      .nodes = fields.small_integer("nodes"),
      .bytes = fields.number("bytes"),
      .seconds = fields.number("seconds")};
}

cost::ProbeQuality quality_of(const OrderedJson& json) {
  const JsonFields fields(json, "probe");
  fields.allow_only({"rounds", "repeated", "compute_spread", "link_spread", "collective_spread"});
  cost::ProbeQuality quality;
  quality.rounds = fields.small_integer("rounds", 1, 1 << 20);
  quality.repeated = fields.small_integer("repeated", 0, 1 << 30);
  quality.compute_spread = fields.number("compute_spread");
  quality.link_spread = fields.number("link_spread");
  quality.collective_spread = fields.number("collective_spread");
  return quality;
}

cost::Cluster cluster_of(const OrderedJson& json) {
  const JsonFields fields(json, "cluster");
  fields.allow_only({"name", "devices", "nodes", "links", "collectives", "measured", "probe"});
  cost::Cluster cluster;
  cluster.name = fields.text("name");
  std::vector<std::string> names;
  for (const auto& device : object_of(fields, "devices").items()) {
    cluster.kinds.push_back(kind_of(device.key(), device.value()));
    names.push_back(device.key());
  }
  const OrderedJson& nodes = list_of(fields, "nodes");
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    cluster.nodes.push_back(node_of(nodes[n], str("nodes[", n, "]"), names));
  }
  if (fields.has("links")) {
    const OrderedJson& links = list_of(fields, "links");
    for (std::size_t i = 0; i < links.size(); ++i) {
      cluster.links.push_back(link_of(links[i], str("links[", i, "]")));
    }
  }
  if (fields.has("collectives")) {
    const OrderedJson& list = list_of(fields, "collectives");
    for (std::size_t i = 0; i < list.size(); ++i) {
      cluster.collectives.push_back(collective_of(list[i], str("collectives[", i, "]")));
    }
  }
  if (fields.has("measured")) {
    const OrderedJson& measured = fields.at("measured");
    if (!measured.is_boolean()) {
      fields.fail(str("'measured' must be true or false, found ", one_line(measured)));
    }
    cluster.measured = measured.get<bool>();
  }
  if (fields.has("probe")) {
    cluster.quality = quality_of(fields.at("probe"));
  }
  cost::validate(cluster);
  return cluster;
}

OrderedJson to_json(const std::vector<cost::MeasuredPoint>& points) {
  OrderedJson list = OrderedJson::array();
  for (const cost::MeasuredPoint& point : points) {
    list.push_back(OrderedJson::array({point.size, point.seconds}));
    if (point.backward_seconds > 0) {
      list.back().push_back(point.backward_seconds);
    }
  }
  return list;
}

OrderedJson to_json(const cost::DeviceKind& kind) {
  OrderedJson json;
  json["memory_gib"] = kind.memory_bytes / kGib;
  if (kind.memory_bytes_per_s > 0) {
    json["memory_gb_per_s"] = kind.memory_bytes_per_s * 1e-9;
  }
  if (kind.speed.measured()) {
    for (const auto& [precision, points] : kind.speed.products) {
      json["product_seconds"][precision] = to_json(points);
    }
    for (const auto& [precision, points] : kind.speed.batched_products) {
      json["batched_product_seconds"][precision] = to_json(points);
    }
    if (!kind.speed.weights.empty()) {
      json["weight_seconds"] = to_json(kind.speed.weights);
    }
    json["move_seconds"] = to_json(kind.speed.moves);
    json["function_seconds"] = to_json(kind.speed.functions);
    json["random_seconds"] = to_json(kind.speed.random);
    for (const auto& [name, points] : kind.speed.operators) {
      json["operator_seconds"][name] = to_json(points);
    }
  }
  return json;
}

void put_if(OrderedJson& json, const char* key, double value) {
  if (value > 0) {
    json[key] = value;
  }
}

} // namespace

cost::Cluster cluster_from_json(const std::string& text, const std::string& origin) {
  return read_named(text, origin, cluster_of);
}

cost::Cluster load_cluster(const std::string& path) {
  return cluster_from_json(read_file(path), path);
}

std::string cluster_to_json(const cost::Cluster& cluster) {
  OrderedJson json;
  json["name"] = cluster.name;
  json["measured"] = cluster.measured;
  if (cluster.quality.rounds > 0) {
    const cost::ProbeQuality& quality = cluster.quality;
    json["probe"] = {
        {"rounds", quality.rounds},
        {"repeated", quality.repeated},
        {"compute_spread", quality.compute_spread},
        {"link_spread", quality.link_spread},
        {"collective_spread", quality.collective_spread}};
  }
  for (const cost::DeviceKind& kind : cluster.kinds) {
    json["devices"][kind.name] = to_json(kind);
  }
  json["nodes"] = OrderedJson::array();
  for (const cost::Node& node : cluster.nodes) {
    OrderedJson entry;
    entry["device"] = cluster.kinds.at(static_cast<std::size_t>(node.kind)).name;
    entry["count"] = node.count;
    if (!node.host.empty()) {
      entry["host"] = node.host;
    }
    put_if(entry, "intra_node_gbit_per_s", node.intra_bytes_per_s / kBytesPerGigabit);
    put_if(entry, "inter_node_gbit_per_s", node.inter_bytes_per_s / kBytesPerGigabit);
    put_if(entry, "cores", node.cores);
    put_if(entry, "latency_us", node.latency_seconds * 1e6);
    json["nodes"].push_back(entry);
  }
  for (const cost::NodeLink& link : cluster.links) {
    OrderedJson entry;
    entry["nodes"] = {link.first, link.second};
    entry["gbit_per_s"] = link.bytes_per_s / kBytesPerGigabit;
    put_if(entry, "latency_us", link.latency_seconds * 1e6);
    json["links"].push_back(entry);
  }
  for (const cost::CollectiveTime& one : cluster.collectives) {
    OrderedJson entry;
    entry["operation"] = one.operation;
    entry["ranks"] = one.ranks;
    entry["nodes"] = one.nodes;
    entry["bytes"] = one.bytes;
    entry["seconds"] = one.seconds;
    json["collectives"].push_back(entry);
  }
  return json.dump(1) + "\n";
}

} // namespace tessera::planner
