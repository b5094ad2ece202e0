#include "tessera/tracer/state_watch.h"

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/module.h"
#include "tessera/tracer/object_bytes.h"
#include "tessera/tracer/trace.h"

namespace tessera::tracer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Names = std::vector<std::string>;

struct KeeperImpl : torch::nn::Module {
  explicit KeeperImpl(std::string kind_) : kind(std::move(kind_)) {
    inner = register_module("inner", nn::Linear(4, 4));
    buffer = register_buffer("buffer", torch::zeros({4}));
  }
  torch::Tensor forward(torch::Tensor x) {
    if (kind == "assigns") {
      const torch::Tensor y = inner(x) + state;
      state = y.mean(0).detach();
      return y;
    }
    if (kind == "stashes") {
      state = x;
      return inner(x) + state;
    }
    if (kind == "takes back") {
      taken = true;
      const torch::Tensor y = inner(x);
      taken = false;
      return y;
    }
    if (kind == "counts") {
      return inner(x) * ++count;
    }
    if (kind == "writes") {
      const torch::Tensor y = inner(x) + state;
      state.copy_(y.mean(0));
      return y;
    }
    if (kind == "writes a view") {
      const torch::Tensor y = inner(x) + state;
      state[0].add_(1);
      return y;
    }
    if (kind == "buffer") {
      buffer.add_(1);
    }
    torch::Tensor local = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F});
    local.mul_(2).unsqueeze_(0);
    return inner(x + local);
  }
  std::string kind;
  nn::Linear inner{nullptr};
  torch::Tensor buffer;
  torch::Tensor state = torch::zeros({4});
  int count = 0;
  bool taken = false;
};
TESSERA_MODULE(Keeper);

struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(const std::string& kind) {
    keeper = register_module("keeper", Keeper(kind));
    layers = register_module(
        "layers",
        nn::Sequential(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.5), nn::ReLU()));
    memory = register_module("memory", torch::nn::LSTM(4, 4));
  }
  torch::Tensor forward(torch::Tensor x) {
    return std::get<0>(memory->forward(layers(keeper(x)).unsqueeze(0)));
  }
  Keeper keeper{nullptr};
  nn::Sequential layers{nullptr};
  torch::nn::LSTM memory{nullptr};
};
TESSERA_MODULE(Outer);

Names kept_by(Outer& net, bool refuse = false) {
  TraceOptions options;
  options.refuse_carried_state = refuse;
  const torch::Tensor x = torch::ones({2, 4});
  return trace_models(
             {{net.ptr().get(), "net"}}, [&]() -> c10::IValue { return net(x.clone()); }, options)
      .front()
      .keeps_state;
}

