#include "tessera/autograd/backward_pass.h"

namespace tessera {

namespace {
thread_local BackwardPass* t_pass = nullptr;
} // namespace

BackwardPass::BackwardPass() : previous_(t_pass) {
  t_pass = this;
}

BackwardPass::~BackwardPass() {
  t_pass = previous_;
}

BackwardPass* BackwardPass::current() {
  return t_pass;
}

} // namespace tessera
