// SPDX-License-Identifier: Apache-2.0
// The extension module stillwake._cpu: the C++ library for the Python package. Storages come as the address of their
// StorageImpl (UntypedStorage._cdata), tensors only where one must be made.
#include "allocator/driver/driver_layer.h"
#include "torch_plugin/library/adopt.h"
#include "torch_plugin/library/global_allocator.h"
#include "torch_plugin/library/host_view.h"
#include "torch_plugin/library/pool.h"
#include "torch_plugin/library/session.h"
#include "torch_plugin/library/strays.h"
#include "torch_plugin/library/torch_error.h"
#include "torch_plugin/library/transitions.h"
#include "torch_plugin/python/bindings/python_errors.h"
#include "torch_plugin/python/bindings/python_reports.h"
#include "torch_plugin/python/bindings/without_gil.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace py = pybind11;

namespace stillwake::pytorch {
namespace {

c10::StorageImpl* storage_at(std::uintptr_t address) {
  return reinterpret_cast<c10::StorageImpl*>(address); // NOLINT: the number is UntypedStorage._cdata
}

const void* data_of(std::uintptr_t storage) { return storage_at(storage)->_mutable_data_ptr_no_checks().get(); }

std::optional<Duration> duration(std::optional<double> seconds) {
  if (!seconds) {
    return std::nullopt;
  }
  if (std::isnan(*seconds)) {
    throw TorchError(ErrorCode::kInvalidArgument, "a timeout of nan; None and numbers of seconds from 0 are possible");
  }
  constexpr double kMost = 1e9; // thirty years are for ever, and far from where a duration overflows
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::clamp(*seconds, -kMost, kMost)));
}

SleepOptions sleep_options(std::optional<double> timeout, bool checked) {
  SleepOptions options;
  options.timeout = duration(timeout);
  options.checked = checked;
  return options;
}

WakeOptions wake_options(std::optional<double> timeout,
                         const std::vector<std::pair<std::uintptr_t, std::uint64_t>>& first) {
  WakeOptions options;
  options.timeout = duration(timeout);
  for (const auto& [address, bytes] : first) {
    options.first.push_back({reinterpret_cast<const void*>(address), Bytes(bytes)}); // NOLINT
  }
  return options;
}

void bind_driver(py::module_& module) {
  py::enum_<DriverKind>(module, "DriverKind").value("CUDA", DriverKind::kCuda).value("EMULATED", DriverKind::kEmulated);
  module.def(
      "open_driver", [](std::optional<DriverKind> kind) { return Session::get().driver(kind).kind(); },
      py::arg("kind") = std::nullopt, NoGil());
  module.def("driver_is_open", [] { return Session::get().open_driver() != nullptr; });
  module.def(
      "describe_driver", [] { return Session::get().driver().describe(); }, NoGil());
  module.def(
      "device_count", [] { return Session::get().driver().device_count(); }, NoGil());
  module.def(
      "device_memory",
      [](int index) {
        const DeviceMemory memory = value_or_throw(Session::get().driver().memory(DeviceIndex(index)));
        return std::pair(memory.free.count(), memory.total.count());
      },
      NoGil());
  module.def("driver_calls", [] {
    const DriverCounters counters = Session::get().driver().counters();
    return std::pair(counters.calls, counters.failures);
  });
  module.def(
      "inject_faults",
      [](const std::string& text) { Session::get().driver().gate().arm(value_or_throw(CallGate::parse(text))); },
      py::arg("text"),
      "For tests: makes driver calls fail, as STILLWAKE_FAULTS does ('cuMemMap:2,*:17'); replaces what was asked for "
      "before, and '' ends it.");
  module.def(
      "injected_faults", [] { return Session::get().driver().gate().injected(); },
      "For tests: how many calls were made to fail since inject_faults.");
  module.def("set_host_budget", [](std::optional<std::uint64_t> limit) {
    set_host_budget(Session::get().driver(), limit ? std::optional(Bytes(*limit)) : std::nullopt);
  });
  module.def("set_pinning_threads",
             [](int count) { value_or_throw(set_pinning_threads(Session::get().driver(), count)); });
  module.def("host_pinned", [] { return host_pinned(Session::get().driver()).count(); });
}

ShardSpec spec_of(const std::string& name, const std::string& device, Policy policy, HostCopy host_copy,
                  Backing backing, bool trust, std::optional<std::uint64_t> addresses) {
  ShardSpec spec;
  spec.name = name;
  spec.device = c10::Device(device);
  spec.policy = policy;
  spec.host_copy = host_copy;
  spec.backing = backing;
  spec.trust = trust;
  spec.addresses = addresses ? std::optional(Bytes(*addresses)) : std::nullopt;
  return spec;
}