std::string refusal_of(const std::string& kind) {
  torch::manual_seed(1);
  Outer net(kind);
  try {
    kept_by(net, true);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

TEST(StateWatch, FindsWhatAForwardKeepsInAMember) {
  for (const char* kind :
       {"assigns", "stashes", "takes back", "counts", "writes", "writes a view"}) {
    SCOPED_TRACE(kind);
    Outer net(kind);
    EXPECT_THAT(kept_by(net), ElementsAre("'keeper' (Keeper)"));
  }
}

TEST(StateWatch, LocalsBuffersAndLayersKeepNothing) {
  for (const char* kind : {"nothing", "buffer"}) {
    SCOPED_TRACE(kind);
    Outer net(kind);
    EXPECT_THAT(kept_by(net), IsEmpty());
  }
}

TEST(StateWatch, PutsBackWhatOperatorsWrite) {
  for (const char* kind : {"writes", "writes a view"}) {
    SCOPED_TRACE(kind);
    Outer net(kind);
    const torch::Tensor state = net->keeper->state;
    kept_by(net);
    EXPECT_TRUE(net->keeper->state.is_same(state));
    EXPECT_TRUE(state.equal(torch::zeros({4})));
    EXPECT_EQ(refusal_of(kind), "");
  }
}

TEST(StateWatch, PutsBackWhatWasWrittenBeforeAnError) {
  Outer net("writes");
  const torch::Tensor x = torch::ones({2, 4});
  const auto fails = [&]() -> c10::IValue {
    net(x.clone());
    throw std::runtime_error("user");
  };
  EXPECT_THROW(trace_models({{net.ptr().get(), "net"}}, fails, {}), std::runtime_error);
  EXPECT_TRUE(net->keeper->state.equal(torch::zeros({4})));
}

TEST(StateWatch, RefusesStateThatThePassHasChanged) {
  for (const char* kind : {"assigns", "counts"}) {
    SCOPED_TRACE(kind);
    const std::string text = refusal_of(kind);
    EXPECT_THAT(text, HasSubstr("'keeper' (Keeper)"));
    EXPECT_THAT(text, HasSubstr("register_buffer"));
    EXPECT_THAT(text, HasSubstr("skip_tracing"));
  }
  for (const char* kind : {"stashes", "takes back", "nothing", "buffer"}) {
    SCOPED_TRACE(kind);
    EXPECT_EQ(refusal_of(kind), "");
  }
}

// What a module keeps for others: they read it past its calls.
struct ShowsImpl : torch::nn::Module {
  explicit ShowsImpl(bool returns) : returns(returns) {
    inner = register_module("inner", nn::Linear(4, 4));
  }
  torch::Tensor forward(torch::Tensor x) {
    input = x;
    weights = torch::softmax(inner(x), -1);
    return returns ? weights : weights * 2;
  }
  bool returns;
  nn::Linear inner{nullptr};
  torch::Tensor input, weights;
};
TESSERA_MODULE(Shows);

struct LooksImpl : torch::nn::Module {
  explicit LooksImpl(bool returns) {
    shows = register_module("shows", Shows(returns));
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = shows(x);
    return y + shows->weights.mean() + x;
  }
  Shows shows{nullptr};
};
TESSERA_MODULE(Looks);

TEST(StateWatch, SeesWhoReadsAMemberThatDoesNotTravel) {
  const auto reads_of = [](bool returns, bool step_reads) {
    Looks net(returns);
    return trace_models(
               {{net.ptr().get(), "net"}},
               [&]() -> c10::IValue {
                 const torch::Tensor y = net(torch::ones({2, 4}));
                 return step_reads ? y + net->shows->weights.sum() : y;
               })
        .front()
        .member_reads;
  };
  EXPECT_THAT(reads_of(true, true), IsEmpty()); // results and arguments are the caller's too
  const auto reads = reads_of(false, true);
  ASSERT_EQ(reads.size(), 2U); // of the model's forward, and of the step function
  EXPECT_EQ(reads.front().holder, "shows");
  EXPECT_EQ(reads.front().op, "aten::mean");
  EXPECT_NO_THROW(check_member_reads(reads, {{"shows", 0}}));
  try {
    check_member_reads(reads, {{"shows", 1}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'shows' (Shows) keeps a tensor in a member"));
    EXPECT_THAT(error.what(), HasSubstr("aten::mean"));
  }
}

// A plain class is the root: a DistributedModel says how large it is.
struct PlainRoot : torch::nn::Module {
  torch::Tensor encode(const torch::Tensor& x) {
    state = x;
    return torch::tanh(state);
  }
  torch::Tensor state;
};

TEST(StateWatch, ARootWithoutHolderIsWatchedInItsMethods) {
  const auto root = std::make_shared<PlainRoot>();
  const auto kept = [&] {
    return trace_models(
               {{root.get(), "root"}},
               [&]() -> c10::IValue { return root->encode(torch::ones({2})); })
        .front()
        .keeps_state;
  };
  EXPECT_THAT(kept(), IsEmpty()); // nothing is known of it
  nn::remember_object_size(root, sizeof(PlainRoot));
  EXPECT_THAT(kept(), ElementsAre("the model (PlainRoot)"));
}

TEST(ObjectBytes, SeesMembersInThePaddingOfTheBase) {
  struct Flag : torch::nn::Module {
    bool flag = false;
  };
  const auto module = std::make_shared<Flag>();
  nn::remember_object_size(module, sizeof(Flag));
  const ObjectBytes before(*module);
  module->eval();
  module->register_buffer("buffer", torch::zeros({1}));
  EXPECT_FALSE(before.changed());
  module->flag = true;
  EXPECT_TRUE(before.changed());
}

} // namespace
} // namespace tessera::tracer
