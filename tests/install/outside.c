/* SPDX-License-Identifier: Apache-2.0 */
/* The same program in C99: it knows Stillwake only as installed, and prints the version that it was compiled for. */
#include <stillwake/stillwake_c.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBytes = 5 * 1000 * 1000 };

static void must(const char* what, stillwake_status status) {
  if (status != STILLWAKE_OK) {
    fprintf(stderr, "%s: %s\n", what, stillwake_last_error());
    exit(1);
  }
}

int main(void) {
  stillwake_driver_options driver_options;
  memset(&driver_options, 0, sizeof driver_options);
  driver_options.struct_size = sizeof driver_options;
  driver_options.kind = STILLWAKE_DRIVER_EMULATED;
  stillwake_driver* driver = NULL;
  must("open", stillwake_driver_open(&driver_options, &driver));

  stillwake_shard_options shard_options;
  memset(&shard_options, 0, sizeof shard_options);
  shard_options.struct_size = sizeof shard_options;
  shard_options.name = "weights";
  stillwake_shard* shard = NULL;
  must("create", stillwake_shard_create(driver, &shard_options, &shard));

  void* block = NULL;
  must("allocate", stillwake_shard_allocate(shard, kBytes, NULL, STILLWAKE_BLOCK_SHARED, &block));
  unsigned char* wanted = malloc(kBytes);
  for (int i = 0; i < kBytes; ++i) {
    wanted[i] = (unsigned char)(i * 31 + i / 251);
  }
  memcpy(block, wanted, kBytes);

  uint64_t free_before = 0, free_asleep = 0, total = 0;
  must("memory", stillwake_driver_memory(driver, 0, &free_before, &total));
  must("sleep", stillwake_sleep(&shard, 1, NULL, NULL));
  must("memory", stillwake_driver_memory(driver, 0, &free_asleep, &total));
  must("wake", stillwake_wake(&shard, 1, NULL, NULL));
  const int same = memcmp(block, wanted, kBytes) == 0;
  if (same && free_asleep >= free_before + kBytes) {
    printf("version %d.%d.%d: same address, same bytes\n", STILLWAKE_VERSION_MAJOR, STILLWAKE_VERSION_MINOR,
           STILLWAKE_VERSION_PATCH);
  }
  free(wanted);
  must("destroy", stillwake_shard_destroy(shard));
  must("close", stillwake_driver_close(driver));
  return 0;
}
