// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/library/adopt.h"

#include "allocator/base/in_reach.h"
#include "torch_plugin/library/cpu_scope.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/storage_bytes.h"
#include "torch_plugin/library/torch_error.h"

#include <c10/core/impl/COW.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_set>

namespace stillwake::pytorch {
namespace {

[[noreturn]] void refuse(const NamedStorage& named, const TensorShard& shard, const std::string& why) {
  throw TorchError(ErrorCode::kInvalidArgument,
                   "adopting '" + named.name + "' into shard '" + shard.name() + "': " + why);
}

const void* address_of(const NamedStorage& named) { return named.storage->_mutable_data_ptr_no_checks().get(); }

/// Where PyTorch's own allocator for the device gave the memory, it may be given back to it.
bool is_pytorchs_own(c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return data.get_deleter() == usual_deleter(data.device().type());
}

/// Everything that can be refused, before anything moves.
void check(const NamedStorage& named, TensorShard& shard) {
  c10::StorageImpl& storage = *named.storage;
  const c10::Device device = storage._mutable_data_ptr_no_checks().device();
  if (device != shard.device()) {
    refuse(named, shard, "it is on " + device.str() + ", the shard on " + shard.device().str());
  }
  const void* address = address_of(named);
  if (address == nullptr) {
    if (storage.nbytes() != 0) {
      refuse(named, shard,
             "it has " + std::to_string(storage.nbytes()) +
                 " bytes and no memory (a meta or fake tensor, one of a released storage, or a "
                 "subclass that keeps its data in attributes: adopt those)");
    }
    return;
  }
  if (const TensorShard* owner = Session::get().find(address); owner != nullptr) {
    if (owner != &shard) {
      refuse(named, shard, "it belongs to shard '" + owner->name() + "' already");
    }
    return;
  }
  if (c10::impl::cow::is_cow_data_ptr(storage._mutable_data_ptr_no_checks())) {
    (void)storage.mutable_data_ptr(); // a lazy clone gets bytes of its own, as any write gives it
  }
  if (storage.received_cuda()) {
    refuse(named, shard, "its memory belongs to another process");
  }
  if (!is_pytorchs_own(storage)) {
    refuse(named, shard,
           "its memory does not come from PyTorch's allocator (numpy, from_blob, shared memory, a mapped "
           "file); clone the tensor first");
  }
}

/// Makes sure that no transition of the shard is under way until it is destroyed.
class Alone {
public:
  /// Throws kBusy, since waiting for a transition might be waiting for whoever called us from inside one.
  Alone(const NamedStorage& named, TensorShard& shard)
      : adopters_(shard.adoption_mutex()), gate_(shard.transition_gate(), std::try_to_lock) {
    if (!gate_) {
      throw TorchError(ErrorCode::kBusy, "adopting '" + named.name + "' into shard '" + shard.name() +
                                             "': a transition of the shard is under way; it is where it was");
    }
  }

private:
  std::lock_guard<std::mutex> adopters_;
  std::unique_lock<std::shared_mutex> gate_;
};

/// Exchanges the memory behind one storage and guards it, with no transition in between. The old memory is released
/// when the caller drops what is answered.
c10::DataPtr move(const NamedStorage& named, TensorShard& shard) {
  const Alone alone(named, shard);
  c10::StorageImpl& storage = *named.storage;
  c10::DataPtr inside = shard.allocator().allocate(storage.nbytes());
  copy_bytes(inside.get(), storage._mutable_data_ptr_no_checks().get(), storage.nbytes(), shard.device());
  c10::DataPtr old = storage.set_data_ptr(std::move(inside));
  shard.guard().add(named.storage);
  return old;
}

} // namespace

std::string AdoptReport::line(const std::string& shard) const {
  return "adopted into '" + shard + "': " + std::to_string(moved) + " storages of " + std::to_string(bytes.count()) +
         " bytes moved, " + std::to_string(taken_in) + " were inside, " + std::to_string(empty) + " empty";
}

AdoptReport adopt(const std::vector<NamedStorage>& storages, TensorShard& shard) {
  value_or_throw(in_reach());
  std::vector<const NamedStorage*> once;
  std::unordered_set<const c10::StorageImpl*> seen;
  for (const NamedStorage& named : storages) {
    if (seen.insert(named.storage.get()).second) {
      check(named, shard);
      once.push_back(&named);
    }
  }
  wait_for_device(shard.device());
  AdoptReport report;
  for (const NamedStorage* named : once) {
    c10::StorageImpl& storage = *named->storage;
    if (storage.nbytes() == 0) {
      shard.guard().add(named->storage);
      ++report.empty;
    } else if (shard.contains(address_of(*named))) {
      shard.guard().add(named->storage);
      ++report.taken_in;
    } else {
      try {
        const c10::DataPtr old = move(*named, shard); // released here, outside of every lock of ours
      } catch (const FullDevice& full) {
        Error error = full.error();
        const std::size_t after = once.size() - report.moved - report.taken_in - report.empty - 1;
        error.message = "adopting '" + named->name + "' (" + std::to_string(storage.nbytes()) +
                        " bytes): " + error.message + ". " + std::to_string(report.moved) +
                        " storages before it are in the shard, it and " + std::to_string(after) +
                        " after it are where they were";
        throw FullDevice(std::move(error));
      }
      ++report.moved;
      report.bytes += Bytes(storage.nbytes());
    }
    storage.set_allocator(&shard.allocator());
  }
  return report;
}

} // namespace stillwake::pytorch
