#include "models/data/encoder.h"

#include <algorithm>
#include <exception>
#include <thread>

namespace tessera::data {

Encoder::Encoder(std::string_view model, const std::string& name, int threads) {
  for (int i = 0; i < std::max(1, threads); ++i) {
    tokenizers_.push_back(Tokenizer::from_bytes(model, name));
  }
}

std::vector<std::vector<std::int32_t>> Encoder::encode(const std::vector<Section>& sections) const {
  std::vector<std::vector<std::int32_t>> ids(sections.size());
  std::vector<std::exception_ptr> errors(sections.size());
  const auto work = [&](std::size_t first) {
    for (std::size_t i = first; i < sections.size(); i += tokenizers_.size()) {
      try {
        ids[i] = tokenizers_[first].encode(sections[i].text);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < tokenizers_.size(); ++i) {
      others.emplace_back(work, i);
    }
    work(0);
  }
  for (const auto& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
  return ids;
}

} // namespace tessera::data
