/* SPDX-License-Identifier: Apache-2.0 */
/* c_api: a shard sleeps and wakes in C99, through stillwake_c.h alone. `c_api --emulated` needs no GPU; without it the
   environment chooses the driver. */
#include "examples/c_api/device_bytes.h"
#include "shard/stillwake_c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlocks = 8, kBlockSize = 12345678 };

static unsigned char expected(int block, size_t at) { return (unsigned char)((size_t)block * 37 + at * 31 + at / 997); }

static void check(stillwake_status status, const char* doing) {
  if (status != STILLWAKE_OK) {
    fprintf(stderr, "c_api: %s: %s\n", doing, stillwake_last_error());
    exit(1);
  }
}

static void check_bytes(bool done) {
  if (!done) {
    fprintf(stderr, "c_api: device memory could not be copied\n");
    exit(1);
  }
}

static void print_memory(stillwake_driver* driver, const char* when) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  check(stillwake_driver_memory(driver, 0, &free_bytes, &total_bytes), "asking for memory");
  printf("%-7s %10.1f MiB of the device are free\n", when, (double)free_bytes / 1048576.0);
}

static void print_report(stillwake_report* report) {
  const char* line = NULL;
  check(stillwake_report_line(report, &line), "asking for the report");
  printf("%s\n", line);
  check(stillwake_report_release(report), "releasing the report");
}

static uint64_t count_different(void* const* blocks, unsigned char* host) {
  uint64_t different = 0;
  int block;
  size_t at;
  for (block = 0; block < kBlocks; ++block) {
    check_bytes(device_bytes_read(host, blocks[block], kBlockSize));
    for (at = 0; at < kBlockSize; ++at) {
      different += host[at] != expected(block, at);
    }
  }
  return different;
}

int main(int count, char** words) {
  stillwake_driver_options driver_options = {0};
  stillwake_shard_options shard_options = {0};
  stillwake_driver* driver = NULL;
  stillwake_shard* shard = NULL;
  stillwake_report* report = NULL;
  void* blocks[kBlocks];
  unsigned char* host = malloc(kBlockSize);
  const char* text = NULL;
  int32_t kind = 0;
  uint64_t different;
  int block;
  size_t at;

  driver_options.struct_size = sizeof driver_options;
  if (count == 2 && strcmp(words[1], "--emulated") == 0) {
    driver_options.kind = STILLWAKE_DRIVER_EMULATED;
  } else if (count != 1) {
    fprintf(stderr, "c_api: '%s' is no option; --emulated is the only one\n", words[1]);
    return 2;
  }
  check(stillwake_driver_open(&driver_options, &driver), "opening the driver");
  check(stillwake_driver_describe(driver, &text), "describing the driver");
  printf("driver: %s\n", text);
  check(stillwake_driver_kind(driver, &kind), "asking for the driver's kind");

  shard_options.struct_size = sizeof shard_options;
  shard_options.name = "weights";
  check(stillwake_shard_create(driver, &shard_options, &shard), "creating the shard");
  check_bytes(host != NULL && device_bytes_open(kind == STILLWAKE_DRIVER_EMULATED, 0));
  for (block = 0; block < kBlocks; ++block) {
    check(stillwake_shard_allocate(shard, kBlockSize, NULL, STILLWAKE_BLOCK_SHARED, &blocks[block]), "allocating");
    for (at = 0; at < kBlockSize; ++at) {
      host[at] = expected(block, at);
    }
    check_bytes(device_bytes_write(blocks[block], host, kBlockSize));
    printf("block %d at %p\n", block, blocks[block]);
  }

  print_memory(driver, "awake");
  check(stillwake_sleep(&shard, 1, NULL, &report), "sleeping");
  print_report(report);
  print_memory(driver, "asleep");
  check(stillwake_wake(&shard, 1, NULL, &report), "waking");
  print_report(report);
  print_memory(driver, "awake");

  different = count_different(blocks, host);
  printf("bytes different %llu of %llu\n", (unsigned long long)different,
         (unsigned long long)kBlocks * (unsigned long long)kBlockSize);
  check(stillwake_shard_destroy(shard), "destroying the shard");
  check(stillwake_driver_close(driver), "closing the driver");
  free(host);
  return different == 0 ? 0 : 1;
}
