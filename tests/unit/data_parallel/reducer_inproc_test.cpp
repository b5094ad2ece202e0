#include <gmock/gmock.h>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/data_parallel/gradient_reducer.h"

#include "tests/unit/runtime/pipeline.h"

namespace tessera::data_parallel::testing {
namespace {

using runtime::testing::on_ranks;
using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// One rank of two: parameters 0 .. 3 of ten elements each, in two columns.
struct Replica {
  Replica(comm::World& world, GradientReducer::Options options) {
    for (int i = 0; i < 4; ++i) {
      parameters.emplace_back(str("p", i), torch::ones({5, 2}).requires_grad_());
    }
    group = world.new_group("dp", {0, 1});
    control = world.new_group("control", {0, 1});
    reducer = std::make_unique<GradientReducer>(world, *group, *control, parameters, options);
  }
  // Adds `factor` to the gradient of parameter `i`.
  void add(int i, double factor) {
    (parameters[i].second * factor).sum().backward();
  }
  // The same by a product, whose part is added in place.
  void add_by_product(int i, double factor) {
    const WeightGradientScope in_place;
    const auto sum = at::full({1, 5}, factor).mm(parameters[i].second).sum();
    const WeightGradientPass pass({sum});
    sum.backward();
  }
  const void* place(int i) const {
    return parameters[i].second.grad().data_ptr();
  }
  double gradient(int i) const {
    const auto& grad = parameters[i].second.grad();
    return grad.defined() ? grad.mean().item<double>() : -1;
  }
  void zero() {
    for (auto& [name, parameter] : parameters) {
      parameter.mutable_grad() = at::Tensor();
    }
  }
  Parameters parameters;
  comm::ProcessGroupPtr group;
  comm::ProcessGroupPtr control;
  std::unique_ptr<GradientReducer> reducer;
};

void on_replicas(const std::function<void(Replica&, int rank)>& body) {
  auto worlds = comm::inproc_worlds(2, {});
  GradientReducer::Options options;
  options.bucket_bytes = 80; // two parameters
  on_ranks(2, [&](int rank) {
    Replica replica(*worlds[rank], options);
    body(replica, rank);
  });
}

TEST(GradientReducer, AveragesWhatAnyRankHas) {
  on_replicas([](Replica& replica, int rank) {
    for (int step = 0; step < 4; ++step) {
      replica.zero();
      replica.reducer->begin(true);
      replica.add(0, 2 * rank);
      replica.add(1, 1);
      if (rank == step % 2) {
        replica.add(2, 4); // now here, now there
      }
      if (step == 2) {
        replica.add(0, 10); // more often than in the step before
      }
      EXPECT_TRUE(replica.reducer->finish({}));
      EXPECT_FLOAT_EQ(replica.gradient(0), step == 2 ? 11 : 1);
      EXPECT_FLOAT_EQ(replica.gradient(1), 1);
      EXPECT_FLOAT_EQ(replica.gradient(2), 2);
      EXPECT_EQ(replica.gradient(3), -1); // none has one: stays without
    }
  });
}

TEST(GradientReducer, AHandleTakenInOneStepKeepsItsValuesInTheNext) {
  on_replicas([](Replica& replica, int rank) {
    std::vector<at::Tensor> handles;
    for (int step = 0; step < 4; ++step) {
      if (step < 2) {
        replica.zero();
      } else { // as a script that keeps the memory of its gradients
        for (auto& [name, parameter] : replica.parameters) {
          if (parameter.grad().defined()) {
            parameter.mutable_grad().detach_().zero_();
          }
        }
      }
      replica.reducer->begin(true);
      replica.add(0, 2 * rank + step);
      replica.add(1, 3);
      replica.reducer->finish({});
      EXPECT_FLOAT_EQ(replica.gradient(0), 1 + step);
      EXPECT_FLOAT_EQ(replica.gradient(1), 3);
      handles.push_back(replica.parameters[0].second.grad());
      if (step == 1) {
        EXPECT_FLOAT_EQ(handles[0].mean().item<float>(), 1);
      }
    }
    // This rank's own gradient was added to the zeroed handle.
    EXPECT_FLOAT_EQ(handles[2].mean().item<float>(), 2 * rank + 3);
    EXPECT_FLOAT_EQ(handles[3].mean().item<float>(), 4);
  });
}

// As a script that zeroes its gradients in place: from then on they lie in the
// buckets, and no step moves them.
TEST(GradientReducer, GradientsTravelWhereTheyLie) {
  on_replicas([](Replica& replica, int rank) {
    const void* place = nullptr;
    for (int step = 0; step < 5; ++step) {
      for (auto& [name, parameter] : replica.parameters) {
        if (parameter.grad().defined()) {
          parameter.mutable_grad().zero_();
        }
      }
      replica.reducer->begin(true);
      replica.add(0, 2 * rank + step);
      replica.add(1, 3);
      if (step == 3) {
        replica.add(0, 6 * rank); // after its bucket has left
      }
      replica.reducer->finish({});
      EXPECT_FLOAT_EQ(replica.gradient(0), 1 + step + (step == 3 ? 3 : 0));
      EXPECT_FLOAT_EQ(replica.gradient(1), 3);
      EXPECT_EQ(replica.gradient(2), -1);
      const void* now = replica.parameters[0].second.grad().data_ptr();
      if (step > 1) { // buckets are made anew after the first step
        EXPECT_EQ(now, place) << "step " << step;
      }
      place = now;
    }
  });
}

// As a script that drops its gradients: a product makes the next step's where
// they will travel, unless the script still looks at those of the step before.
TEST(GradientReducer, ProductsMakeGradientsWhereTheyTravel) {
  on_replicas([](Replica& replica, int rank) {
    const void* place = nullptr;
    at::Tensor handle;
    for (int step = 0; step < 7; ++step) {
      replica.zero();
      replica.reducer->begin(true);
      replica.add_by_product(1, 2 * rank + step);
      const void* made = replica.place(1);
      if (step == 5) {
        EXPECT_NE(made, place);
      } else if (step > 1) { // buckets are made anew after the first step
        EXPECT_EQ(made, place) << "step " << step;
      }
      replica.add(0, 3); // put beside it
      if (step == 3) {
        replica.add_by_product(1, 6 * rank); // after its bucket has left
      }
      replica.reducer->finish({});
      EXPECT_FLOAT_EQ(replica.gradient(0), 3);
      EXPECT_FLOAT_EQ(replica.gradient(1), 1 + step + (step == 3 ? 3 : 0));
      EXPECT_EQ(replica.gradient(2), -1); // nothing arrived: none is made
      place = replica.place(1);
      if (step == 4) {
        handle = replica.parameters[1].second.grad();
      } else if (step == 5) {
        EXPECT_FLOAT_EQ(handle.mean().item<float>(), 5);
        handle = at::Tensor();
      }
    }
  });
}

TEST(GradientReducer, OneRanksFailureIsEverybodys) {
  on_replicas([](Replica& replica, int rank) {
    for (int step = 0; step < 4; ++step) {
      replica.zero();
      replica.reducer->begin(true);
      replica.add(3, 1);
      if (step % 2 == 1 && rank == 1) { // before its other gradients
        EXPECT_THROW(replica.reducer->finish("rank 1: fault"), UserError);
        continue;
      }
      for (int i = 0; i < 3; ++i) {
        replica.add(i, 1);
      }
      if (step % 2 == 0) {
        EXPECT_TRUE(replica.reducer->finish({}));
        EXPECT_FLOAT_EQ(replica.gradient(0), 1);
        continue;
      }
      try {
        replica.reducer->finish({});
        ADD_FAILURE() << "no error";
      } catch (const UserError& error) {
        EXPECT_STREQ(error.what(), "rank 1: fault");
      }
    }
  });
}

TEST(GradientReducer, GradientsAddUpWhenNotReduced) {
  on_replicas([](Replica& replica, int rank) {
    replica.reducer->begin(false);
    replica.add(0, rank);
    EXPECT_TRUE(replica.reducer->finish({}));
    EXPECT_FLOAT_EQ(replica.gradient(0), rank);
    replica.reducer->begin(true);
    replica.add(0, 1);
    EXPECT_TRUE(replica.reducer->finish({}));
    EXPECT_FLOAT_EQ(replica.gradient(0), 1.5);
    replica.reducer->begin(true); // no backward at all
    EXPECT_FALSE(replica.reducer->finish({}));
  });
}

TEST(GradientReducer, ThawedParametersAreAveraged) {
  on_replicas([](Replica& replica, int rank) {
    replica.parameters[1].second.requires_grad_(false);
    for (int step = 0; step < 4; ++step) {
      replica.zero();
      replica.parameters[1].second.requires_grad_(step >= 2);
      replica.reducer->begin(true);
      replica.add(0, 1);
      if (step >= 2) {
        replica.add(1, 2 * rank);
      }
      EXPECT_TRUE(replica.reducer->finish({}));
      EXPECT_FLOAT_EQ(replica.gradient(1), step >= 2 ? 1 : -1);
    }
  });
}

/// A gradient of parameter 2 that names `row` twice and adds `value` there each time.
at::Tensor sparse_row(int row, double value) {
  return torch::sparse_coo_tensor(
      torch::full({1, 2}, row, torch::kLong), torch::full({2, 2}, value), {5, 2});
}

at::Tensor dense_rows(const std::vector<double>& values) {
  at::Tensor rows = torch::zeros({5, 2});
  for (std::size_t i = 0; i < values.size(); ++i) {
    rows[static_cast<std::int64_t>(i)].fill_(values[i]);
  }
  return rows;
}

TEST(GradientReducer, SparseGradientsAreAveragedByRows) {
  on_replicas([](Replica& replica, int rank) {
    for (int step = 0; step < 3; ++step) {
      replica.zero();
      replica.reducer->begin(true);
      replica.add(0, 1);
      replica.add(3, 2 * rank);
      replica.parameters[2].second.mutable_grad() = sparse_row(3 * rank, 1 + rank + step);
      EXPECT_TRUE(replica.reducer->finish({}));
      const at::Tensor& got = replica.parameters[2].second.grad();
      ASSERT_TRUE(got.is_sparse());
      EXPECT_TRUE(got.is_coalesced());
      EXPECT_EQ(got._nnz(), 2);
      EXPECT_TRUE(got.to_dense().equal(dense_rows({1.0 + step, 0, 0, 2.0 + step})));
      EXPECT_FLOAT_EQ(replica.gradient(0), 1);
      EXPECT_FLOAT_EQ(replica.gradient(3), 1);
    }
  });
}

TEST(GradientReducer, ARankWithoutItsSparseGradientGetsTheOthers) {
  on_replicas([](Replica& replica, int rank) {
    replica.reducer->begin(true);
    replica.add(0, 1);
    if (rank == 1) {
      replica.parameters[2].second.mutable_grad() = sparse_row(1, 4);
    }
    EXPECT_TRUE(replica.reducer->finish({}));
    EXPECT_TRUE(replica.parameters[2].second.grad().to_dense().equal(dense_rows({0, 4})));
  });
}

TEST(GradientReducer, SparseAndDenseGradientsMakeADenseAverage) {
  on_replicas([](Replica& replica, int rank) {
    for (int step = 0; step < 2; ++step) { // in a bucket, then by itself
      replica.zero();
      replica.reducer->begin(true);
      replica.add(0, 1);
      if (rank == 0) {
        replica.add(2, 6);
      } else {
        replica.parameters[2].second.mutable_grad() = sparse_row(2, 1);
      }
      EXPECT_TRUE(replica.reducer->finish({}));
      const at::Tensor& got = replica.parameters[2].second.grad();
      ASSERT_FALSE(got.is_sparse());
      EXPECT_TRUE(got.equal(dense_rows({3, 3, 4, 3, 3}))) << got;
    }
  });
}

TEST(GradientReducer, SparseGradientsOutsideOfAStepAreAveragedToo) {
  on_replicas([](Replica& replica, int rank) {
    replica.add(0, 2 * rank);
    replica.parameters[2].second.mutable_grad() = sparse_row(rank, 1);
    replica.reducer->average_rest();
    EXPECT_FLOAT_EQ(replica.gradient(0), 1);
    EXPECT_TRUE(replica.parameters[2].second.grad().to_dense().equal(dense_rows({1, 1})));
    EXPECT_EQ(replica.reducer->unaveraged_gradient(), "");
  });
}

TEST(GradientReducer, ItsHooksEndWithIt) {
  on_replicas([](Replica& replica, int) {
    replica.reducer->begin(true);
    replica.add(0, 1);
    replica.reducer->finish({});
    replica.reducer.reset();
    replica.add(0, 1); // a script that goes on with the bare model
    EXPECT_FLOAT_EQ(replica.gradient(0), 2);
  });
}

} // namespace
} // namespace tessera::data_parallel::testing
