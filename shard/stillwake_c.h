/* SPDX-License-Identifier: Apache-2.0 */
/* Stillwake for C, for other languages and for dlopen: the whole C++ interface, nothing thrown across it.

   Every call that can fail answers a stillwake_status, 0 for success; stillwake_last_error() then has the sentence.
   What a call hands out it writes through a pointer, and writes nothing when it fails. A null handle, a null pointer to
   write through and a number that no enumeration has are STILLWAKE_INVALID_ARGUMENT, never a crash. What each call
   means, its threads and its errors: docs/reference/c.md and docs/reference/cpp.md.

   Structures begin with `struct_size`, which the caller sets to sizeof. They grow at their end only. An input structure
   that is shorter than the library's has zeros in the rest; one that is longer may hold only zeros there, else it asks
   for what this library does not know. Of an output structure as many bytes are written as both know. A zeroed
   structure with its struct_size asks for the defaults. Null asks for the defaults, too.

   Streams are CUstream or cudaStream_t as void*; null is the legacy default stream. Sizes are bytes. */
#ifndef STILLWAKE_C_H
#define STILLWAKE_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STILLWAKE_API __attribute__((visibility("default")))
#else
#define STILLWAKE_API
#endif

#define STILLWAKE_VERSION_MAJOR 0
#define STILLWAKE_VERSION_MINOR 1
#define STILLWAKE_VERSION_PATCH 0

/* --- Status and errors ---------------------------------------------------------------------------------------------
 */

typedef int32_t stillwake_status;
enum {
  STILLWAKE_OK = 0,
  STILLWAKE_OUT_OF_DEVICE_MEMORY = 1,
  STILLWAKE_OUT_OF_HOST_MEMORY = 2,
  STILLWAKE_OVER_BUDGET = 3,
  STILLWAKE_ASLEEP = 4,
  STILLWAKE_BUSY = 5,
  STILLWAKE_INVALID_ARGUMENT = 6,
  STILLWAKE_DRIVER_MISSING = 7,
  STILLWAKE_DRIVER_TOO_OLD = 8,
  STILLWAKE_DRIVER_CALL_FAILED = 9,
  STILLWAKE_CORRUPTED = 10,
  STILLWAKE_LOST = 11,
  STILLWAKE_RANK_FAILED = 12,
  STILLWAKE_TIMED_OUT = 13
};

/* The library's version, "0.1.0": compare it with the macros above after dlopen. */
STILLWAKE_API const char* stillwake_version(void);
/* "out of device memory" for instance; "success" for 0, "unknown status" for a number that is none. Never null. */
STILLWAKE_API const char* stillwake_status_name(stillwake_status status);
/* The sentence of this thread's last call that failed, "" before the first. A success leaves it. Never null; valid
   until the thread's next failure; at most 2047 characters. */
STILLWAKE_API const char* stillwake_last_error(void);
/* The CUresult of that failure, 0 where no driver call failed, and the call's name, "" where none did. */
STILLWAKE_API int32_t stillwake_last_driver_error(void);
STILLWAKE_API const char* stillwake_last_driver_call(void);

/* --- The driver ----------------------------------------------------------------------------------------------------
 */

typedef struct stillwake_driver stillwake_driver;

enum { STILLWAKE_DRIVER_UNSET = 0, STILLWAKE_DRIVER_CUDA = 1, STILLWAKE_DRIVER_EMULATED = 2 };
enum { STILLWAKE_LOG_DEBUG = 0, STILLWAKE_LOG_INFO = 1, STILLWAKE_LOG_WARNING = 2, STILLWAKE_LOG_ERROR = 3 };

/* Called from any thread; the text lives for the call only. No callback of this header may throw or longjmp. */
typedef void (*stillwake_log_function)(void* context, int32_t level, const char* text);

typedef struct stillwake_driver_options {
  size_t struct_size;
  int32_t kind;               /* STILLWAKE_DRIVER_*; unset: the environment decides, then CUDA */
  int32_t emulated_devices;   /* 0: unset */
  uint64_t emulated_memory;   /* of each device; 0: unset */
  const char* emulated_share; /* null: unset */
  const char* faults;         /* null: unset */
  stillwake_log_function log; /* null: nothing is logged */
  void* log_context;
} stillwake_driver_options;

STILLWAKE_API stillwake_status stillwake_driver_open(const stillwake_driver_options* options,
                                                     stillwake_driver** driver);
