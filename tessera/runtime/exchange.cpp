#include "tessera/runtime/exchange.h"

#include <utility>

#include "tessera/runtime/call_record.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/server.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

namespace {

c10::IValue body_of(const Content& content) {
  return c10::ivalue::Tuple::create({cut(content.value), c10::IValue(content.needs_grad)});
}

Content content_of(const c10::IValue& body) {
  const auto& parts = body.toTupleRef().elements();
  return {parts.at(0), parts.at(1).toStringRef()};
}

} // namespace

DynamicExchange::DynamicExchange(
    Server& server,
    transport::Transport& transport,
    const std::vector<int>& pp_ranks)
    : server_(server), transport_(transport), pp_ranks_(pp_ranks) {}

void DynamicExchange::request(Task& task, const Fields& fields, int owner, Content content) {
  (void)task;
  transport_.send(pp_ranks_.at(owner), to_header(fields), body_of(content));
}

Content DynamicExchange::response(Task& task, const Fields& fields, int owner) {
  server_.wait_for_answer(task, fields, owner);
  const transport::Parcel parcel = *std::exchange(task.response, std::nullopt);
  if (from_header(parcel.header).failed != 0) {
    throw FailedElsewhere(parcel.body.toStringRef());
  }
  return content_of(parcel.body);
}

Content DynamicExchange::arguments(Task& task) {
  return content_of(std::exchange(task.body, c10::IValue()));
}

void DynamicExchange::respond(Task& task, Content content) {
  Fields fields = task.request;
  fields.kind = Kind::kResponse;
  transport_.send(task.source, to_header(fields), body_of(content));
}

} // namespace tessera::runtime
