#include "tessera/recompute/attentions.h"

#include <atomic>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "tessera/recompute/kept_products.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::recompute {

namespace {

std::atomic<bool> g_recomputed{false};
std::atomic<std::int64_t> g_run{0};

} // namespace

void set_attentions(bool recomputed) {
  g_recomputed = recomputed;
  g_run = 0;
}

bool attentions_recomputed() {
  return g_recomputed.load(std::memory_order_relaxed);
}

std::int64_t attentions_run() {
  return g_run.load(std::memory_order_relaxed);
}

at::Tensor
recompute_attention(std::string name, const std::vector<at::Tensor>& inputs, Attention attention) {
  if (at::GradMode::is_enabled()) {
    g_run.fetch_add(1, std::memory_order_relaxed);
  }
  Region region;
  region.name = std::move(name);
  region.trains = false;
  region.keeps_products = true; // no product, which is its result, but the mask of its dropout
  region.module = &g_run; // of no module, but one attention alone
  region.run = [attention = std::move(attention)](const c10::IValue& args) {
    const ReturnedCall returned(&g_run);
    return pack(returned.of(attention(unpack<std::vector<at::Tensor>>(args))));
  };
  return unpack<at::Tensor>(run(std::move(region), pack(inputs)));
}

} // namespace tessera::recompute
