#include "tessera/runtime/request_exchange.h"

#include <utility>

#include "tessera/runtime/call_record.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/random_count.h"

namespace tessera::runtime {

c10::IValue RequestExchange::body_for(int rank, const Content& content) {
  std::vector<c10::IValue> parts{
      detached(content.value),
      c10::IValue(content.requires_grad.to_text()),
      c10::IValue(content.shared.to_text())};
  if (stream_ != nullptr) {
    parts.push_back(stream_->for_message_to(rank));
  }
  return c10::ivalue::Tuple::create(std::move(parts));
}

Content RequestExchange::content_of(int rank, const c10::IValue& body) {
  const auto& parts = body.toTupleRef().elements();
  if (stream_ != nullptr) {
    stream_->take_from(rank, parts.at(3));
  }
  return {
      parts.at(0),
      RequiresGradMask::from_text(parts.at(1).toStringRef()),
      SharedMemory::from_text(parts.at(2).toStringRef())};
}

void RequestExchange::request(Task&, const Fields& fields, int owner, Content content) {
  const int rank = context_.pp_ranks.at(owner);
  context_.transport->send(rank, to_header(fields), body_for(rank, content));
}

Content RequestExchange::response(Task& task, const Fields& fields, int owner) {
  control_.wait_for_answer(task, fields, context_.pp_ranks.at(owner));
  const transport::Parcel parcel = *std::exchange(task.response, std::nullopt);
  const Fields answer = from_header(parcel.header);
  take_count(answer); // also of an error: user code may catch it and draw on
  if (answer.failed) {
    if (stream_ != nullptr) { // user code may catch it and draw on
      stream_->take_from(parcel.source, {});
    }
    throw FailedElsewhere(parcel.body.toStringRef());
  }
  return content_of(parcel.source, parcel.body);
}

Content RequestExchange::arguments(Task& task) {
  return content_of(task.source, std::exchange(task.body, c10::IValue()));
}

void RequestExchange::respond(Task& task, Content content) {
  Fields fields = task.request;
  fields.kind = ServerMessage::kResponse;
  put_count(fields);
  context_.transport->send(task.source, to_header(fields), body_for(task.source, content));
}

void RequestExchange::respond_failure(Task& task, std::string text) {
  Fields fields = task.request;
  fields.kind = ServerMessage::kResponse;
  fields.failed = true;
  put_count(fields);
  context_.transport->send(task.source, to_header(fields), c10::IValue(std::move(text)));
}

} // namespace tessera::runtime
