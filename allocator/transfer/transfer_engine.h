// SPDX-License-Identifier: Apache-2.0
// A TransferEngine moves pages between one device and its mirrors: a lane out, a lane in, the page kernels, and all the
// scratch memory these need, taken when it is opened, so that a full device cannot stop a sleep.
#pragma once

#include "allocator/transfer/page_task.h"

#include <memory>
#include <span>
#include <vector>

namespace stillwake {

struct SaveReport {
  Bytes copied; ///< over the bus
  Pages pages_copied;
  Pages pages_unchanged;    ///< digest equal to the valid backing's, or trusted
  Pages pages_zero;         ///< zeros: nothing copied
  std::uint64_t copies = 0; ///< copy calls: neighbouring pages of one piece travel as one
  Duration hashing{0};      ///< host time from the first launch to the last digest known
  Duration copying{0};      ///< host time from the first copy queued to the last one done
};

/// Copies that are on their way in, chunk by chunk in the order of the tasks. Its events come from the engine's pool
/// and go back to it; destroying the job waits for what is under way.
class RestoreJob {
public:
  virtual ~RestoreJob() = default;

  /// Queues the next chunks, at most so many, and returns. Their pages are mapped by now, and new: nothing else uses
  /// them yet. Jobs share the bus in the order of these calls. On an error nothing of the job is under way any more,
  /// and it can only be destroyed. One thread.
  [[nodiscard]] virtual Result<void> queue(std::size_t most) = 0;

  // For a job that is queued as a whole.

  virtual std::size_t chunks() const = 0;
  /// The chunk that holds the task with this index.
  virtual std::size_t chunk_of(std::size_t task) const = 0;
  /// Makes the stream wait until the chunk (and all before it) is restored and its digests are taken; nothing when that
  /// is so already. kBusy on a capturing stream, which would record the wait. Any thread.
  [[nodiscard]] virtual Result<void> make_wait(Stream stream, std::size_t chunk) = 0;
  /// Whether the chunk is restored, without waiting.
  [[nodiscard]] virtual Result<bool> is_done(std::size_t chunk) = 0;
  /// Waits for all chunks; answers the indices of tasks whose digest is not the expected one (empty: verified).
  /// Any thread, again and again.
  [[nodiscard]] virtual Result<std::vector<std::size_t>> finish() = 0;
  virtual Bytes copied() const = 0;
  virtual std::uint64_t copies() const = 0; ///< copy calls
  /// Host time from the start to the end of `finish`'s waiting; zero before.
  virtual Duration took() const = 0;
};

class TransferEngine {
public:
  /// Loads the device code and takes scratch memory. A device that cannot load the code is no error: has_kernels() is
  /// false then, every page counts as changed and nothing is verified. `emulation`: where to register the CPU twins.
  [[nodiscard]] static Result<std::unique_ptr<TransferEngine>> open(Device& device, Emulation* emulation);
  ~TransferEngine();

  Device& device() const;
  bool has_kernels() const;
  /// What digests are seeded with: one value a process.
  std::uint64_t seed() const;

  /// Hashes, decides and copies out: hashing runs ahead of copying, batch by batch. Returns when every copy is done.
  /// All work on the device that writes the pages is done before the call (the caller quiesced). Tasks in address
  /// order; a piece that is still being pinned is waited for when its turn comes. On an error
  /// nothing is under way any more, and the backing of the tasks that say `copied` is undefined; nothing else has
  /// changed. kLost when the device could not even be waited for. One save an engine at a time; others wait.
  [[nodiscard]] Result<SaveReport> save(std::span<SaveTask> tasks);

  /// Digests of pages as they are now; waits. Error kDriverCallFailed without kernels.
  [[nodiscard]] Result<std::vector<PageDigest>> digest(std::span<const DeviceAddress> pages);

  /// A job with nothing queued: per chunk of `chunk` bytes it has copies, clears, the digest kernel and a readiness
  /// event. The first chunk is 256 MiB at most; later ones are larger than asked where there would be more than 160 of
  /// them, which the device would not take at once. Jobs go before the engine.
  [[nodiscard]] Result<std::unique_ptr<RestoreJob>> begin_restore(std::vector<RestoreTask> tasks, Bytes chunk);
  /// The same, queued as a whole.
  [[nodiscard]] Result<std::unique_ptr<RestoreJob>> restore(std::vector<RestoreTask> tasks, Bytes chunk);

private:
  class Impl;
  explicit TransferEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

} // namespace stillwake
