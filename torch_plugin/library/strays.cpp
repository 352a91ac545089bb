// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/strays.h"

#include "torch_plugin/library/session.h"

#include <unordered_set>

namespace stillwake::pytorch {

std::vector<std::size_t> find_strays(const std::vector<at::Tensor>& tensors, c10::DeviceType shards_are_on) {
  std::vector<std::size_t> strays;
  std::unordered_set<c10::StorageImpl*> seen;
  for (std::size_t at = 0; at < tensors.size(); ++at) {
    const at::Tensor& tensor = tensors[at];
    if (tensor.is_meta() || (tensor.is_cpu() && shards_are_on != c10::kCPU)) {
      continue;
    }
    if (tensor.layout() != at::kStrided || !tensor.has_storage()) {
      strays.push_back(at);
      continue;
    }
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    // Only the address is read: the guard of a sleeping storage is no concern of a question.
    const void* data = storage->_mutable_data_ptr_no_checks().get();
    if (storage->nbytes() > 0 && seen.insert(storage).second && Session::get().find(data) == nullptr) {
      strays.push_back(at);
    }
  }
  return strays;
}

} // namespace stillwake::pytorch
