// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/host_view.h"

#include "allocator/base/in_reach.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/torch_error.h"

#include <ATen/ops/_nested_view_from_buffer.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/TensorImpl.h>

namespace stillwake::pytorch {
namespace {

/// The shard that a storage belongs to. One of no bytes (a rank without rows) has no address: who adopted it is asked.
TensorShard* owner_of(c10::StorageImpl& storage) {
  TensorShard* owner = Session::get().find(storage._mutable_data_ptr_no_checks().get());
  if (owner != nullptr || storage.nbytes() != 0) {
    return owner;
  }
  for (TensorShard* shard : Session::get().shards()) {
    if (shard->guard().has(&storage)) {
      return shard;
    }
  }
  return nullptr;
}

/// A CPU tensor of the same kind over the storage; its shape is still to be set.
at::Tensor shell_for(const at::Tensor& tensor, c10::Storage&& storage) {
  if (tensor.is_quantized()) {
    return at::detail::make_tensor<at::QTensorImpl>(std::move(storage),
                                                    c10::DispatchKeySet(c10::DispatchKey::QuantizedCPU), tensor.dtype(),
                                                    at::get_qtensorimpl(tensor)->quantizer());
  }
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                  tensor.dtype());
}

/// The same rows over the storage, of which a nested tensor (torch.nested, layout strided) is always a view of all.
at::Tensor nested_view(const at::Tensor& tensor, c10::Storage&& storage) {
  const auto count = static_cast<std::int64_t>(storage.nbytes() / tensor.element_size());
  at::Tensor all = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                            c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  all.unsafeGetTensorImpl()->set_sizes_contiguous(count);
  return at::_nested_view_from_buffer(all, tensor._nested_tensor_size(), tensor._nested_tensor_strides(),
                                      tensor._nested_tensor_storage_offsets());
}

} // namespace

at::Tensor host_view(const at::Tensor& tensor, bool write) {
  if (!tensor.has_storage()) {
    return tensor;
  }
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  TensorShard* shard = owner_of(storage);
  if (shard == nullptr) {
    return tensor;
  }
  value_or_throw(in_reach());
  if (const ShardState state = shard->core().state(); storage.nbytes() == 0 && state != ShardState::kAsleep) {
    throw TorchError(ErrorCode::kBusy, "host view: shard '" + shard->name() + "' is " + to_string(state) +
                                           "; its host copy can be read while it is asleep");
  }
  if (shard->spec().policy == Policy::kDiscard) {
    throw TorchError(ErrorCode::kInvalidArgument, "host_view of a tensor in shard '" + shard->name() +
                                                      "': its policy is 'discard', which keeps no host copy");
  }
  if (shard->spec().host_copy == HostCopy::kPacked) {
    throw TorchError(ErrorCode::kInvalidArgument, "host_view of a tensor in shard '" + shard->name() +
                                                      "': its host_copy is 'packed'; views need 'readable'");
  }
  HostViews::Storage host = shard->host_views().of(shard->core(), storage, write);
  if (tensor.is_nested()) {
    return nested_view(tensor, c10::Storage(std::move(host)));
  }
  at::Tensor view = shell_for(tensor, c10::Storage(std::move(host)));
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) {
    view._set_conj(true);
  }
  if (tensor.is_neg()) {
    view._set_neg(true);
  }
  return view;
}

} // namespace stillwake::pytorch
