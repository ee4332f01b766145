/* The files of inject.h share this. */
#ifndef TESTS_SUPPORT_INJECT_INJECT_INTERNAL_H
#define TESTS_SUPPORT_INJECT_INJECT_INTERNAL_H

#include "tests/support/inject/inject.h"

#include <stdint.h>
#include <stdlib.h>

enum { SEED, SHORT, EAGAIN_P, EINTR_P, DELAY, DELAY_US, RESET, ALLOC, SETTINGS };

/* inject.c */
int inject_active(void);
uint64_t inject_draw(int kind);
/* Returns 1 when the percentage of `kind` hits this call. */
int inject_hit(int kind);
void inject_late(void);
/* Returns 1 when this allocation is the one to fail. */
int inject_refused(void);
/* Returns 1 when this read or write is the one that finds its connection gone. */
int inject_reset(void);

/* held.c: allocations that are still held. */
/* Notes p while faults are on; returns it. */
void *inject_track(void *p);
void inject_untrack(void *p);
void inject_track_none(void);
unsigned long inject_ntracked(void);

#endif