/* Shards, staged halves and tickets go first: while one is open this is BUSY and nothing happens. */
STILLWAKE_API stillwake_status stillwake_driver_close(stillwake_driver* driver);
STILLWAKE_API stillwake_status stillwake_driver_kind(stillwake_driver* driver, int32_t* kind);
/* "CUDA driver 13.0, 1 device (NVIDIA H200)"; valid as long as the driver. */
STILLWAKE_API stillwake_status stillwake_driver_describe(stillwake_driver* driver, const char** text);
STILLWAKE_API stillwake_status stillwake_driver_device_count(stillwake_driver* driver, int32_t* count);
STILLWAKE_API stillwake_status stillwake_driver_memory(stillwake_driver* driver, int32_t device, uint64_t* free_bytes,
                                                       uint64_t* total_bytes);
/* Calls `visit` once for each driver call that was made since the driver was opened. */
typedef void (*stillwake_counter_function)(void* context, const char* call, uint64_t calls, uint64_t failures);
STILLWAKE_API stillwake_status stillwake_driver_counters(stillwake_driver* driver, stillwake_counter_function visit,
                                                         void* context);

/* --- Host memory that all shards of a driver share -----------------------------------------------------------------
 */

#define STILLWAKE_NO_BUDGET UINT64_MAX
STILLWAKE_API stillwake_status stillwake_set_host_budget(stillwake_driver* driver, uint64_t bytes);
/* 0: the library chooses; 1 to 256. */
STILLWAKE_API stillwake_status stillwake_set_pinning_threads(stillwake_driver* driver, int32_t count);
STILLWAKE_API stillwake_status stillwake_host_pinned(stillwake_driver* driver, uint64_t* bytes);

/* --- Shards --------------------------------------------------------------------------------------------------------
 */

typedef struct stillwake_shard stillwake_shard;

enum { STILLWAKE_POLICY_PRESERVE = 0, STILLWAKE_POLICY_DISCARD = 1, STILLWAKE_POLICY_FROZEN = 2 };
enum { STILLWAKE_HOST_COPY_PACKED = 0, STILLWAKE_HOST_COPY_READABLE = 1 };
enum { STILLWAKE_BACKING_RETAIN = 0, STILLWAKE_BACKING_RELEASE = 1 };
enum { STILLWAKE_BLOCK_SHARED = 0, STILLWAKE_BLOCK_ONE_HANDLE = 1 };
enum { STILLWAKE_PREPARE_FOREGROUND = 0, STILLWAKE_PREPARE_BACKGROUND = 1 };
enum {
  STILLWAKE_STATE_AWAKE = 0,
  STILLWAKE_STATE_SEALED = 1,
  STILLWAKE_STATE_STAGED_SLEEP = 2,
  STILLWAKE_STATE_ASLEEP = 3,
  STILLWAKE_STATE_STAGED_WAKE = 4,
  STILLWAKE_STATE_WAKING = 5,
  STILLWAKE_STATE_CORRUPTED = 6,
  STILLWAKE_STATE_LOST = 7
};

/* Takes what live_ranges tells; lives for that call only. */
typedef struct stillwake_live_ranges stillwake_live_ranges;
/* [offset, offset + size) of a block is in use, nothing else of it but what is added too. Size 0 adds no range: the
   block is named, and without another range nothing of it is live. */
STILLWAKE_API stillwake_status stillwake_live_ranges_add(stillwake_live_ranges* ranges, const void* block,
                                                         uint64_t offset, uint64_t size);

/* What a shard's owner may plug in; null functions are not asked. They are called by the thread that asks for a
   transition, before any lock is taken. The structure is copied; `context` outlives the shard. */
typedef struct stillwake_owner {
  size_t struct_size;
  void* context;
  /* Blocks that are partly in use. A block that is not named is live as a whole. */
  void (*live_ranges)(void* context, stillwake_live_ranges* ranges);
  /* Whether a stream of the device is being captured: 1 yes, 0 no, anything else: not known. Asked by threads that
     allocate and free, too, before an event is recorded on the whole context: that would spoil a capture. */
  int32_t (*is_capturing)(void* context, int32_t device);
  /* A wake lacks `needed` bytes: give memory up, and say whether you did. */
  bool (*memory_is_short)(void* context, int32_t device, uint64_t needed);
} stillwake_owner;

typedef struct stillwake_shard_options {
  size_t struct_size;
  const char* name; /* needed, not empty */
  int32_t device;
  int32_t policy;      /* STILLWAKE_POLICY_* */
  int32_t host_copy;   /* STILLWAKE_HOST_COPY_* */
  int32_t backing;     /* STILLWAKE_BACKING_* */
  int32_t trust;       /* frozen only: not 0 is unchanged without being hashed */
  uint32_t peer_count; /* other devices that may read and write the shard */
  const int32_t* peers;
  uint64_t addresses;           /* size of the reservation; 0: as much as the device has memory */
  const stillwake_owner* owner; /* null: none */
} stillwake_shard_options;

