/* The controls of the emulated driver: plain C, found by dlsym in the driver library.
 *
 * Every function returns a CUresult as int: 0 for success, 1 for a name or value that is not known,
 * 3 before cuInit or in a forked child. Names of calls are the driver's without a version suffix:
 * "cuMemFree". Devices are this process's ordinals. Every function may be called from any thread;
 * what it sets holds for this process. */
#ifndef PARALLEL_TENSOR_EMULATOR_H
#define PARALLEL_TENSOR_EMULATOR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a host function gets: one launch, that is the whole grid. The argument is the emulator's
 * copy of what was passed through CU_LAUNCH_PARAM_BUFFER_POINTER, 64-byte aligned, valid until the
 * function returns. */
typedef struct pt_emulator_launch {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int shared_bytes;
  int device;
  const void* argument;
  size_t argument_bytes;
} pt_emulator_launch;

/* The host function of a kernel. Runs once per launch on the thread of the stream; the emulator
 * holds no lock meanwhile. */
typedef void (*pt_emulator_kernel)(const pt_emulator_launch* launch);

/* This process's live driver objects. */
typedef struct pt_emulator_counts {
  long allocations;  /* physical allocations made here and alive: cuMemCreate, cuMemAlloc,
                        cuMemHostAlloc */
  long mappings;     /* cuMemMap and cuIpcOpenMemHandle */
  long reservations; /* cuMemAddressReserve */
  long handles;    /* generic allocation handles created, imported or retained, not yet released */
  long multicasts; /* multicast objects */
  long streams;    /* created streams, not the default ones */
  long events;
  long fds; /* descriptors that the emulator itself holds open; exported ones are the caller's */
} pt_emulator_counts;

typedef void (*pt_emulator_visit)(const char* call, unsigned long count, void* context);

/* 1. A driver library that has this symbol is the emulated driver. */
int pt_emulator_abi(void);

/* Gives the kernel `name` a host function, also before cuInit; a later one replaces it for later
 * launches. */
int pt_emulator_register_kernel(const char* name, pt_emulator_kernel function);

/* Lets the nth of the next calls of `call` return `code` without any effect; nth counts from 1, -1
 * is every one. With this_thread_only only the calls of the calling thread count and fail. */
int pt_emulator_fail(const char* call, int code, long nth, int this_thread_only);
/* Forgets all faults. */
int pt_emulator_clear(void);

int pt_emulator_live(pt_emulator_counts* out);

/* Visits every call that was made since the start or the last reset. */
int pt_emulator_calls(pt_emulator_visit visit, void* context);
int pt_emulator_reset_calls(void);

/* `name` is that of a CU_DEVICE_ATTRIBUTE_ without this prefix: "MULTICAST_SUPPORTED". */
int pt_emulator_set_attribute(int device, const char* name, int value);
/* Powers of two of at least one page; recommended is a multiple of minimum. */
int pt_emulator_set_granularity(size_t minimum, size_t recommended, size_t multicast);
/* Whether the two devices can reach each other's memory, both ways. */
int pt_emulator_set_peer_access(int device, int peer, int possible);
/* The size of a device's memory; what is allocated already stays. */
int pt_emulator_set_memory(int device, size_t bytes);
/* How many multicast objects the switch of the emulated machine can hold at once. */
int pt_emulator_set_multicast_slots(int slots);

#ifdef __cplusplus
}
#endif

#endif
