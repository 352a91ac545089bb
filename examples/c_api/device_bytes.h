/* SPDX-License-Identifier: Apache-2.0 */
/* Writing and reading device memory in C, which Stillwake does not offer: the emulation's is ordinary memory; on a GPU
   the two copy calls of the driver are taken from libcuda.so.1. A program of yours uses cudaMemcpy. */
#ifndef STILLWAKE_EXAMPLES_DEVICE_BYTES_H
#define STILLWAKE_EXAMPLES_DEVICE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

/* Makes the calls below work on one device; false, with a line on stderr, when the driver lacks something. */
bool device_bytes_open(bool is_emulated, int device);
bool device_bytes_write(void* device, const void* host, size_t size);
bool device_bytes_read(void* host, const void* device, size_t size);

#endif
