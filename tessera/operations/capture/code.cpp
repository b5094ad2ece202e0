#include "tessera/operations/capture/code.h"

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"

namespace tessera::operations {

namespace {

enum Tag : std::int64_t { kValue, kUndefined, kList, kPlain, kDevice };

c10::IValue tagged(Tag tag, c10::IValue content) {
  return tessera::detail::make_tuple_value({c10::IValue(std::int64_t{tag}), std::move(content)});
}

Tag tag_of(const c10::IValue& code) {
  return static_cast<Tag>(code.toTupleRef().elements()[0].toInt());
}

const c10::IValue& content_of(const c10::IValue& code) {
  return code.toTupleRef().elements()[1];
}

const auto& elements_of(const c10::IValue& code) {
  return content_of(code).toTupleRef().elements();
}

c10::TypePtr element_type_of(const c10::TypePtr& type) {
  c10::TypePtr list = type;
  if (const auto optional = type->cast<c10::OptionalType>()) {
    list = optional->getElementType();
  }
  const c10::TypePtr element = list->expectRef<c10::ListType>().getElementType();
  return element->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get()) : element;
}

} // namespace

c10::IValue encode(
    const c10::IValue& value,
    const std::function<int(const at::Tensor&)>& number_of) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? tagged(kValue, std::int64_t{number_of(value.toTensor())})
                                      : tagged(kUndefined, {});
  }
  if (value.isList()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toListRef()) {
      elements.push_back(encode(element, number_of));
    }
    return tagged(kList, tessera::detail::make_tuple_value(std::move(elements)));
  }
  if (value.isDevice()) {
    return tagged(kDevice, value.toDevice().str());
  }
  if (value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isString()) {
    return tagged(kPlain, value);
  }
  throw UserError(
      str("an argument of type ",
          value.tagKind(),
          " cannot be sent to the rank that runs the operator"));
}

c10::IValue decode(
    const c10::IValue& code,
    const c10::TypePtr& type,
    const std::function<at::Tensor(int)>& tensor_of) {
  switch (tag_of(code)) {
    case kValue:
      return tensor_of(static_cast<int>(content_of(code).toInt()));
    case kUndefined:
      return at::Tensor();
    case kPlain:
      return content_of(code);
    case kDevice:
      return at::Device(content_of(code).toStringRef());
    case kList:
      break;
  }
  const c10::TypePtr element_type = element_type_of(type);
  c10::impl::GenericList list(element_type);
  for (const c10::IValue& element : elements_of(code)) {
    list.push_back(decode(element, element_type, tensor_of));
  }
  return list;
}

void for_each_number(const c10::IValue& code, const std::function<void(int)>& visit) {
  if (tag_of(code) == kValue) {
    visit(static_cast<int>(content_of(code).toInt()));
  } else if (tag_of(code) == kList) {
    for (const c10::IValue& element : elements_of(code)) {
      for_each_number(element, visit);
    }
  }
}

void for_each_number(
    const c10::IValue& code,
    const c10::IValue& value,
    const std::function<void(int, const at::Tensor&)>& visit) {
  if (tag_of(code) == kValue) {
    visit(static_cast<int>(content_of(code).toInt()), value.toTensor());
  } else if (tag_of(code) == kList) {
    const auto& codes = elements_of(code);
    const auto values = value.toListRef();
    TESSERA_CHECK(codes.size() == values.size(), "a list of another length");
    for (std::size_t i = 0; i < codes.size(); ++i) {
      for_each_number(codes[i], values[i], visit);
    }
  }
}

} // namespace tessera::operations
