#include "tessera/tracer/returned_memory.h"

#include <algorithm>
#include <unordered_map>

#include "tessera/tensor/dtype.h"
#include "tessera/tensor/value.h"

namespace tessera::tracer {

ReturnedMemory::Bytes ReturnedMemory::count(const std::vector<c10::IValue>& results) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::unordered_map<const c10::StorageImpl*, std::int64_t> fresh;
  Bytes bytes;
  const auto add = [&](const at::Tensor& tensor) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) {
      return;
    }
    bytes.all += bytes_of(tensor);
    if (!tensor.has_storage()) {
      bytes.added += bytes_of(tensor);
      return;
    }
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (!counted_.contains(storage)) {
      fresh[storage] += bytes_of(tensor);
      kept_.push_back(tensor.storage().getWeakStorageImpl());
    }
  };
  for (const c10::IValue& result : results) {
    for_each_tensor(result, add);
  }
  for (const auto& [storage, of_views] : fresh) {
    counted_.insert(storage);
    bytes.added += std::min(of_views, static_cast<std::int64_t>(storage->nbytes()));
  }
  return bytes;
}

} // namespace tessera::tracer
