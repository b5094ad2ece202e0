#include "bench/summa/scalapack.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

// Fortran entry points; the library installs no C header for them.
extern "C" {
void Cblacs_pinfo(int* rank, int* size);
void Cblacs_get(int context, int what, int* value);
void Cblacs_gridinit(int* context, const char* order, int rows, int columns);
void Cblacs_gridinfo(int context, int* rows, int* columns, int* row, int* column);
void Cblacs_gridexit(int context);
int numroc_(const int* n, const int* block, const int* mine, const int* first, const int* count);
void descinit_(
    int* descriptor,
    const int* rows,
    const int* columns,
    const int* block_rows,
    const int* block_columns,
    const int* first_row,
    const int* first_column,
    const int* context,
    const int* leading,
    int* info);
void psgemm_(
    const char* transpose_a,
    const char* transpose_b,
    const int* m,
    const int* n,
    const int* k,
    const float* alpha,
    const float* a,
    const int* row_a,
    const int* column_a,
    const int* descriptor_a,
    const float* b,
    const int* row_b,
    const int* column_b,
    const int* descriptor_b,
    const float* beta,
    float* c,
    const int* row_c,
    const int* column_c,
    const int* descriptor_c);
}

namespace tessera::bench {

struct Scalapack::State {
  int n = 0;
  int context = 0;
  std::array<int, 9> descriptor{};
  std::vector<float> a;
  std::vector<float> b;
  std::vector<float> c;
};

bool Scalapack::available() {
  return true;
}

Scalapack::Scalapack(int mesh_rows, int mesh_columns, std::int64_t n)
    : state_(std::make_unique<State>()) {
  state_->n = static_cast<int>(n);
  int rank = 0;
  int size = 0;
  Cblacs_pinfo(&rank, &size);
  Cblacs_get(-1, 0, &state_->context);
  Cblacs_gridinit(&state_->context, "Row-major", mesh_rows, mesh_columns);
  int row = 0;
  int column = 0;
  Cblacs_gridinfo(state_->context, &mesh_rows, &mesh_columns, &row, &column);
  const int block = std::min(256, state_->n / mesh_columns);
  const int zero = 0;
  const int rows = numroc_(&state_->n, &block, &row, &zero, &mesh_rows);
  const int columns = numroc_(&state_->n, &block, &column, &zero, &mesh_columns);
  int info = 0;
  descinit_(
      state_->descriptor.data(),
      &state_->n,
      &state_->n,
      &block,
      &block,
      &zero,
      &zero,
      &state_->context,
      &rows,
      &info);
  const auto elements = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  std::mt19937 random(static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  for (auto* matrix : {&state_->a, &state_->b, &state_->c}) {
    matrix->resize(elements);
    std::generate(matrix->begin(), matrix->end(), [&] { return normal(random); });
  }
}

Scalapack::~Scalapack() {
  Cblacs_gridexit(state_->context);
}

void Scalapack::multiply() {
  const int one = 1;
  const float alpha = 1;
  const float beta = 0;
  psgemm_(
      "N",
      "N",
      &state_->n,
      &state_->n,
      &state_->n,
      &alpha,
      state_->a.data(),
      &one,
      &one,
      state_->descriptor.data(),
      state_->b.data(),
      &one,
      &one,
      state_->descriptor.data(),
      &beta,
      state_->c.data(),
      &one,
      &one,
      state_->descriptor.data());
}

} // namespace tessera::bench
