#include "tessera/planner/description.h"

#include "tessera/base/files.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/schema.h"
#include "tessera/planner/cluster_form.h"
#include "tessera/planner/model_form.h"

namespace tessera::planner {

namespace {

/// Reads and validates a value; every error begins with `origin`.
template <typename T>
T described(const std::string& text, const std::string& origin) {
  const T value = form::read_text<T, ConfigError>(text, origin);
  try {
    cost::validate(value);
  } catch (const ConfigError& error) {
    throw ConfigError(str(origin, ": ", error.what()));
  }
  return value;
}

} // namespace

cost::DescribedModel model_from_json(const std::string& text, const std::string& origin) {
  return described<cost::DescribedModel>(text, origin);
}

cost::DescribedModel load_model(const std::string& path) {
  return model_from_json(read_file(path), path);
}

cost::Cluster cluster_from_json(const std::string& text, const std::string& origin) {
  return described<cost::Cluster>(text, origin);
}

cost::Cluster load_cluster(const std::string& path) {
  return cluster_from_json(read_file(path), path);
}

std::string cluster_to_json(const cost::Cluster& cluster) {
  return form::write(cluster).dump(1) + "\n";
}

std::string schema() {
  OrderedJson definitions = OrderedJson::object();
  const OrderedJson model = form::schema_of<cost::DescribedModel>({.name = ""}, definitions);
  const OrderedJson cluster = form::schema_of<cost::Cluster>({.name = ""}, definitions);
  OrderedJson schema;
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "What tessera plan reads: a described model and a described cluster";
  schema["anyOf"] = OrderedJson::array({model, cluster});
  schema["$defs"] = std::move(definitions);
  return schema.dump(2) + "\n";
}

} // namespace tessera::planner
