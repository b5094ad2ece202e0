#include "tessera/tessera.h"

int main() {
  tessera::init(tessera::Config{});
  torch::nn::Linear linear(4, 2);
  const bool whole = linear->weight.numel() == 8 && tessera::size() == 1;
  tessera::shutdown();
  return whole ? 0 : 1;
}
