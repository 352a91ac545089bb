/* SPDX-License-Identifier: Apache-2.0 */
/* The C header alone, as pedantic C99: one sleep and one wake on the emulated driver. */
#include "shard/stillwake_c.h"

#include <stdio.h>
#include <string.h>

#define SIZE 3000000u

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, stillwake_last_error());
  return 1;
}

int main(void) {
  stillwake_driver_options driver_options = {0};
  stillwake_shard_options shard_options = {0};
  stillwake_driver* driver = NULL;
  stillwake_shard* shard = NULL;
  void* pointer = NULL;
  unsigned char* bytes;
  size_t i;

  driver_options.struct_size = sizeof driver_options;
  driver_options.kind = STILLWAKE_DRIVER_EMULATED;
  shard_options.struct_size = sizeof shard_options;
  shard_options.name = "weights";
  if (stillwake_driver_open(&driver_options, &driver) != STILLWAKE_OK ||
      stillwake_shard_create(driver, &shard_options, &shard) != STILLWAKE_OK ||
      stillwake_shard_allocate(shard, SIZE, NULL, STILLWAKE_BLOCK_SHARED, &pointer) != STILLWAKE_OK) {
    return failed("set up");
  }
  bytes = (unsigned char*)pointer;
  memset(bytes, 42, SIZE);
  if (stillwake_sleep(&shard, 1, NULL, NULL) != STILLWAKE_OK || stillwake_wake(&shard, 1, NULL, NULL) != STILLWAKE_OK) {
    return failed("sleep and wake");
  }
  for (i = 0; i < SIZE; ++i) {
    if (bytes[i] != 42) {
      fprintf(stderr, "byte %lu is %d\n", (unsigned long)i, bytes[i]);
      return 1;
    }
  }
  if (stillwake_shard_destroy(shard) != STILLWAKE_OK || stillwake_driver_close(driver) != STILLWAKE_OK) {
    return failed("close");
  }
  return 0;
}
