#include "tessera/runtime/replay/value_signature.h"

#include <cmath>
#include <sstream>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

namespace {

std::string text_of_value(const c10::IValue& value) {
  std::ostringstream out;
  if (value.isString()) {
    out << '\'' << value.toStringRef() << '\'';
  } else {
    out << value;
  }
  return out.str();
}

bool same_plain(const c10::IValue& a, const c10::IValue& b) {
  if (a.isNone()) {
    return true;
  }
  if (a.isDouble() && std::isnan(a.toDouble())) {
    return std::isnan(b.toDouble());
  }
  try {
    return a.is(b) || a == b;
  } catch (const c10::Error&) {
    return false; // a kind that cannot be compared
  }
}

class SignatureComparison {
 public:
  explicit SignatureComparison(const std::vector<TensorSignature>& tensors) : tensors_(tensors) {}

  std::optional<std::string> operator()(const c10::IValue& form, const c10::IValue& value) {
    if (form.tagKind() != value.tagKind()) {
      return tessera::str("a ", value.tagKind(), " where a ", form.tagKind(), " was recorded");
    }
    if (form.isTensor()) {
      return tensor(value.toTensor());
    }
    if (form.isTuple()) {
      return list(form.toTupleRef().elements(), value.toTupleRef().elements(), "tuple");
    }
    if (form.isList()) {
      return list(form.toListRef(), value.toListRef(), "list");
    }
    if (form.isGenericDict()) {
      return dict(form.toGenericDict(), value.toGenericDict());
    }
    if (!same_plain(form, value)) {
      return tessera::str(
          text_of_value(value),
          " where ",
          text_of_value(form),
          " was recorded (give what changes as a tensor)");
    }
    return std::nullopt;
  }

 private:
  std::optional<std::string> tensor(const at::Tensor& tensor) {
    const TensorSignature& wanted = tensors_.at(at_++);
    const TensorSignature found(tensor);
    if (found.dtype != wanted.dtype || found.sizes != wanted.sizes) {
      return tessera::str(
          "tensor ", at_ - 1, " is ", to_text(found), " where ", to_text(wanted), " was recorded");
    }
    return std::nullopt;
  }

  template <typename Elements>
  std::optional<std::string> list(const Elements& form, const Elements& value, const char* kind) {
    if (form.size() != value.size()) {
      return tessera::str(
          "a ", kind, " of ", value.size(), " where one of ", form.size(), " was recorded");
    }
    for (std::size_t i = 0; i < form.size(); ++i) {
      if (auto text = (*this)(form[i], value[i])) {
        return text;
      }
    }
    return std::nullopt;
  }

  std::optional<std::string> dict(
      const c10::impl::GenericDict& form,
      const c10::impl::GenericDict& value) {
    if (form.size() != value.size()) {
      return tessera::str(
          "a dict of ", value.size(), " where one of ", form.size(), " was recorded");
    }
    // Order of insertion, which is also the order of tensors.
    auto entry = value.begin();
    for (const auto& wanted : form) {
      if (!same_plain(wanted.key(), entry->key())) {
        return tessera::str(
            "key ",
            text_of_value(entry->key()),
            " where ",
            text_of_value(wanted.key()),
            " was recorded");
      }
      if (auto text = (*this)(wanted.value(), entry->value())) {
        return text;
      }
      ++entry;
    }
    return std::nullopt;
  }

  const std::vector<TensorSignature>& tensors_;
  std::size_t at_ = 0;
};

} // namespace

TensorSignature::TensorSignature(const at::Tensor& tensor)
    : dtype(tensor.scalar_type()), device(tensor.device().type()), sizes(tensor.sizes().vec()) {}

std::int64_t TensorSignature::bytes() const {
  return c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(dtype));
}

at::Tensor TensorSignature::meta_tensor() const {
  return at::empty(sizes, at::dtype(dtype).device(at::kMeta));
}

std::string to_text(const TensorSignature& form) {
  std::string sizes;
  for (const std::int64_t size : form.sizes) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  return tessera::str(dtype_name(form.dtype), " [", sizes, "]");
}

ValueSignature::ValueSignature(const c10::IValue& value) {
  const at::Tensor empty = at::empty({0});
  structure_ = map_tensors(value, [&](const at::Tensor& tensor) {
    tensors_.emplace_back(tensor);
    return empty;
  });
}

std::optional<std::string> ValueSignature::difference(const c10::IValue& value) const {
  return SignatureComparison(tensors_)(structure_, value);
}

std::optional<std::string> ValueSignature::difference(const ValueSignature& other) const {
  std::vector<at::Tensor> metas;
  for (const TensorSignature& form : other.tensors_) {
    metas.push_back(form.meta_tensor());
  }
  return difference(other.filled(metas));
}

c10::IValue ValueSignature::filled(const std::vector<at::Tensor>& tensors) const {
  TESSERA_CHECK(tensors.size() == tensors_.size());
  std::size_t at = 0;
  return map_tensors(structure_, [&](const at::Tensor&) { return tensors[at++]; });
}

} // namespace tessera::runtime
