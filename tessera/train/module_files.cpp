#include "tessera/train/module_files.h"

#include "tessera/model/files.h"

namespace tessera {

void save_module(const Model& model, const std::string& path) {
  model::save_module(*model.core(), path);
}

void load_module(const Model& model, const std::string& path) {
  model::load_module(*model.core(), path);
}

} // namespace tessera
