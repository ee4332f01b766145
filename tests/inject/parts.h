/* What the files of inject.h share. */
#ifndef INJECT_PARTS_H
#define INJECT_PARTS_H

#include "inject.h"

#include <stdint.h>
#include <stdlib.h>

enum { SEED, SHORT, EAGAIN_P, EINTR_P, DELAY, DELAY_US, RESET, ALLOC, SETTINGS };

/* inject.c */
int inject_active(void);
uint64_t inject_draw(int kind);
/* Whether the percentage of `kind` hits this call. */
int inject_hit(int kind);
void inject_late(void);
/* Whether this allocation is the one to fail. */
int inject_refused(void);
/* Whether this read or write is the one that finds its connection gone. */
int inject_reset(void);

/* held.c: allocations that are still held. */
/* Notes p while faults are on; returns it. */
void *inject_hold(void *p);
void inject_let_go(void *p);
void inject_hold_none(void);
unsigned long inject_held(void);

#endif
