#include "cli/interruption.h"

namespace tessera::cli {

namespace {

std::atomic<bool> g_interrupted{false};

extern "C" void on_interrupt(int /*signal*/) {
  g_interrupted.store(true);
}

} // namespace

Interruption::Interruption() {
  g_interrupted.store(false);
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_);
}

Interruption::~Interruption() {
  sigaction(SIGINT, &before_, nullptr);
}

const std::atomic<bool>& Interruption::asked() const {
  return g_interrupted;
}

} // namespace tessera::cli
