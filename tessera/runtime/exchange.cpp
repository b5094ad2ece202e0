#include "tessera/runtime/exchange.h"

#include <utility>

#include "tessera/runtime/call_record.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/script_stream.h"
#include "tessera/runtime/server.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

DynamicExchange::DynamicExchange(
    Server& server,
    transport::Transport& transport,
    const std::vector<int>& pp_ranks)
    : server_(server), transport_(transport), pp_ranks_(pp_ranks) {}

c10::IValue DynamicExchange::body_for(int rank, const Content& content) {
  std::vector<c10::IValue> parts{cut(content.value), c10::IValue(content.needs_grad)};
  if (stream_ != nullptr) {
    parts.push_back(stream_->for_message_to(rank));
  }
  return c10::ivalue::Tuple::create(std::move(parts));
}

Content DynamicExchange::content_of(int rank, const c10::IValue& body) {
  const auto& parts = body.toTupleRef().elements();
  if (stream_ != nullptr) {
    stream_->take_from(rank, parts.at(2));
  }
  return {parts.at(0), parts.at(1).toStringRef()};
}

void DynamicExchange::request(Task& task, const Fields& fields, int owner, Content content) {
  (void)task;
  const int rank = pp_ranks_.at(owner);
  transport_.send(rank, to_header(fields), body_for(rank, content));
}

Content DynamicExchange::response(Task& task, const Fields& fields, int owner) {
  server_.wait_for_answer(task, fields, owner);
  const transport::Parcel parcel = *std::exchange(task.response, std::nullopt);
  if (from_header(parcel.header).failed != 0) {
    if (stream_ != nullptr) { // user code may catch it and draw on
      stream_->take_from(parcel.source, {});
    }
    throw FailedElsewhere(parcel.body.toStringRef());
  }
  return content_of(parcel.source, parcel.body);
}

Content DynamicExchange::arguments(Task& task) {
  return content_of(task.source, std::exchange(task.body, c10::IValue()));
}

void DynamicExchange::respond(Task& task, Content content) {
  Fields fields = task.request;
  fields.kind = Kind::kResponse;
  transport_.send(task.source, to_header(fields), body_for(task.source, content));
}

} // namespace tessera::runtime
