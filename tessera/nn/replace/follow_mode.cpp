#include "tessera/nn/replace/follow_mode.h"

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/module/marks.h"

namespace tessera::nn {

namespace {

constexpr const char* kListener = "tessera_mode";

/// What the original and its parts were told since the original was told as a whole.
struct Modes {
  std::weak_ptr<torch::nn::Module> replacement;
  std::map<std::string, bool> of_parts;
};

class ModeListener : public torch::nn::Module {
 public:
  ModeListener(std::shared_ptr<Modes> modes, std::function<void(Modes&, bool)> told)
      : modes_(std::move(modes)), told_(std::move(told)) {}

  void train(bool on) override {
    torch::nn::Module::train(on);
    told_(*modes_, on);
  }
  /// A file of the original is that of a module which nobody listens to.
  bool is_serializable() const override {
    return false;
  }
  const Modes& modes() const {
    return *modes_;
  }

 private:
  std::shared_ptr<Modes> modes_;
  std::function<void(Modes&, bool)> told_;
};

/// Last of the children, so that the parts inside have been told when the listener is.
void listen(torch::nn::Module& module, const std::shared_ptr<ModeListener>& listener) {
  if (module.named_children().contains(kListener)) {
    module.replace_module(kListener, listener); // of a model before this one
  } else {
    module.register_module(kListener, listener);
  }
}

bool is_listener(const torch::nn::Module& module) {
  return dynamic_cast<const ModeListener*>(&module) != nullptr;
}

const char* mode_text(bool training) {
  return training ? "train()" : "eval()";
}

} // namespace

void follow_mode(
    const std::shared_ptr<torch::nn::Module>& original,
    const std::shared_ptr<torch::nn::Module>& replacement) {
  auto modes = std::make_shared<Modes>();
  modes->replacement = replacement;
  for (const auto& item : original->named_modules("", /*include_self=*/false)) {
    const std::string& path = item.key();
    if (is_listener(*item.value())) {
      continue;
    }
    if (item.value()->is_training() != original->is_training()) {
      modes->of_parts.emplace(path, item.value()->is_training());
    }
    listen(*item.value(), std::make_shared<ModeListener>(modes, [path](Modes& all, bool on) {
      all.of_parts.insert_or_assign(path, on);
    }));
  }
  listen(*original, std::make_shared<ModeListener>(modes, [](Modes& all, bool on) {
    all.of_parts.clear();
    if (const auto live = all.replacement.lock()) {
      live->train(on);
    }
  }));
}

void check_mode(const torch::nn::Module& original, const std::string& path) {
  const auto children = original.named_children();
  const auto* found = children.find(kListener);
  if (found == nullptr) {
    return;
  }
  const auto* listener = dynamic_cast<const ModeListener*>(found->get());
  const auto replacement = listener == nullptr ? nullptr : listener->modes().replacement.lock();
  if (replacement == nullptr) {
    return;
  }
  for (const auto& [part, training] : listener->modes().of_parts) {
    if (training != replacement->is_training()) {
      const std::string whole = path.empty() ? str("the model") : str("'", path, "'");
      throw UserError(
          str("'",
              part,
              "' was told ",
              mode_text(training),
              ", and it is inside ",
              whole,
              " (",
              type_name(original),
              "), which is one distributed module and is in ",
              mode_text(replacement->is_training()),
              " as a whole; say it of ",
              whole,
              ", or mark the modules inside one by one"));
    }
  }
}

} // namespace tessera::nn
