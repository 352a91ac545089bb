// SPDX-License-Identifier: Apache-2.0
#include "shard/transition.h"

#include "allocator/base/base.h"
#include "shard/option_checks.h"
#include "shard/sleep_stage.h"
#include "shard/wake_stage.h"

namespace stillwake {
namespace {

Report nothing_to_do(Report::Kind kind) {
  Report report;
  report.kind = kind;
  report.verified = true;
  return report;
}

Result<Report> sleep_cores(const std::vector<ShardCore*>& cores, const SleepOptions& options) {
  STILLWAKE_TRY(check_options(options));
  if (cores.empty()) {
    return nothing_to_do(Report::Kind::kSleep);
  }
  return in_one_piece("sleeping", [&]() -> Result<Report> {
    auto stage = SleepStage::prepare(cores, options);
    STILLWAKE_TRY(stage);
    return (*stage)->commit();
  });
}

Result<Report> wake_cores(const std::vector<ShardCore*>& cores, const WakeOptions& options) {
  STILLWAKE_TRY(check_options(options, cores));
  if (cores.empty()) {
    return nothing_to_do(Report::Kind::kWake);
  }
  return in_one_piece("waking", [&]() -> Result<Report> {
    auto waking = WakeStage::wake(cores, {}, options);
    STILLWAKE_TRY(waking);
    return (*waking)->result();
  });
}

Result<std::vector<ShardCore*>> cores_of_some(const ShardSet& set) {
  STILLWAKE_TRY(in_reach());
  auto cores = cores_of(set);
  if (cores && cores->empty()) {
    return failure(ErrorCode::kInvalidArgument,
                   "the set is empty; name the shards, or pass the driver for all of them");
  }
  return cores;
}

} // namespace

Result<Report> sleep(const ShardSet& set, const SleepOptions& options) {
  auto cores = cores_of_some(set);
  STILLWAKE_TRY(cores);
  return sleep_cores(*cores, options);
}

Result<Report> sleep(Driver& driver, const SleepOptions& options) {
  STILLWAKE_TRY(in_reach());
  if (!driver.is_open()) {
    return failure(moved_from("Driver"));
  }
  return sleep_cores(Registry::of(driver).shards(), options);
}

Result<Report> wake(const ShardSet& set, const WakeOptions& options) {
  auto cores = cores_of_some(set);
  STILLWAKE_TRY(cores);
  return wake_cores(*cores, options);
}

Result<Report> wake(Driver& driver, const WakeOptions& options) {
  STILLWAKE_TRY(in_reach());
  if (!driver.is_open()) {
    return failure(moved_from("Driver"));
  }
  return wake_cores(Registry::of(driver).shards(), options);
}

Result<Ticket> wake(const ShardSet& set, const std::vector<Stream>& streams, const WakeOptions& options) {
  auto cores = cores_of_some(set);
  STILLWAKE_TRY(cores);
  return in_one_piece("waking", [&]() -> Result<Ticket> {
    auto waking = WakeStage::wake(*cores, streams, options);
    STILLWAKE_TRY(waking);
    return Ticket(std::move(*waking));
  });
}

StagedSleep::StagedSleep(std::unique_ptr<SleepStage> stage) : stage_(std::move(stage)) {}
StagedSleep::StagedSleep(StagedSleep&&) noexcept = default;
StagedSleep& StagedSleep::operator=(StagedSleep&&) noexcept = default;
StagedSleep::~StagedSleep() = default;

Result<void> StagedSleep::check_usable() const {
  STILLWAKE_TRY(in_reach());
  if (stage_ == nullptr) {
    return failure(moved_from("StagedSleep"));
  }
  return {};
}

Result<Report> StagedSleep::commit() {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("committing a sleep", [&] { return stage_->commit(); });
}
void StagedSleep::abandon() {
  if (check_usable()) {
    stage_->abandon();
  }
}

Result<StagedSleep> stage_sleep(const ShardSet& set, const SleepOptions& options) {
  auto cores = cores_of_some(set);
  STILLWAKE_TRY(cores);
  return in_one_piece("staging a sleep", [&]() -> Result<StagedSleep> {
    auto stage = SleepStage::prepare(*cores, options);
    STILLWAKE_TRY(stage);
    return StagedSleep(std::move(*stage));
  });
}

StagedWake::StagedWake(std::unique_ptr<WakeStage> stage) : stage_(std::move(stage)) {}
StagedWake::StagedWake(StagedWake&&) noexcept = default;
StagedWake& StagedWake::operator=(StagedWake&&) noexcept = default;
StagedWake::~StagedWake() = default;

Result<void> StagedWake::check_usable() const {
  STILLWAKE_TRY(in_reach());
  if (stage_ == nullptr) {
    return failure(moved_from("StagedWake"));
  }
  return {};
}

void StagedWake::abandon() {
  if (check_usable()) {
    stage_->abandon();
  }
}

Result<Ticket> StagedWake::commit(const std::vector<Stream>& streams) {
  STILLWAKE_TRY(check_usable());
  return in_one_piece("committing a wake", [&]() -> Result<Ticket> {
    auto waking = stage_->commit(streams);
    STILLWAKE_TRY(waking);
    return Ticket(std::move(*waking));
  });
}

Result<StagedWake> stage_wake(const ShardSet& set, const WakeOptions& options) {
  auto cores = cores_of_some(set);
  STILLWAKE_TRY(cores);
  return in_one_piece("staging a wake", [&]() -> Result<StagedWake> {
    auto stage = WakeStage::prepare(*cores, options);
    STILLWAKE_TRY(stage);
    return StagedWake(std::move(*stage));
  });
}

} // namespace stillwake
