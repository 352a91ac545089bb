// SPDX-License-Identifier: Apache-2.0
#include "torch_plugin/python/bindings/python_reports.h"

#include "torch_plugin/library/adopt.h"
#include "torch_plugin/library/torch_error.h"
#include "torch_plugin/python/bindings/without_gil.h"

#include <pybind11/stl.h>

#include <chrono>

namespace py = pybind11;

namespace stillwake::pytorch {
namespace {

double seconds(Duration took) { return std::chrono::duration<double>(took).count(); }

template <class Class, class Owner> void bytes_property(Class& type, const char* name, Bytes Owner::*member) {
  type.def_property_readonly(name, [member](const Owner& self) { return (self.*member).count(); });
}

// What a member is in a pickle: a number where it has a unit, else itself (numbers, text, lists of what is pickled).
template <class Member> const Member& pickled(const Member& member) { return member; }
std::uint64_t pickled(Bytes member) { return member.count(); }
Duration::rep pickled(Duration member) { return member.count(); }
int pickled(Report::Kind member) { return static_cast<int>(member); }
std::uintptr_t pickled(const void* member) { return reinterpret_cast<std::uintptr_t>(member); }

template <class Member> void unpickle(const py::handle& from, Member& to) { to = from.cast<Member>(); }
void unpickle(const py::handle& from, Bytes& to) { to = Bytes(from.cast<std::uint64_t>()); }
void unpickle(const py::handle& from, Duration& to) { to = Duration(from.cast<Duration::rep>()); }
void unpickle(const py::handle& from, Report::Kind& to) { to = static_cast<Report::Kind>(from.cast<int>()); }
void unpickle(const py::handle& from, const void*& to) {
  to = reinterpret_cast<const void*>(from.cast<std::uintptr_t>()); // NOLINT: an address to be told, not to be used
}

/// Lets Python copy a plain value and send it to another process.
template <class Value, class... Members> void make_picklable(py::class_<Value>& type, Members Value::*... members) {
  type.def(py::pickle([members...](const Value& value) { return py::make_tuple(pickled(value.*members)...); },
                      [members...](const py::tuple& state) {
                        if (state.size() != sizeof...(members)) {
                          throw TorchError(ErrorCode::kInvalidArgument,
                                           "a pickle of " + std::to_string(state.size()) + " values where " +
                                               std::to_string(sizeof...(members)) +
                                               " are needed: another version of stillwake wrote it");
                        }
                        Value value;
                        std::size_t at = 0;
                        (unpickle(state[at++], value.*members), ...);
                        return value;
                      }));
}

const char* kind_name(const Report& report) {
  switch (report.kind) {
  case Report::Kind::kSleep: return "sleep";
  case Report::Kind::kWake: return "wake";
  case Report::Kind::kSwap: return "swap";
  }
  return "";
}

void bind_report(py::module_& module) {
  py::class_<ReportStep> step(module, "ReportStep");
  step.def_readonly("name", &ReportStep::name);
  step.def_property_readonly("seconds", [](const ReportStep& self) { return seconds(self.took); });
  step.def_property_readonly("gigabytes_per_second", &ReportStep::gigabytes_per_second);
  bytes_property(step, "bytes", &ReportStep::bytes);
  make_picklable(step, &ReportStep::name, &ReportStep::took, &ReportStep::bytes);
  step.def("__repr__", [](const ReportStep& self) { return "<" + self.name + ">"; });

  py::class_<NotFreed> left(module, "NotFreed");
  left.def_readonly("shard", &NotFreed::shard);
  left.def_readonly("why", &NotFreed::why);
  left.def_property_readonly("address",
                             [](const NotFreed& self) { return reinterpret_cast<std::uintptr_t>(self.address); });
  bytes_property(left, "size", &NotFreed::size);
  make_picklable(left, &NotFreed::shard, &NotFreed::address, &NotFreed::size, &NotFreed::why);

  py::class_<Report> report(module, "Report");
  report.def_property_readonly("kind", &kind_name);
  report.def_readonly("shards", &Report::shards);
  report.def_readonly("shards_moved", &Report::shards_moved);
  bytes_property(report, "live", &Report::live);
  bytes_property(report, "copied", &Report::copied);
  bytes_property(report, "unchanged", &Report::unchanged);
  bytes_property(report, "trusted", &Report::trusted);
  bytes_property(report, "zero", &Report::zero);
  bytes_property(report, "discarded", &Report::discarded);
  bytes_property(report, "mapped", &Report::mapped);
  bytes_property(report, "freed", &Report::freed);
  bytes_property(report, "not_freed", &Report::not_freed);
  bytes_property(report, "host_pinned", &Report::host_pinned);
  report.def_readonly("copies", &Report::copies);
  report.def_readonly("verified", &Report::verified);
  report.def_readonly("leftovers", &Report::leftovers);
  report.def_readonly("steps", &Report::steps);
  report.def_property_readonly("seconds", [](const Report& self) { return seconds(self.took); });
  report.def_property_readonly("is_no_op", &Report::is_no_op);
  make_picklable(report, &Report::kind, &Report::shards, &Report::shards_moved, &Report::live, &Report::copied,
                 &Report::unchanged, &Report::trusted, &Report::zero, &Report::discarded, &Report::mapped,
                 &Report::freed, &Report::not_freed, &Report::host_pinned, &Report::copies, &Report::verified,
                 &Report::leftovers, &Report::steps, &Report::took);
  report.def("__str__", &Report::line);
  report.def("__repr__", [](const Report& self) { return "<" + self.line() + ">"; });
}

void bind_stats(py::module_& module) {
  py::class_<ShardStats> stats(module, "ShardStats");
  stats.def_readonly("blocks", &ShardStats::blocks);
  bytes_property(stats, "allocated", &ShardStats::allocated);
  bytes_property(stats, "mapped", &ShardStats::mapped);
  bytes_property(stats, "reserved_addresses", &ShardStats::reserved_addresses);
  bytes_property(stats, "host_pinned", &ShardStats::host_pinned);
  stats.def_readonly("handles", &ShardStats::handles);
  stats.def_readonly("queued_frees", &ShardStats::queued_frees);
  stats.def_readonly("sleeps", &ShardStats::sleeps);
  stats.def_readonly("wakes", &ShardStats::wakes);
  make_picklable(stats, &ShardStats::blocks, &ShardStats::allocated, &ShardStats::mapped,
                 &ShardStats::reserved_addresses, &ShardStats::host_pinned, &ShardStats::handles,
                 &ShardStats::queued_frees, &ShardStats::sleeps, &ShardStats::wakes);
  stats.def("__repr__", [](const ShardStats& self) {
    return "<" + std::to_string(self.blocks) + " blocks of " + std::to_string(self.allocated.count()) + " bytes, " +
           std::to_string(self.mapped.count()) + " on the device, " + std::to_string(self.host_pinned.count()) +
           " pinned on the host, " + std::to_string(self.sleeps) + " sleeps>";
  });
}

void bind_adopt_report(py::module_& module) {
  py::class_<AdoptReport> report(module, "AdoptReport");
  report.def_readonly("moved", &AdoptReport::moved);
  report.def_readonly("taken_in", &AdoptReport::taken_in);
  report.def_readonly("empty", &AdoptReport::empty);
  bytes_property(report, "bytes", &AdoptReport::bytes);
  module.def("adopt_line", [](const std::string& shard, std::uint64_t moved, std::uint64_t taken_in,
                              std::uint64_t empty, std::uint64_t bytes) {
    return AdoptReport{moved, taken_in, empty, Bytes(bytes)}.line(shard);
  });
}

void bind_ticket(py::module_& module) {
  py::class_<Ticket> ticket(module, "Ticket");
  ticket.def(
      "wait",
      [](Ticket& self, std::uintptr_t stream) {
        value_or_throw(self.wait(reinterpret_cast<Stream>(stream))); // NOLINT: PyTorch tells streams as numbers
      },
      py::arg("stream"), NoGil());
  ticket.def(
      "wait",
      [](Ticket& self, std::uintptr_t stream, std::uintptr_t address, std::uint64_t bytes) {
        const auto* start = reinterpret_cast<const void*>(address);                       // NOLINT
        value_or_throw(self.wait(reinterpret_cast<Stream>(stream), start, Bytes(bytes))); // NOLINT
      },
      py::arg("stream"), py::arg("address"), py::arg("bytes"), NoGil());
  ticket.def_property_readonly("is_done", &Ticket::is_done);
  ticket.def(
      "result", [](Ticket& self) { return value_or_throw(self.result()); }, NoGil());
}

} // namespace

void bind_reports(py::module_& module) {
  bind_report(module);
  bind_stats(module);
  bind_adopt_report(module);
  bind_ticket(module);
}

} // namespace stillwake::pytorch
