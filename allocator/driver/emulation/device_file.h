// SPDX-License-Identifier: Apache-2.0
// The files behind emulated devices, and what the system says about them: whether they may be opened, how long they may
// become, what is free where they lie. Every refusal names the file and the figures.
#pragma once

#include "allocator/base/base.h"

#include <cstdint>
#include <optional>
#include <string>

namespace stillwake::emulation {

/// Makes a file for a device's memory that only this process can reach. Errors: kOutOfHostMemory.
[[nodiscard]] Result<int> private_device_file();
/// Opens a file of a share, and makes it where it is missing. Errors: kInvalidArgument, naming the owner, for one that
/// this user may not open: another name is needed; else kOutOfHostMemory.
[[nodiscard]] Result<int> open_share_file(const std::string& path);

/// Sets the length of a device's file: more offsets than can ever be given out. Errors: kOutOfHostMemory.
[[nodiscard]] Result<void> lengthen_device_file(int file, const std::string& path);
/// Makes sure that the bytes [offset, offset + size) of the file have room; the system's error, 0 for success. Not
/// beyond the file limit: see over_file_limit.
int allocate_space(int file, std::uint64_t offset, Bytes size);

/// The sentence for a file that was refused `needed` bytes: with what is free where it lies, and the system's error.
std::string no_room(int file, const std::string& path, Bytes needed, int error);
/// The sentence for a file that may not reach as far as `end` because of RLIMIT_FSIZE; nothing where it may. Asked
/// first: the system ends a process that tries.
std::optional<std::string> over_file_limit(const std::string& path, std::uint64_t end);

} // namespace stillwake::emulation
