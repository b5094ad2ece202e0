#include "tessera/tracer/member_read.h"

#include "tessera/base/error.h"

namespace tessera::tracer {

namespace {

int rank_of(std::string path, const std::map<std::string, int>& partition) {
  while (!path.empty()) {
    const auto entry = partition.find(path);
    if (entry != partition.end()) {
      return entry->second;
    }
    const std::size_t dot = path.rfind('.');
    path = dot == std::string::npos ? std::string() : path.substr(0, dot);
  }
  return 0;
}

} // namespace

void check_member_reads(
    const std::vector<MemberRead>& reads,
    const std::map<std::string, int>& partition) {
  for (const MemberRead& read : reads) {
    const int holder = rank_of(read.holder, partition);
    const int reader = rank_of(read.reader, partition);
    if (holder != reader) {
      throw UserError(
          str("the forward of ",
              read.name,
              " keeps a tensor in a member, which ",
              read.reader.empty() ? std::string("the model or the step function")
                                  : str("the forward of '", read.reader, "'"),
              " reads in ",
              read.op,
              ". Pipeline rank ",
              holder,
              " runs that forward, rank ",
              reader,
              " reads, and a member does not travel. Return the tensor as a further result of the "
              "forward, or compute there what is made of it and return that; or have both on one "
              "rank: config.partition[\"",
              read.holder,
              "\"] = ",
              reader,
              " in a partition of your own (auto_partition false)"));
    }
  }
}

} // namespace tessera::tracer