typedef struct stillwake_shard_stats {
  size_t struct_size;
  uint64_t blocks;
  uint64_t allocated;
  uint64_t mapped;
  uint64_t reserved_addresses;
  uint64_t host_pinned;
  uint64_t handles;
  uint64_t queued_frees;
  uint64_t sleeps;
  uint64_t wakes;
} stillwake_shard_stats;

STILLWAKE_API stillwake_status stillwake_shard_create(stillwake_driver* driver, const stillwake_shard_options* options,
                                                      stillwake_shard** shard);
/* While a staged half holds the shard this is BUSY and nothing happens. */
STILLWAKE_API stillwake_status stillwake_shard_destroy(stillwake_shard* shard);
STILLWAKE_API stillwake_status stillwake_shard_allocate(stillwake_shard* shard, uint64_t size, void* stream,
                                                        int32_t block_kind, void** pointer);
/* Without a stream all work queued on the device so far is assumed to use the block. */
STILLWAKE_API stillwake_status stillwake_shard_free(stillwake_shard* shard, void* pointer);
STILLWAKE_API stillwake_status stillwake_shard_free_on_stream(stillwake_shard* shard, void* pointer, void* stream);
/* Valid as long as the shard. */
STILLWAKE_API stillwake_status stillwake_shard_name(stillwake_shard* shard, const char** name);
STILLWAKE_API stillwake_status stillwake_shard_device(stillwake_shard* shard, int32_t* device);
STILLWAKE_API stillwake_status stillwake_shard_policy(stillwake_shard* shard, int32_t* policy);
STILLWAKE_API stillwake_status stillwake_shard_state(stillwake_shard* shard, int32_t* state);
STILLWAKE_API const char* stillwake_state_name(int32_t state);
STILLWAKE_API stillwake_status stillwake_shard_stats_get(stillwake_shard* shard, stillwake_shard_stats* stats);
STILLWAKE_API stillwake_status stillwake_shard_first_address(stillwake_shard* shard, const void** address);
STILLWAKE_API stillwake_status stillwake_shard_contains(stillwake_shard* shard, const void* pointer, bool* contains);
STILLWAKE_API stillwake_status stillwake_shard_prepare(stillwake_shard* shard, int32_t how);
/* `bytes` may be null. */
STILLWAKE_API stillwake_status stillwake_shard_trim(stillwake_shard* shard, uint64_t* bytes);
STILLWAKE_API stillwake_status stillwake_shard_host_address(stillwake_shard* shard, const void* pointer,
                                                            void** host_address);
STILLWAKE_API stillwake_status stillwake_shard_mark_host_dirty(stillwake_shard* shard, const void* pointer,
                                                               uint64_t size);

/* --- Reports -------------------------------------------------------------------------------------------------------
 */

typedef struct stillwake_report stillwake_report;

enum { STILLWAKE_REPORT_SLEEP = 0, STILLWAKE_REPORT_WAKE = 1, STILLWAKE_REPORT_SWAP = 2 };

typedef struct stillwake_report_figures {
  size_t struct_size;
  int32_t kind; /* STILLWAKE_REPORT_* */
  int32_t verified;
  uint64_t shards;
  uint64_t shards_moved;
  uint64_t live;
  uint64_t copied;
  uint64_t unchanged;
  uint64_t trusted;
  uint64_t zero;
  uint64_t discarded;
  uint64_t mapped;
  uint64_t freed;
  uint64_t not_freed;
  uint64_t host_pinned;
  uint64_t copies;
  uint64_t took_ns;
  uint64_t step_count;
  uint64_t leftover_count;
} stillwake_report_figures;

typedef struct stillwake_report_step {
  size_t struct_size;
  const char* name; /* valid as long as the report, as all texts of it */
  uint64_t took_ns;
  uint64_t bytes; /* 0: not by bytes */
  double gigabytes_per_second;
} stillwake_report_step;

typedef struct stillwake_report_leftover {
  size_t struct_size;
  const char* shard;
  const void* address;
  uint64_t size;
  const char* why;
} stillwake_report_leftover;

STILLWAKE_API stillwake_status stillwake_report_figures_get(const stillwake_report* report,
                                                            stillwake_report_figures* figures);
STILLWAKE_API stillwake_status stillwake_report_line(stillwake_report* report, const char** line);
STILLWAKE_API stillwake_status stillwake_report_step_get(const stillwake_report* report, uint64_t index,
                                                         stillwake_report_step* step);
STILLWAKE_API stillwake_status stillwake_report_leftover_get(const stillwake_report* report, uint64_t index,
                                                             stillwake_report_leftover* leftover);
STILLWAKE_API stillwake_status stillwake_report_release(stillwake_report* report);