void bind_shard(py::module_& module) {
  py::enum_<Policy>(module, "Policy")
      .value("preserve", Policy::kPreserve)
      .value("discard", Policy::kDiscard)
      .value("frozen", Policy::kFrozen);
  py::enum_<HostCopy>(module, "HostCopy").value("packed", HostCopy::kPacked).value("readable", HostCopy::kReadable);
  py::enum_<Backing>(module, "Backing").value("retain", Backing::kRetain).value("release", Backing::kRelease);

  py::class_<Pool>(module, "Pool").def("leave", &Pool::leave, NoGil());
  py::class_<TensorShard, std::unique_ptr<TensorShard, py::nodelete>> shard(module, "Shard");
  shard.def_property_readonly("name", &TensorShard::name);
  shard.def_property_readonly("device", [](const TensorShard& self) { return self.device().str(); });
  shard.def_property_readonly("state", [](TensorShard& self) { return to_string(self.core().state()); });
  shard.def_property_readonly("key", [](const TensorShard& self) { return reinterpret_cast<std::uintptr_t>(&self); });
  shard.def("stats", [](TensorShard& self) { return self.core().stats(); });
  shard.def(
      "prepare",
      [](TensorShard& self, bool background) {
        value_or_throw(self.core().prepare(background ? Shard::Prepare::kBackground : Shard::Prepare::kForeground));
      },
      NoGil());
  shard.def(
      "trim", [](TensorShard& self) { return self.trim().count(); }, NoGil());
  shard.def(
      "close", [](TensorShard& self) { Session::get().close(self); }, NoGil());
  shard.def(
      "enter", [](TensorShard& self) { return std::make_unique<Pool>(self); }, NoGil());
  shard.def("has_adopted",
            [](TensorShard& self, std::uintptr_t storage) { return self.guard().has(storage_at(storage)); });

  module.def(
      "make_shard",
      [](const std::string& name, const std::string& device, Policy policy, HostCopy host_copy, Backing backing,
         bool trust, std::optional<std::uint64_t> addresses) {
        return &Session::get().shard(spec_of(name, device, policy, host_copy, backing, trust, addresses));
      },
      py::return_value_policy::reference, NoGil());
  module.def(
      "shards", [] { return Session::get().shards(); }, py::return_value_policy::reference);
  module.def("use", &use, py::arg("shard").none(true));
  module.def("used", &used, py::return_value_policy::reference);
  module.def("library_path", &library_path);
  // What PyTorch calls in the global mode, for tests: ctypes would end at the exceptions.
  module.def(
      "torch_malloc",
      [](std::ptrdiff_t bytes, int device) {
        return reinterpret_cast<std::uintptr_t>(stillwake_torch_malloc(bytes, device, nullptr));
      },
      NoGil());
  module.def(
      "torch_free",
      [](std::uintptr_t block, std::ptrdiff_t bytes, int device) {
        stillwake_torch_free(reinterpret_cast<void*>(block), bytes, device, nullptr); // NOLINT
      },
      NoGil());
}

void bind_storages(py::module_& module) {
  module.def(
      "shard_of", [](std::uintptr_t storage) { return Session::get().find(data_of(storage)); },
      py::return_value_policy::reference);
  module.def(
      "shards_of",
      [](const std::vector<std::uintptr_t>& storages) {
        std::vector<TensorShard*> found;
        found.reserve(storages.size());
        for (const std::uintptr_t storage : storages) {
          found.push_back(Session::get().find(data_of(storage)));
        }
        return found;
      },
      py::return_value_policy::reference);
  module.def("find_strays", [](const py::list& tensors, bool shards_are_on_cpu) {
    std::vector<at::Tensor> all;
    all.reserve(tensors.size());
    for (const py::handle tensor : tensors) {
      all.push_back(THPVariable_Unpack(tensor.ptr()));
    }
    return find_strays(all, shards_are_on_cpu ? c10::kCPU : c10::kCUDA);
  });
  module.def("address", [](std::uintptr_t storage) { return reinterpret_cast<std::uintptr_t>(data_of(storage)); });
  module.def("adopt", [](TensorShard& shard, const std::vector<std::string>& names,
                         const std::vector<std::uintptr_t>& storages) {
    std::vector<NamedStorage> named;
    named.reserve(storages.size());
    for (std::size_t at = 0; at < storages.size(); ++at) {
      named.push_back({names[at], c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_at(storages[at]))});
    }
    const WithoutGil no_gil;
    return adopt(named, shard);
  });
  module.def("lose_in_child", [] { Session::get().lose_in_child(); });
  module.def("host_views", [](const py::list& tensors, bool write) {
    py::list views;
    for (const py::handle tensor : tensors) {
      const at::Tensor view = host_view(THPVariable_Unpack(tensor.ptr()), write);
      views.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(view)));
    }
    return views;
  });
}

void bind_transitions(py::module_& module) {
  module.def(
      "sleep",
      [](const TensorShards& set, std::optional<double> timeout, bool checked) {
        return sleep(set, sleep_options(timeout, checked));
      },
      NoGil());
  module.def(
      "wake",
      [](const TensorShards& set, std::optional<double> timeout,
         const std::vector<std::pair<std::uintptr_t, std::uint64_t>>& first) {
        return wake(set, wake_options(timeout, first));
      },
      NoGil());
  module.def(
      "wake_for_streams",
      [](const TensorShards& set, const std::vector<std::uintptr_t>& streams, std::optional<double> timeout,
         const std::vector<std::pair<std::uintptr_t, std::uint64_t>>& first) {
        std::vector<Stream> waiting;
        for (const std::uintptr_t stream : streams) {
          waiting.push_back(reinterpret_cast<Stream>(stream)); // NOLINT: PyTorch tells streams as numbers
        }
        return wake(set, waiting, wake_options(timeout, first));
      },
      NoGil());
  module.def(
      "swap",
      [](const TensorShards& outgoing, const TensorShards& incoming, std::optional<double> timeout, bool checked,
         std::optional<double> wake_timeout) {
        return swap(outgoing, incoming, sleep_options(timeout, checked), wake_options(wake_timeout, {}));
      },
      NoGil());
}

} // namespace
} // namespace stillwake::pytorch

PYBIND11_MODULE(_cpu, module) {
  namespace sw = stillwake::pytorch;
  module.doc() = "The C++ side of stillwake; the package is the interface.";
  sw::bind_errors(module);
  sw::bind_reports(module);
  sw::bind_driver(module);
  sw::bind_shard(module);
  sw::bind_storages(module);
  sw::bind_transitions(module);
}
