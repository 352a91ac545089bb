// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/pool_watch.h"

#include "torch_plugin/library/session.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <type_traits>

namespace stillwake::pytorch {
namespace {

/// Without a destructor: see CpuScope.
struct Watch {
  at::CallbackHandle callback;
  std::size_t depth;
};
static_assert(std::is_trivially_destructible_v<Watch>);
thread_local Watch watch{};

void guard(const at::Tensor& made) {
  // Of a wrapper, or a tensor without memory, there is nothing to guard: operators made what is inside, too.
  c10::StorageImpl* storage = made.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) {
    return;
  }
  if (TensorShard* shard = Session::get().find(storage->_mutable_data_ptr_no_checks().get())) {
    shard->guard().add(Guard::Storage::reclaim_copy(storage));
  }
}

void guard_outputs(const at::RecordFunction& called, at::ObserverContext*) {
  for (const c10::IValue& output : called.outputs()) {
    if (output.isTensor()) {
      guard(output.toTensor());
    } else if (output.isList()) {
      for (const c10::IValue& part : output.toListRef()) {
        if (part.isTensor()) {
          guard(part.toTensor());
        }
      }
    }
  }
}

} // namespace

void PoolWatch::begin() {
  if (watch.depth == 0) {
    watch.callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(nullptr, &guard_outputs).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ++watch.depth;
}

void PoolWatch::end() {
  if (--watch.depth == 0) {
    at::removeCallback(watch.callback);
  }
}

} // namespace stillwake::pytorch