/* --- Transitions. `report` may be null where nobody wants one; a report that was handed out is released. -----------
 */

typedef struct stillwake_sleep_options {
  size_t struct_size;
  uint64_t timeout_ns; /* for the work in flight, with has_timeout */
  int32_t has_timeout; /* 0: waits for ever */
  int32_t checked;
  void* const* may_capture; /* streams that exist and may be capturing: asked first */
  uint64_t may_capture_count;
} stillwake_sleep_options;

/* Stands in arrays, so it never grows and has no struct_size. */
typedef struct stillwake_range {
  const void* pointer;
  uint64_t size;
} stillwake_range;

typedef struct stillwake_wake_options {
  size_t struct_size;
  uint64_t timeout_ns; /* for device memory, with has_timeout */
  int32_t has_timeout; /* 0: does not wait */
  int32_t reserved;    /* 0 */
  uint64_t chunk;      /* 0: the default */
  const stillwake_range* first;
  uint64_t first_count;
} stillwake_wake_options;

STILLWAKE_API stillwake_status stillwake_sleep(stillwake_shard* const* shards, size_t count,
                                               const stillwake_sleep_options* options, stillwake_report** report);
STILLWAKE_API stillwake_status stillwake_sleep_all(stillwake_driver* driver, const stillwake_sleep_options* options,
                                                   stillwake_report** report);
STILLWAKE_API stillwake_status stillwake_wake(stillwake_shard* const* shards, size_t count,
                                              const stillwake_wake_options* options, stillwake_report** report);
STILLWAKE_API stillwake_status stillwake_wake_all(stillwake_driver* driver, const stillwake_wake_options* options,
                                                  stillwake_report** report);
STILLWAKE_API stillwake_status stillwake_swap(stillwake_shard* const* outgoing, size_t outgoing_count,
                                              stillwake_shard* const* incoming, size_t incoming_count,
                                              const stillwake_sleep_options* sleep_options,
                                              const stillwake_wake_options* wake_options, stillwake_report** report);

/* --- Tickets: a wake that is under way -----------------------------------------------------------------------------
 */

typedef struct stillwake_ticket stillwake_ticket;

STILLWAKE_API stillwake_status stillwake_wake_on_streams(stillwake_shard* const* shards, size_t count,
                                                         void* const* streams, size_t stream_count,
                                                         const stillwake_wake_options* options,
                                                         stillwake_ticket** ticket);
STILLWAKE_API stillwake_status stillwake_ticket_wait(stillwake_ticket* ticket, void* stream);
STILLWAKE_API stillwake_status stillwake_ticket_wait_range(stillwake_ticket* ticket, void* stream, const void* pointer,
                                                           uint64_t size);
STILLWAKE_API stillwake_status stillwake_ticket_is_done(stillwake_ticket* ticket, bool* done);
STILLWAKE_API stillwake_status stillwake_ticket_result(stillwake_ticket* ticket, stillwake_report** report);
/* Waits for nothing; the wake goes on, and what its verdict is the shard tells. */
STILLWAKE_API stillwake_status stillwake_ticket_release(stillwake_ticket* ticket);

/* --- The halves of a transition. A half is spent by commit, whatever that answers, and by abandon; then, as before,
       it is released. Releasing one that is not spent abandons it. --------------------------------------------------
 */

typedef struct stillwake_staged_sleep stillwake_staged_sleep;
typedef struct stillwake_staged_wake stillwake_staged_wake;

STILLWAKE_API stillwake_status stillwake_stage_sleep(stillwake_shard* const* shards, size_t count,
                                                     const stillwake_sleep_options* options,
                                                     stillwake_staged_sleep** staged);
STILLWAKE_API stillwake_status stillwake_staged_sleep_commit(stillwake_staged_sleep* staged, stillwake_report** report);
STILLWAKE_API stillwake_status stillwake_staged_sleep_abandon(stillwake_staged_sleep* staged);
STILLWAKE_API stillwake_status stillwake_staged_sleep_release(stillwake_staged_sleep* staged);
STILLWAKE_API stillwake_status stillwake_stage_wake(stillwake_shard* const* shards, size_t count,
                                                    const stillwake_wake_options* options,
                                                    stillwake_staged_wake** staged);
STILLWAKE_API stillwake_status stillwake_staged_wake_commit(stillwake_staged_wake* staged, void* const* streams,
                                                            size_t stream_count, stillwake_ticket** ticket);
STILLWAKE_API stillwake_status stillwake_staged_wake_abandon(stillwake_staged_wake* staged);
STILLWAKE_API stillwake_status stillwake_staged_wake_release(stillwake_staged_wake* staged);

#ifdef __cplusplus
}
#endif

#endif /* STILLWAKE_C_H */
